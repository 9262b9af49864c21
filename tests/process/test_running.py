"""`queue.run` in a process of its own: signals, and servers that go away."""

import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
import redis

from rqttl import Broker, Delivery, Message, Queue, RunCounts, WaitEvent, connect
from tests.process.consuming import Process
from tests.process.leases import LONG, end_leases
from tests.servers import Server
from tests.waiting import PATIENCE, until

pytestmark = [pytest.mark.once, pytest.mark.slow]

BOTH = pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])


@pytest.fixture
def queue(broker: Broker) -> Queue:
    queue = broker.declare_queue("q", max_deliveries=2)
    queue.enqueue_many([Message(b"x", id=str(i)) for i in range(1, 5)])
    return queue


def found(queue: Queue) -> list[tuple[str, int]]:
    """Take all that is ready: ids and delivery counts."""
    return [(delivery.id, delivery.delivery_count) for delivery in queue.receive_many(10)]


# Signals


@BOTH
@pytest.mark.parametrize("threads", [1, 2])
def test_a_signal_lets_the_handlers_finish_and_frees_the_rest_at_once(
    queue: Queue, spawn: Callable[..., Process], threads: int, number: signal.Signals
) -> None:
    worker = spawn("run", threads=threads)
    begun = sorted(worker.hear() for _ in range(threads))
    assert begun == [["begun", str(i)] for i in range(1, threads + 1)]

    worker.send(number)
    until(lambda: queue.stats().ready == 4 - threads)
    assert found(queue) == [(str(i), 1) for i in range(threads + 1, 5)]
    for _ in range(threads):
        worker.go_on()

    assert sorted(worker.hear() for _ in range(threads)) == [["done", str(i)] for i in range(1, threads + 1)]
    assert worker.hear() == ["counts", str(threads), "0", "0"]
    code, told = worker.end()
    assert code == 0
    assert f"stopped after {threads} message" in told
    assert queue.stats().acked == threads


@BOTH
@pytest.mark.parametrize("threads", [1, 2])
def test_a_second_signal_ends_the_worker_as_ever(
    queue: Queue, client: redis.Redis, spawn: Callable[..., Process], threads: int, number: signal.Signals
) -> None:
    queue.update(lease=LONG)
    worker = spawn("run", threads=threads, same=0)
    for _ in range(threads):
        worker.hear()

    worker.send(number)
    until(lambda: queue.stats().ready == 4 - threads)
    worker.send(number)
    while not worker.ends(3):  # Python may handle the first signal late, together with the second one
        worker.send(number)

    code, told = worker.end()
    assert code == -number
    assert ("KeyboardInterrupt" in told) == (number == signal.SIGINT)
    assert queue.stats().acked == 0
    end_leases(client)  # SIGTERM leaves no time to give anything back
    assert sorted(found(queue)) == [(str(i), 2 if i <= threads else 1) for i in range(1, 5)]


@pytest.mark.parametrize("stop", [None, threading.Event()])
def test_a_signal_reaches_the_program_and_ends_only_a_run_without_a_stop_of_its_own(
    queue: Queue, stop: threading.Event | None
) -> None:
    got: list[int] = []
    handled: list[str] = []

    def handle(delivery: Delivery) -> None:
        if not handled:
            signal.raise_signal(signal.SIGTERM)
        handled.append(delivery.id)

    before = signal.signal(signal.SIGTERM, lambda number, _: got.append(number))
    try:
        queue.run(handle, wait="0s", stop=stop)
    finally:
        signal.signal(signal.SIGTERM, before)

    assert got == [signal.SIGTERM]
    assert len(handled) == (1 if stop is None else 4)


# Servers that go away


class Running:
    """`queue.run` in a thread, on a server that goes away, which it notices soon."""

    def __init__(self, server: Server, broker: Broker, pool: ThreadPoolExecutor, log: pytest.LogCaptureFixture) -> None:
        self.server, self.queue, self.stop = server, broker.declare_queue("q", lease="2s"), threading.Event()
        self.events, self._pool, self._log = broker.events, pool, log

    def start(self, handler: Callable[[Delivery], Any], threads: int = 1) -> Future[RunCounts]:
        return self._pool.submit(self.queue.run, handler, threads, stop=self.stop)

    def await_log(self, text: str) -> None:
        until(lambda: text in self._log.text)


@pytest.fixture
def running(durable: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Iterator[Running]:
    monkeypatch.setattr("rqttl.store.exchanges.PAUSES", (0.01,))
    with connect(durable.url) as broker, ThreadPoolExecutor(1) as pool:
        yield Running(durable, broker, pool, caplog)


def test_a_server_that_is_away_at_the_start_is_waited_for(running: Running) -> None:
    running.queue.enqueue(b"x")
    running.server.kill()
    counts = running.start(lambda _: running.stop.set())
    running.await_log("Redis is away")
    running.server.start()

    assert counts.result(timeout=PATIENCE) == RunCounts(1, 0, 0)


def test_a_run_that_stops_while_the_server_is_away_and_owes_nothing_ends_well(running: Running) -> None:
    waits = threading.Event()
    running.events.subscribe(lambda _: waits.set(), WaitEvent)
    counts = running.start(print)
    assert waits.wait(PATIENCE)
    running.server.kill()
    running.await_log("Redis is away")
    running.stop.set()

    assert counts.result(timeout=PATIENCE) == RunCounts(0, 0, 0)
    running.server.start()


@pytest.mark.parametrize("threads", [1, 2])
def test_a_failure_that_cannot_be_given_back_comes_again_when_its_lease_ends(running: Running, threads: int) -> None:
    deliveries: list[int] = []

    def handle(delivery: Delivery) -> None:
        deliveries.append(delivery.delivery_count)
        if len(deliveries) == 1:
            running.queue.update(lease=LONG)  # of the next delivery
            running.server.kill()
            raise RuntimeError("while Redis is away")
        running.stop.set()

    running.queue.enqueue(b"x")
    counts = running.start(handle, threads)
    running.await_log("could not settle")
    running.server.start()

    assert counts.result(timeout=PATIENCE) == RunCounts(1, 1, 0)
    assert deliveries == [1, 2]
    assert (running.queue.stats().acked, running.queue.stats().leased) == (1, 0)
