"""Failovers: who loses what, and everybody goes on."""

import asyncio
import itertools
import re
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.sentinel

import rqttl
from rqttl.doctor import examine
from rqttl.reaper import Reaper
from tests.aio.conftest import Run
from tests.cli.processes import output
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
    """A thread that sends by `enqueue`. `has_ids`: it may repeat calls: messages have ids, and the queue a window."""

    def __init__(self, enqueue: Callable[..., object], name: str, *, has_ids: bool) -> None:
        self._enqueue, self.name, self._has_ids = enqueue, name, has_ids
        self.done: list[str] = []
        self.errors: list[BaseException] = []
        self._stopped = False
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        for number in itertools.takewhile(lambda _: not self._stopped, itertools.count()):
            body = f"{self.name}-{number}"
            try:
                self._enqueue(body.encode(), id=body if self._has_ids else None)
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


class Producers(list[Producer]):
    """Several producers. The calls of the first one are repeatable."""

    def __init__(self, enqueue: Callable[..., object], count: int) -> None:
        super().__init__(Producer(enqueue, f"p{n}", has_ids=n == 0) for n in range(count))

    def go_on(self) -> None:
        for producer in self:
            producer.goes_on()

    def end(self, service: SentinelSet) -> None:
        """Stop them after a failover, and check what is left of their messages, and their errors."""
        service.settle()  # what the old primary took since the failover is gone now
        for producer in self:
            producer.stop()
        left = received(service)
        for producer in self:
            assert len({*producer.done} - left) <= 1
        assert self[0].errors == []
        assert {type(error) for producer in self for error in producer.errors} <= {rqttl.OutcomeUnknown}


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
        producers = Producers(queue.enqueue, 3)
        producers.go_on()

        how(service, producers.go_on)

        producers.go_on()
        idle.enqueue(b"wake up", id="1")
        until(lambda: consumed)
        producers.end(service)
        other.interrupt()
        consumer.join()


def test_each_producer_of_asyncio_loses_its_last_message_at_most_and_all_go_on(service: SentinelSet, run: Run) -> None:
    async def work() -> None:
        loop = asyncio.get_running_loop()
        async with rqttl.connect_async(service.url()) as broker:
            queue = await broker.declare_queue("q", duplicate_window=WINDOW)

            def enqueue(body: bytes, id: str | None) -> object:
                return asyncio.run_coroutine_threadsafe(queue.enqueue(body, id=id), loop).result()

            def produce() -> None:
                producers = Producers(enqueue, 2)
                producers.go_on()
                pause(service, producers.go_on)
                producers.go_on()
                producers.end(service)

            await loop.run_in_executor(None, produce)

    run(work())


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

            assert "q" in output(service.url(), "queue", "ls")
            assert "1 " in output(service.url(), "send", "q", "after")
            worker.until_journal("done", 2)
            expiring.enqueue(b"late", ttl="1ms")
            until(lambda: not reaper.run_once().failed and broker.queue("expiring/dead").stats(sweep=False).ready)
            assert re.search("ok +role +primary", output(service.url(), "doctor"))
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


def told(url: str) -> set[str]:
    """What the doctor warns of redundancy, without addresses."""
    with rqttl.connect(url) as broker:
        found = [one for one in examine(broker) if one.check in ("replicas", "sentinel") and one.level == "warning"]
    return {re.sub(r"127\.0\.0\.1:\d+", "SERVER", one.result) for one in found if "no write waits" not in one.result}


def test_the_doctor_names_a_replica_that_is_away_and_sentinels_too_few_for_a_failover(service: SentinelSet) -> None:
    until(lambda: told(service.url()) == set())

    service.replicas(service.primary())[0].kill()
    for sentinel in service.sentinels[1:]:
        sentinel.kill()

    until(lambda: len(told(service.url())) == 2)
    assert told(service.url()) == {
        "SERVER is away: one copy fewer, should the primary die",
        "1 of 3 Sentinels at work, 2 needed: no failover follows if the primary dies",
    }
