"""What web processes do: `python -m django runserver --settings examples.django_project.settings` serves it."""

from django.http import HttpRequest, JsonResponse
from django.urls import path

from examples.django_project.tasks import ship


def order(_: HttpRequest, item: int) -> JsonResponse:
    """Order an item. Within a transaction the task is sent when that is committed."""
    return JsonResponse({"id": ship.enqueue(item).id})


def state(_: HttpRequest, id: str) -> JsonResponse:
    """Say what became of an order."""
    result = ship.get_result(id)
    return JsonResponse({"status": result.status, "errors": [error.traceback for error in result.errors]})


urlpatterns = [path("order/<int:item>", order), path("state/<id>", state)]
