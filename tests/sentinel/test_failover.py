"""Failovers: everybody goes on, and nothing is lost but what replicas had not got.

Redis may answer a client a moment before it sends the call to its replicas. A primary that dies or stops in that moment
loses it: the last message of a producer, which has one call under way.
"""

import asyncio
import itertools
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.sentinel

import rqttl
from rqttl.store.driver import driver_of
from tests.aio.conftest import Run
from tests.servers import SentinelSet, Server
from tests.waiting import until
from tests.worker.processes import WorkerProcess

pytestmark = [pytest.mark.slow, pytest.mark.once]

WINDOW = "1h"
#: Seconds between two messages of a producer: Sentinels need the processor, too.
PACE = 0.003


def kill(service: SentinelSet, primary: Server) -> None:
    """The primary dies. It comes back after its failover."""
    primary.kill()
    _await_failover(service, primary)
    primary.start()


def pause(service: SentinelSet, primary: Server) -> None:
    """The primary hangs, and comes back after its failover as the primary that it takes itself for.

    What it then confirms is gone when it becomes a replica, which takes Sentinel 10 s.
    """
    primary.process.send_signal(signal.SIGSTOP)
    _await_failover(service, primary)
    primary.process.send_signal(signal.SIGCONT)
    until(lambda: is_replica(primary))


def kill_with_the_first_sentinel(service: SentinelSet, primary: Server) -> None:
    service.sentinels[0].kill()
    kill(service, primary)


def pause_after_a_restart_of_all_sentinels(service: SentinelSet, primary: Server) -> None:
    for sentinel in service.sentinels:
        sentinel.kill()
    for sentinel in service.sentinels:
        sentinel.start()
    pause(service, primary)


def _await_failover(service: SentinelSet, primary: Server) -> None:
    until(lambda: service.primary() is not primary)


HOWS = [kill, kill_with_the_first_sentinel, pause_after_a_restart_of_all_sentinels]


def is_replica(server: Server) -> bool:
    try:
        with server.client() as client:
            return bool(client.info("replication")["role"] == "slave")
    except redis.ConnectionError:  # Sentinel closes the connections of a server that it makes a replica
        return False


class Actor:
    """A thread that works until it is stopped. `done` has what succeeded, `errors` what did not."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.errors: list[BaseException] = []
        self.stopped = threading.Event()
        self._thread = threading.Thread(target=self.work, daemon=True)
        self._thread.start()

    def work(self) -> None:
        raise NotImplementedError

    def goes_on(self) -> None:
        """Wait until it has done some more."""
        before = len(self.done)
        until(lambda: len(self.done) > before + 20)

    def stop(self) -> None:
        self.stopped.set()
        self._thread.join()


class Producer(Actor):
    """Sends. `has_ids`: its calls are repeatable, because its messages have ids, and the queue a window."""

    def __init__(self, queue: rqttl.Queue, name: str, *, has_ids: bool) -> None:
        self._queue, self._name, self._has_ids = queue, name, has_ids
        self._at: list[float] = []
        super().__init__()

    def work(self) -> None:
        for number in itertools.takewhile(lambda _: not self.stopped.wait(PACE), itertools.count()):
            body = f"{self._name}-{number}"
            try:
                self._queue.enqueue(body.encode(), id=body if self._has_ids else None)
                self.done.append(body)
                self._at.append(time.monotonic())
            except Exception as error:  # noqa: BLE001  # the test looks at it
                self.errors.append(error)

    def kept(self) -> set[str]:
        """What was confirmed, without the last message before the failover."""
        return kept(self.done, self._at)


def kept(done: list[str], at: list[float]) -> set[str]:
    """What was confirmed `at` these times, without the last one before the longest pause."""
    last = max(range(len(at) - 1), key=lambda n: at[n + 1] - at[n])
    return {*done[:last], *done[last + 1 :]}


class Consumer(Actor):
    """Consumes. While its queue is empty, it is blocked at the primary."""

    def __init__(self, broker: rqttl.Broker, queue: str) -> None:
        self._broker, self._queue = broker, queue
        super().__init__()

    def work(self) -> None:
        with self._broker.consume([self._queue], prefetch=10) as deliveries:
            for delivery in deliveries:
                self.done.append(delivery.body.decode())
                with suppress(rqttl.LeaseLost, rqttl.OutcomeUnknown):
                    delivery.ack()


@pytest.mark.parametrize("how", HOWS)
def test_only_what_was_under_way_is_lost_and_producers_and_consumers_go_on(
    service: SentinelSet, how: Callable[[SentinelSet, Server], None]
) -> None:
    with rqttl.connect(service.url()) as broker, rqttl.connect(service.url()) as other:
        queue = broker.declare_queue("q", duplicate_window=WINDOW)
        idle = broker.declare_queue("idle")
        consumer, waiter = Consumer(other, "q"), Consumer(other, "idle")
        producers = [Producer(queue, f"p{n}", has_ids=n == 0) for n in range(3)]
        for producer in producers:
            producer.goes_on()
        primary = service.primary()

        how(service, primary)

        for producer in producers:
            producer.goes_on()
        idle.enqueue(b"wake up", id="1")
        until(lambda: waiter.done)
        for producer in producers:
            producer.stop()
        confirmed = set[str]().union(*[producer.kept() for producer in producers])
        until(lambda: confirmed <= set(consumer.done))
        other.interrupt()
        consumer.stop()
        waiter.stop()
        assert producers[0].errors == []
        assert {type(error) for producer in producers for error in producer.errors} <= {rqttl.OutcomeUnknown}


class Tasks:
    """Two producers and a consumer of asyncio. The calls of the first producer are repeatable."""

    def __init__(self, queue: rqttl.AsyncQueue) -> None:
        self._queue = queue
        self.confirmed: list[list[str]] = [[], []]
        self._at: list[list[float]] = [[], []]
        self.errors: list[list[BaseException]] = [[], []]
        self.consumed: set[str] = set()
        self._stopped = False
        self._producers = [asyncio.create_task(self._produce(which)) for which in range(2)]
        self._consumer = asyncio.create_task(self._consume())

    async def _produce(self, which: int) -> None:
        for number in itertools.takewhile(lambda _: not self._stopped, itertools.count()):
            body = f"{which}-{number}"
            try:
                await self._queue.enqueue(body.encode(), id=None if which else body)
                self.confirmed[which].append(body)
                self._at[which].append(time.monotonic())
            except Exception as error:  # noqa: BLE001  # the test looks at it
                self.errors[which].append(error)
            await asyncio.sleep(PACE)

    async def _consume(self) -> None:
        async with self._queue.consume(10) as deliveries:
            async for delivery in deliveries:
                self.consumed.add(delivery.body.decode())
                with suppress(rqttl.LeaseLost, rqttl.OutcomeUnknown):
                    await delivery.ack()

    async def go_on(self) -> None:
        before = [*map(len, self.confirmed)]
        while any(len(now) < then + 20 for now, then in zip(self.confirmed, before, strict=True)):
            await asyncio.sleep(0.01)

    async def end(self) -> None:
        """End when all that was confirmed is consumed."""
        self._stopped = True
        await asyncio.gather(*self._producers)
        while not kept(self.confirmed[0], self._at[0]) | kept(self.confirmed[1], self._at[1]) <= self.consumed:
            await asyncio.sleep(0.01)
        self._consumer.cancel()
        await asyncio.gather(self._consumer, return_exceptions=True)


@pytest.mark.parametrize("run, how", [("asyncio", kill), ("uvloop", pause)], indirect=["run"])
def test_asyncio_loses_only_what_was_under_way_and_goes_on(
    service: SentinelSet, run: Run, how: Callable[[SentinelSet, Server], None]
) -> None:
    async def work() -> None:
        async with rqttl.connect_async(service.url()) as broker:
            tasks = Tasks(await broker.declare_queue("q", duplicate_window=WINDOW))
            await tasks.go_on()
            primary, in_thread = service.primary(), asyncio.get_running_loop().run_in_executor
            await in_thread(None, how, service, primary)
            await tasks.go_on()
            await tasks.end()
        assert tasks.errors[0] == []
        assert {type(error) for error in tasks.errors[1]} <= {rqttl.OutcomeUnknown}

    run(work())


def test_a_worker_goes_on(service: SentinelSet, tmp_path: Path) -> None:
    with rqttl.connect(service.url()) as broker:
        queue = broker.declare_queue("q")
        worker = WorkerProcess(service.url(), tmp_path, "q", call="plain")
        try:
            queue.enqueue(b"before", id="before")
            worker.until_journal("done")
            kill(service, service.primary())
            queue.enqueue(b"after", id="after")
            worker.until_journal("done", 2)
            assert worker.stop() == 0
        finally:
            worker.remove()


def test_a_client_of_master_for_lends_its_sentinels(service: SentinelSet) -> None:
    places = [("127.0.0.1", one.port) for one in service.sentinels]
    client: Any = redis.sentinel.Sentinel(places, socket_timeout=5).master_for(service.service, db=3)
    with rqttl.Broker(client) as broker:
        queue = broker.declare_queue("q")
        kill(service, service.primary())

        queue.enqueue(b"after")

        assert driver_of(broker).store.address.database == 3
        assert f"redis+sentinel://127.0.0.1:{places[0][1]}/main/3" in repr(broker)
