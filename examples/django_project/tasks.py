"""What workers do. Django 6 has tasks itself; Django 5.2 has them with the package django-tasks."""

import django

import rqttl

if django.VERSION >= (6, 0):
    from django.tasks import task
else:
    from django_tasks import task


@task
def ship(item: int) -> str:
    """Ship an item."""
    if item == 0:
        raise rqttl.Reject("no such item")  # a dead letter in default/dead, without further attempts
    return f"shipped item {item}"
