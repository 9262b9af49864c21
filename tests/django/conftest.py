"""A project of Django in a temporary folder, with Django set up in this process and `manage.py` in others."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.repository import ROOT


@pytest.fixture(scope="session", autouse=True)
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the project."""
    import django

    folder = tmp_path_factory.mktemp("site") / "project"
    shutil.copytree(ROOT / "tests" / "django" / "project", folder)
    sys.path.insert(0, str(folder))
    os.environ["DJANGO_SETTINGS_MODULE"] = "settings"
    django.setup()
    return folder


@pytest.fixture
def tasks(redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """`tasks(results="1d")`: the backend with these options, from now on and for each `manage.py`."""
    from django.db import connections
    from django.test import override_settings

    from rqttl.django import backend

    monkeypatch.chdir(tmp_path)
    made: list[Any] = []

    def use(queues: tuple[str, ...] = ("default", "mails"), **options: Any) -> Any:
        given = {"url": redis_url, **options}
        settings = {"default": {"BACKEND": "rqttl.django.RqttlBackend", "QUEUES": queues, "OPTIONS": given}}
        monkeypatch.setenv("TASKS", json.dumps(settings))
        made.append(override_settings(TASKS=settings))
        made[-1].enable()
        return backend.tasks.task_backends["default"]

    yield use
    for one in reversed(made):
        one.disable()
    connections.close_all()
    backend._connected.cache_clear()


@pytest.fixture
def work() -> Callable[..., list[str]]:
    """Run tasks in this process until none is left; returns the lines that they have noted."""
    from django.core.management import call_command

    def work(*words: str, **options: Any) -> list[str]:
        call_command("rqttl_worker", *words, **{"processes": 0, "burst": True, "retry_delay": "0s", **options})
        return notes()

    return work


def notes() -> list[str]:
    path = Path("notes")
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


@pytest.fixture
def manage(site: Path) -> Iterator[Callable[..., "subprocess.Popen[str]"]]:
    """Start `manage.py` in a process."""
    started: list[subprocess.Popen[str]] = []

    def manage(*words: str) -> "subprocess.Popen[str]":
        line = [sys.executable, str(site / "manage.py"), *words]
        environment = {**os.environ, "PYTHONPATH": str(site)}
        started.append(
            subprocess.Popen(line, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        )
        return started[-1]

    yield manage
    for process in started:
        process.terminate()
        process.communicate(timeout=60)
