"""Workers under repeated stops, starved processes and outages of Redis.

The suite runs a few rounds of each, and `make test-worker` runs many; it also prints their numbers.
"""

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from operator import attrgetter
from pathlib import Path

import pytest
import redis

from rqttl import Broker, Message, Queue, RenewalEvent, Worker, connect
from rqttl.testing.fake import ClockedBroker
from rqttl.worker.health import Systemd
from tests.ports import free_port
from tests.servers import Server
from tests.waiting import PATIENCE, until
from tests.worker.conftest import Spawn
from tests.worker.processes import ids, running
from tests.worker.test_faults import answer

#: Rounds of stops, of starved processes and of outages, and the seconds of an outage. `make test-worker` takes more.
STOPS = int(os.environ.get("RQTTL_TEST_STOPS", "3"))
STARVED = int(os.environ.get("RQTTL_TEST_STARVED", "1"))
OUTAGES = int(os.environ.get("RQTTL_TEST_OUTAGES", "2"))
OUTAGE = float(os.environ.get("RQTTL_TEST_OUTAGE_SECONDS", "0"))

pytestmark = [pytest.mark.slow, pytest.mark.timeout(max(600, 30 * STOPS, (60 + OUTAGE) * OUTAGES)), pytest.mark.once]


def send(queue: Queue, start: int, count: int) -> None:
    """Send messages whose ids are numbers."""
    queue.enqueue_many([Message("x", id=str(start + number)) for number in range(count)])


def begun_again(journal: Sequence[Sequence[str]]) -> list[str]:
    """The messages that a handler has begun after one had finished them."""
    finished, again = set[str](), []
    for word, id, *_ in journal:
        if word == "begun" and id in finished:
            again.append(id)
        elif word == "done":
            finished.add(id)
    return again


# Stops


def test_stops_under_load_repeat_nothing_and_count_no_failure(spawn: Spawn, broker: Broker) -> None:
    queue = broker.declare_queue("q", lease="1h", max_deliveries=1)
    flags = ["q", "--processes", "2", "--delivery", "--grace", "1h"]
    before = 0
    for number in range(STOPS):
        send(queue, 400 * number, 400)
        worker = spawn(*flags, call="tracked")
        worker.until_journal("done", before + 40 + number)

        assert worker.stop() == 0, worker.log()

        stats = queue.stats()
        assert stats.leased == 0
        assert stats.acked == len(worker.journal("done")) == len(worker.journal("begun"))
        before = stats.acked
    assert spawn(*flags, "--burst", call="tracked").end() == 0
    assert Counter(ids(worker.journal("done"))) == {str(number): 1 for number in range(400 * STOPS)}
    stats = queue.stats()
    assert (stats.redelivered, sum(stats.deaths.values())) == (0, 0)
    assert "the grace is over" not in worker.log()  # no grace was over


# Starved processes


@pytest.mark.parametrize("run", range(STARVED))
@pytest.mark.parametrize("call, out", [("holds_the_gil", 1), ("blocks_the_loop", 2)])
def test_a_handler_that_starves_its_process_for_three_leases_loses_nothing(
    client: redis.Redis, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, call: str, out: int, run: int
) -> None:
    """The clock goes on with each renewal only, so that no slow machine ends a lease."""
    monkeypatch.setenv("RQTTL_TEST_HOME", str(tmp_path))
    broker, journal, renewed = ClockedBroker(client), tmp_path / "journal", list[int]()
    queue = broker.declare_queue("q", lease="1s", max_deliveries=1)
    queue.enqueue_many([f"a{run}", f"b{run}"])
    began = broker.clock.ms

    def go_on(event: RenewalEvent) -> None:
        renewed.append(event.count)
        broker.clock.set(broker.clock.ms + 300)

    broker.events.subscribe(go_on, RenewalEvent)
    handler, wants = f"tests.worker.handlers:{call}", call == "holds_the_gil"
    with running(Worker(broker, "q", call=handler, delivery=wants, processes=1, reaper=True)):
        until(lambda: journal.exists() and "begun" in journal.read_text())
        first = len(renewed)
        until(lambda: len(renewed) >= first + 12)
        assert "done" not in journal.read_text()
        (tmp_path / "go").touch()
        until(lambda: queue.stats().acked == 2)

    assert renewed[first : first + 12] == [out] * 12
    assert broker.clock.ms - began >= 3 * 1000
    assert (queue.stats().redelivered, sum(queue.stats().deaths.values())) == (0, 0)


@pytest.mark.parametrize("before", ["nothing", "longer"])
def test_a_short_lease_is_renewed_in_time(client: redis.Redis, monkeypatch: pytest.MonkeyPatch, before: str) -> None:
    """Only a renewal moves the clock, and without news the first one is due in an hour."""
    monkeypatch.setattr("rqttl.worker.queue_source.LONGEST_REST", 3_600_000)
    monkeypatch.setattr("rqttl.consuming.prefetch.LONGEST_REST", 3_600_000)
    broker, renewed, go = ClockedBroker(client), list[int](), threading.Event()
    queue = broker.declare_queue("q", lease="1h" if before == "longer" else "300ms", max_deliveries=1)
    broker.events.subscribe(lambda event: renewed.append(event.count), RenewalEvent)
    handed: list[str] = []

    def handle(value: str) -> None:
        handed.append(value)
        assert go.wait(PATIENCE)

    with running(Worker(broker, "q", call=handle, processes=0, threads=2, retry_delay=0)):
        if before == "longer":
            queue.enqueue("first")
            until(lambda: handed == ["first"])
            broker.set_policy("short", "q", {"lease": "300ms"})
        queue.enqueue("second")
        until(lambda: "second" in handed)
        until(lambda: renewed)
        go.set()
        until(lambda: queue.stats().depth == 0)


# Outages


@pytest.mark.parametrize("way", ["stopped", "killed"])
def test_outages_end_no_worker_and_repeat_nothing_that_has_finished(
    spawn: Spawn, start_server: Callable[..., Server], way: str
) -> None:
    server, port = start_server(appendonly="yes", appendfsync="always"), free_port()
    with connect(server.url) as broker:
        queue = broker.declare_queue("q", lease="20s")
        worker = spawn(
            "q --processes 2 --delivery --reaper", "--health", f"127.0.0.1:{port}", call="tracked", url=server.url
        )
        for number in range(OUTAGES):
            until(lambda: answer(port, "readyz") == 200)
            send(queue, 300 * number, 300)
            worker.until_journal("done", 300 * number + 30)

            server.stop() if way == "stopped" else server.kill()
            until(lambda: answer(port, "readyz") == 503)
            ends = time.monotonic() + OUTAGE
            while True:
                assert (answer(port, "livez"), answer(port, "readyz")) == (200, 503)
                if time.monotonic() >= ends:
                    break
                time.sleep(0.2)
            server.start()

            until(lambda: queue.stats().depth == 0)
        until(lambda: answer(port, "readyz") == 200)
        assert worker.stop() == 0
        assert queue.stats().acked == 300 * OUTAGES
    assert set(ids(worker.journal("done"))) == {str(number) for number in range(300 * OUTAGES)}
    assert begun_again(worker.journal()) == []


# A worker that hangs


@pytest.mark.parametrize(
    "place, word",
    [("_fetcher._turn", "fetcher"), ("_sources.renewer._turn", "renewer"), ("_supervisor.turn", "supervision")],
)
def test_a_worker_with_a_loop_that_hangs_is_not_alive(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, place: str, word: str
) -> None:
    for limit in ("TURNS", "TURNS_WHILE_AWAY"):
        monkeypatch.setattr(f"rqttl.worker.health.{limit}", 2.0)
    monkeypatch.setattr("rqttl.worker.fetcher.TURN", 200)
    monkeypatch.setattr("rqttl.worker.health.SIGN_EVERY", 0.2)
    broker.declare_queue("q")
    signs = list[float]()
    monkeypatch.setenv("WATCHDOG_USEC", "5000000")
    monkeypatch.setattr(Systemd, "notify", lambda _, state: signs.extend([time.monotonic()] * (state == "WATCHDOG=1")))
    worker = Worker(broker, "q", call=print, processes=0, health="127.0.0.1:0")
    hangs, hung, go = threading.Event(), threading.Event(), threading.Event()
    part, _, name = place.rpartition(".")
    loop = attrgetter(part)(worker)
    usual = getattr(loop, name)

    def turn(*arguments: object) -> None:
        if hangs.is_set():
            hung.set()
            assert go.wait(PATIENCE)
        usual(*arguments)

    monkeypatch.setattr(loop, name, turn)
    with running(worker):
        until(lambda: worker.health_port is not None and answer(worker.health_port, "readyz") == 200)
        port = worker.health_port
        assert port is not None
        hangs.set()
        assert hung.wait(PATIENCE)
        until(lambda: word in worker.trouble())
        turned = worker._turned_at
        until(lambda: part == "_supervisor" or worker._turned_at > turned)  # a judgement before that may still be good

        before = len(signs)
        assert (answer(port, "livez"), answer(port, "readyz")) == (503, 503)
        until(lambda: part == "_supervisor" or worker._turned_at > turned + 0.6)  # two signs were due
        assert len(signs) == before
        go.set()
        hangs.clear()
        until(lambda: answer(port, "livez") == 200)
        until(lambda: len(signs) > before)
