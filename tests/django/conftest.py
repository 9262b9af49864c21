"""Django is set up in this process, with the project in `project`; the working folder of each test is a new one."""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import django
import pytest
from django.db import connections
from django.test import override_settings

PROJECT = str(Path(__file__).parent / "project")
sys.path.insert(0, PROJECT)
os.environ |= {"DJANGO_SETTINGS_MODULE": "settings", "PYTHONPATH": PROJECT}
django.setup()


@pytest.fixture
def tasks(redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """`tasks(results="1d")`: the backend with these options, from now on, here and in the processes of workers."""
    from rqttl import django as backend

    monkeypatch.chdir(tmp_path)
    Path("notes").touch()
    with ExitStack() as overridden:

        def use(
            queues: tuple[str, ...] = ("default", "mails"), kind: str = "rqttl.django.RqttlBackend", **options: Any
        ) -> Any:
            one = {"BACKEND": kind, "QUEUES": queues, "OPTIONS": {"url": redis_url, **options}}
            monkeypatch.setenv("TASKS", json.dumps({"default": one}))
            overridden.enter_context(override_settings(TASKS={"default": one}))
            return backend.tasks.task_backends["default"]

        yield use
    connections.close_all()
    backend._connected.cache_clear()
