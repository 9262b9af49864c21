import json
import os
from importlib.util import find_spec

SECRET_KEY = "x"
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "shop.tasks"
INSTALLED_APPS = ["shop", "rqttl.django", *(["django_tasks"] if find_spec("django_tasks") else [])]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "db"}}
TASKS = {"default": {"BACKEND": "rqttl.django.RqttlBackend", "QUEUES": ["default", "mails"]}}
TASKS = json.loads(os.environ.get("TASKS", json.dumps(TASKS)))
