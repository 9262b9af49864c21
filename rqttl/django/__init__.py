"""Django's tasks on rqttl: a backend, and `manage.py rqttl_worker`. It needs the extra `django`."""

from rqttl.django.backend import RqttlBackend

__all__ = ["RqttlBackend"]
