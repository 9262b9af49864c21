"""Django's tasks on rqttl: `python -m django rqttl_worker --settings examples.django_project.settings` runs them."""

from importlib.util import find_spec

DEBUG = True
ROOT_URLCONF = "examples.django_project.urls"
INSTALLED_APPS = ["rqttl.django", "examples.django_project", *(["django_tasks"] if find_spec("django_tasks") else [])]
TASKS = {"default": {"BACKEND": "rqttl.django.RqttlBackend", "OPTIONS": {"results": "1d"}}}
