import json
import os
from importlib.util import find_spec

SECRET_KEY = "x"
USE_TZ = True
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "shop.urls"
INSTALLED_APPS = ["shop", "rqttl.django", *(["django_tasks"] if find_spec("django_tasks") else [])]
DATABASES = {
    "default": {"ENGINE": "careful", "NAME": "db.sqlite3", "CONN_MAX_AGE": None, "CONN_HEALTH_CHECKS": True},
}
BACKEND = {"BACKEND": "rqttl.django.RqttlBackend", "QUEUES": ["default", "mails"]}
TASKS = json.loads(os.environ.get("TASKS", json.dumps({"default": BACKEND})))
