"""Fixtures of the embedded server's tests: the server, a folder for its data, and processes that use it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rqttl.embedded import server as embedded
from tests.process.embedded_users import Users, data_folder, put_on_path, user_processes
from tests.waiting import PATIENCE


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for longer than users would: a busy machine may need 10 s to start or to end a server."""
    for function in (embedded.acquire, embedded.EmbeddedServer.revive):
        assert function.__kwdefaults__ is not None
        monkeypatch.setitem(function.__kwdefaults__, "timeout", PATIENCE)
    for name in ("_CLOSE_TIMEOUT", "_PROBE_TIMEOUT"):
        monkeypatch.setattr(embedded, name, PATIENCE)


@pytest.fixture(params=["7.0", "6.2"])
def series(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    put_on_path(monkeypatch, tmp_path, request.param)
    return str(request.param)


@pytest.fixture
def folder() -> Iterator[Path]:
    yield from data_folder()


@pytest.fixture
def users(folder: Path) -> Iterator[Users]:
    yield from user_processes(folder)
