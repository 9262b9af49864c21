"""Fixtures: a server that keeps all writes, a proxy that loses replies, and those of the embedded server's tests."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rqttl.embedded import server as embedded
from tests.process.consuming import Process
from tests.process.embedded_users import Users, choose_binary, data_folder, user_processes
from tests.process.proxy import Proxy
from tests.servers import Server
from tests.waiting import PATIENCE


@pytest.fixture
def durable(start_server: Callable[..., Server]) -> Server:
    """A server of the test's own that keeps all acknowledged writes after any end."""
    return start_server(appendonly="yes", appendfsync="always")


@pytest.fixture
def proxy(server: Server, redis_url: str) -> Iterator[Proxy]:
    """A bad line to the shared server."""
    proxy = Proxy(server.socket)
    yield proxy
    proxy.stop_listening()


@pytest.fixture
def spawn(redis_url: str) -> Iterator[Callable[..., Process]]:
    """`spawn(role, …)`: a consumer of the queue `q` in a process of its own."""
    processes: list[Process] = []

    def start(role: str, **options: Any) -> Process:
        processes.append(Process(redis_url, role, **options))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for longer than users would: a busy machine may need 10 s to start or to end a server."""
    assert embedded.acquire.__kwdefaults__ is not None
    monkeypatch.setitem(embedded.acquire.__kwdefaults__, "timeout", PATIENCE)
    for name in ("_CLOSE_TIMEOUT", "_PROBE_TIMEOUT"):
        monkeypatch.setattr(embedded, name, PATIENCE)


@pytest.fixture(params=["valkey", "6.2"])
def series(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    choose_binary(monkeypatch, request.param)
    return str(request.param)


@pytest.fixture
def folder() -> Iterator[Path]:
    yield from data_folder()


@pytest.fixture
def users(folder: Path) -> Iterator[Users]:
    yield from user_processes(folder)
