"""Failovers: who loses what, and everybody goes on."""

import asyncio
import itertools
import re
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.sentinel

import rqttl
from rqttl.reaper import Reaper
from tests.aio.conftest import Run
from tests.cli.processes import command, environment
from tests.sentinel.test_asking import CONNECTS, refusal
from tests.servers import SentinelSet, Server, find_binary, server_binary
from tests.waiting import until
from tests.worker.processes import WorkerProcess

pytestmark = [pytest.mark.slow, pytest.mark.once]

WINDOW = "1h"


def kill(service: SentinelSet, _: object = None) -> None:
    """The primary dies, and comes back after its failover."""
    primary = service.primary()
    primary.kill()
    until(lambda: service.primary() is not primary)
    primary.start()


def pause(service: SentinelSet, go_on: Callable[[], None]) -> None:
    """The primary hangs. When producers have gone on, it comes back as the primary that it takes itself for."""
    primary = service.primary()
    primary.process.send_signal(signal.SIGSTOP)
    until(lambda: service.primary() is not primary)
    go_on()
    primary.process.send_signal(signal.SIGCONT)


def kill_with_the_first_sentinel(service: SentinelSet, _: Callable[[], None]) -> None:
    service.sentinels[0].kill()
    kill(service)


def pause_after_a_restart_of_all_sentinels(service: SentinelSet, go_on: Callable[[], None]) -> None:
    for sentinel in service.sentinels:
        sentinel.kill()
    for sentinel in service.sentinels:
        sentinel.start()
    until(lambda: all(map(is_watched, service.sentinels)))
    pause(service, go_on)


def is_watched(sentinel: Server) -> bool:
    """Return True if the watchers of two brokers listen, each to two channels."""
    with sentinel.client() as client:
        return [one["sub"] for one in client.client_list()].count("2") == 2


HOWS = [kill_with_the_first_sentinel, pause, pause_after_a_restart_of_all_sentinels]


class Producer:
    """A thread that sends. `has_ids`: its calls are repeatable: its messages have ids, and the queue a window."""

    def __init__(self, queue: rqttl.Queue, name: str, *, has_ids: bool) -> None:
        self._queue, self._name, self._has_ids = queue, name, has_ids
        self.done: list[str] = []
        self.errors: list[BaseException] = []
        self._stopped = False
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        for number in itertools.takewhile(lambda _: not self._stopped, itertools.count()):
            body = f"{self._name}-{number}"
            try:
                self._queue.enqueue(body.encode(), id=body if self._has_ids else None)
                self.done.append(body)
            except Exception as error:  # noqa: BLE001  # the test looks at it
                self.errors.append(error)

    def goes_on(self) -> None:
        """Wait until it has sent some more."""
        before = len(self.done)
        until(lambda: len(self.done) > before + 20)

    def stop(self) -> None:
        self._stopped = True
        self._thread.join()


def consume(broker: rqttl.Broker, bodies: list[bytes]) -> None:
    """Consume a queue. While it is empty, the consumer is blocked at the primary."""
    with broker.consume(["idle"]) as deliveries:
        bodies.extend(delivery.body for delivery in deliveries)


def received(service: SentinelSet, name: str = "q") -> set[str]:
    """All messages that are left."""
    with rqttl.connect(service.url()) as broker:
        batches = iter(lambda: broker.queue(name).receive_many(10_000, auto_ack=True), [])
        return {one.body.decode() for batch in batches for one in batch}


# Redis sends a reply to its client and the write to its replicas one after the other. What stops it between the two
# takes the last message of a producer with it, but never two messages of one that waits for replies.


@pytest.mark.parametrize("how", HOWS)
def test_each_producer_loses_its_last_message_at_most_and_all_go_on(
    service: SentinelSet, how: Callable[[SentinelSet, Callable[[], None]], None]
) -> None:
    with rqttl.connect(service.url()) as broker, rqttl.connect(service.url()) as other:
        queue = broker.declare_queue("q", duplicate_window=WINDOW)
        idle = broker.declare_queue("idle")
        consumed: list[bytes] = []
        consumer = threading.Thread(target=consume, args=[other, consumed], daemon=True)
        consumer.start()
        producers = [Producer(queue, f"p{n}", has_ids=n == 0) for n in range(3)]

        def go_on() -> None:
            for producer in producers:
                producer.goes_on()

        go_on()
        how(service, go_on)

        go_on()
        idle.enqueue(b"wake up", id="1")
        until(lambda: consumed)
        service.settle()  # what the old primary took since the failover is gone now
        for producer in producers:
            producer.stop()
        other.interrupt()
        consumer.join()
        left = received(service)
        for producer in producers:
            assert len({*producer.done} - left) <= 1
        assert producers[0].errors == []
        assert {type(error) for producer in producers for error in producer.errors} <= {rqttl.OutcomeUnknown}


class Tasks:
    """Two producers of asyncio. The calls of the first producer are repeatable."""

    def __init__(self, queue: rqttl.AsyncQueue) -> None:
        self._queue = queue
        self.confirmed: list[list[str]] = [[], []]
        self.errors: list[list[BaseException]] = [[], []]
        self._stopped = False
        self._producers = [asyncio.create_task(self._produce(which)) for which in range(2)]

    async def _produce(self, which: int) -> None:
        for number in itertools.takewhile(lambda _: not self._stopped, itertools.count()):
            body = f"{which}-{number}"
            try:
                await self._queue.enqueue(body.encode(), id=None if which else body)
                self.confirmed[which].append(body)
            except Exception as error:  # noqa: BLE001  # the test looks at it
                self.errors[which].append(error)

    async def go_on(self) -> None:
        before = [*map(len, self.confirmed)]
        while any(len(now) < then + 20 for now, then in zip(self.confirmed, before, strict=True)):
            await asyncio.sleep(0.01)

    async def end(self) -> None:
        self._stopped = True
        await asyncio.gather(*self._producers)


def test_each_producer_of_asyncio_loses_its_last_message_at_most_and_all_go_on(service: SentinelSet, run: Run) -> None:
    async def work() -> None:
        async with rqttl.connect_async(service.url()) as broker:
            tasks = Tasks(await broker.declare_queue("q", duplicate_window=WINDOW))
            await tasks.go_on()
            loop = asyncio.get_running_loop()
            in_thread = loop.run_in_executor
            await in_thread(
                None, pause, service, lambda: asyncio.run_coroutine_threadsafe(tasks.go_on(), loop).result()
            )
            await tasks.go_on()
            await in_thread(None, service.settle)
            await tasks.end()
        left = received(service)
        for confirmed in tasks.confirmed:
            assert len({*confirmed} - left) <= 1
        assert tasks.errors[0] == []
        assert {type(error) for error in tasks.errors[1]} <= {rqttl.OutcomeUnknown}

    run(work())


def rqttl_command(url: str, *words: str) -> str:
    done = subprocess.run(command("--url", url, *words), env=environment(), capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


def test_a_worker_a_reaper_commands_and_a_client_of_master_for_go_on(service: SentinelSet, tmp_path: Path) -> None:
    places = [("127.0.0.1", one.port) for one in service.sentinels]
    client: Any = redis.sentinel.Sentinel(places, socket_timeout=5).master_for(service.service)
    with rqttl.Broker(client) as broker:
        assert f"redis+sentinel://127.0.0.1:{places[0][1]}/main/0" in repr(broker)
        queue = broker.declare_queue("q")
        expiring = broker.declare_queue("expiring", dead_letter="expiring/dead")
        broker.declare_queue("expiring/dead")
        reaper = Reaper(broker)
        worker = WorkerProcess(service.url(), tmp_path, "q", call="plain")
        try:
            queue.enqueue(b"before", id="before")
            worker.until_journal("done")
            assert not reaper.run_once().failed

            kill(service)

            assert "1 " in rqttl_command(service.url(), "send", "q", "after")
            worker.until_journal("done", 2)
            expiring.enqueue(b"late", ttl="1ms")
            until(lambda: not reaper.run_once().failed and broker.queue("expiring/dead").stats(sweep=False).ready)
            assert re.search("ok +role +primary", rqttl_command(service.url(), "doctor"))
            assert worker.stop() == 0
        finally:
            worker.remove()


def test_servers_and_sentinels_of_redis_6_with_passwords() -> None:
    binary = find_binary("6.2") or server_binary("7.0")  # Python 3.13 has no package with 6.2
    service = SentinelSet(binary, password="s3cret", of_sentinels="0ther")
    try:
        url = service.url(":s3cret@", "?sentinel_password=0ther")
        with rqttl.connect(url) as broker:
            queue = broker.declare_queue("q")
            kill(service)
            queue.enqueue(b"after", id="after")

            async def bodies() -> list[bytes]:
                async with rqttl.connect_async(url) as other:
                    return [one.body for one in await other.queue("q").peek(10)]

            assert asyncio.run(bodies()) == [b"after"]
        for wrong in (service.url("", "?sentinel_password=0ther"), service.url(":s3cret@")):
            with rqttl.connect(wrong, patience=0) as stranger, pytest.raises((rqttl.InvalidInput, redis.RedisError)):
                stranger.queues()
    finally:
        service.remove()


@CONNECTS
def test_a_sentinel_where_a_server_belongs(service: SentinelSet, connect: Any) -> None:
    line = refusal(connect, f"redis://127.0.0.1:{service.sentinels[0].port}")

    hint = " (the address of a Sentinel? Then use redis+sentinel://host:port/service)"
    assert re.fullmatch(r"unknown command '\w+'" + re.escape(hint), line)
