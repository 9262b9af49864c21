"""The workloads whose instructions `tests.bench.instructions` counts. It runs this file with the code of either tree.

    python workloads.py SOCKET server|client [workload ...]

Each workload is prepared on a new queue, and worked between two marks. A mark makes callgrind write down its count:
the server then asks for its working directory, the client for its parent process. Neither does so otherwise. This file
uses only the public API, so that it also runs with an older tree.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import redis

import rqttl
from rqttl.types import Message

BODY = bytes(range(200))
Work = Callable[[], object]
ROUNDS = 3
MOMENT = timedelta(milliseconds=1)
HOUR = timedelta(hours=1)


class Workload(NamedTuple):
    """Work for so many messages. `prepare` gets a broker and the name of a new queue, and returns the work.

    With `raw` it gets a client of redis-py in place of the broker.
    """

    name: str
    messages: int
    prepare: Callable[[Any, str], Work]
    raw: bool = False


def _named(count: int, prefix: str = "", **fields: Any) -> list[Message]:
    return [Message(BODY, id=f"{prefix}order-{i:06d}", **fields) for i in range(count)]


def _filled(broker: rqttl.Broker, name: str, count: int, **options: Any) -> rqttl.Queue:
    queue = broker.declare_queue(name, **options)
    queue.enqueue_many([BODY] * count)
    return queue


def _leased(broker: rqttl.Broker, name: str, count: int, **options: Any) -> list[rqttl.Delivery]:
    return _filled(broker, name, count, **options).receive_many(count, lease=HOUR)


def _settling(broker: rqttl.Broker, name: str, settle: Callable[[rqttl.Delivery], object], **options: Any) -> Work:
    first, *others = _leased(broker, name, 101, **options)
    settle(first)
    return lambda: [settle(delivery) for delivery in others]


def _with_letters(broker: rqttl.Broker, name: str, count: int) -> tuple[rqttl.Queue, rqttl.Queue]:
    """A queue with messages that have expired, and its dead-letter queue."""
    dead = broker.declare_queue(f"{name}/dead")
    queue = broker.declare_queue(name, dead_letter=dead.name)
    queue.enqueue(BODY)
    queue.enqueue_many([Message(BODY, ttl=MOMENT)] * count)
    time.sleep(0.01)
    return queue, dead


def enqueue(broker: rqttl.Broker, name: str, body: object = BODY) -> Work:
    queue = _filled(broker, name, 1)
    queue.enqueue(body)
    return lambda: [queue.enqueue(body) for _ in range(100)]


def enqueue_with_id_and_ttl(broker: rqttl.Broker, name: str) -> Work:
    queue = broker.declare_queue(name)
    ids = [f"order-{i:06d}" for i in range(101)]
    queue.enqueue(BODY, id=ids.pop(), ttl=HOUR)
    return lambda: [queue.enqueue(BODY, id=id, ttl=HOUR) for id in ids]


def enqueue_batches(broker: rqttl.Broker, name: str, body: object = BODY) -> Work:
    queue = _filled(broker, name, 100)
    return lambda: [queue.enqueue_many([body] * 100) for _ in range(10)]


def enqueue_batches_with_id_and_ttl(broker: rqttl.Broker, name: str) -> Work:
    queue = broker.declare_queue(name)
    batches = [_named(100, f"{batch}-", ttl=HOUR) for batch in range(11)]
    queue.enqueue_many(batches.pop())
    return lambda: [queue.enqueue_many(batch) for batch in batches]


def _enqueue_over_limit(broker: rqttl.Broker, name: str, overflow: Any) -> Work:
    queue = _filled(broker, name, 100, max_length=100, overflow=overflow)

    def work(count: int = 100) -> None:
        for _ in range(count):
            try:
                queue.enqueue(BODY)
            except rqttl.QueueFull:
                continue

    work(1)
    return work


def enqueue_known_window(broker: rqttl.Broker, name: str) -> Work:
    queue = broker.declare_queue(name, duplicate_window=HOUR)
    ids = [f"order-{i:06d}" for i in range(101)]
    queue.enqueue(BODY, id=ids.pop())
    return lambda: [queue.enqueue(BODY, id=id) for id in ids]


def enqueue_duplicates(broker: rqttl.Broker, name: str) -> Work:
    work = enqueue_known_window(broker, name)
    work()
    return work


def receive(broker: rqttl.Broker, name: str) -> Work:
    queue = _filled(broker, name, 101)
    queue.receive()
    return lambda: [queue.receive() for _ in range(100)]


def ack(broker: rqttl.Broker, name: str) -> Work:
    return _settling(broker, name, rqttl.Delivery.ack)


def nack(broker: rqttl.Broker, name: str) -> Work:
    return _settling(broker, name, rqttl.Delivery.nack)


def reject(broker: rqttl.Broker, name: str) -> Work:
    dead = broker.declare_queue(f"{name}/dead")
    return _settling(broker, name, rqttl.Delivery.reject, dead_letter=dead.name)


def receive_and_ack(broker: rqttl.Broker, name: str) -> Work:
    queue = _filled(broker, name, 101)

    def work(count: int = 100) -> None:
        for _ in range(count):
            delivery = queue.receive()
            assert delivery is not None  # the queue holds so many
            delivery.ack()

    work(1)
    return work


def receive_and_ack_batches(broker: rqttl.Broker, name: str) -> Work:
    queue = _filled(broker, name, 1100)

    def work(count: int = 10) -> None:
        for _ in range(count):
            queue.ack_many(queue.receive_many(100))

    work(1)
    return work


def consume(broker: rqttl.Broker, name: str) -> Work:
    queue = _filled(broker, name, 1000)

    def work() -> None:
        with queue.consume(prefetch=100, lease=HOUR, wait=timedelta(0)) as deliveries:
            for delivery in deliveries:
                delivery.ack()

    return work


def wake_up(client: Any, name: str) -> Work:
    """Each message wakes a consumer, which waits again before the next one."""
    broker = rqttl.Broker(client)
    queue, waits = broker.declare_queue(name), threading.Semaphore(0)
    broker.events.subscribe(lambda _: waits.release(), rqttl.WaitEvent)

    def consume() -> None:
        with queue.consume(prefetch=100, lease=HOUR) as deliveries:
            for delivery in islice(deliveries, 100):
                delivery.ack()

    def work() -> None:
        consumer = threading.Thread(target=consume)
        consumer.start()
        for _ in range(100):
            waits.acquire()
            queue.enqueue(BODY)
        consumer.join()

    return work


def _with_loop(client: Any, name: str, work: Callable[[rqttl.AsyncQueue], Any]) -> Work:
    """Work of asyncio on a queue. A first turn of it opens the connection."""
    loop = asyncio.new_event_loop()
    broker = rqttl.connect_async(f"unix://{client.connection_pool.connection_kwargs['path']}")
    queue = loop.run_until_complete(broker.declare_queue(name))
    loop.run_until_complete(work(queue))
    return lambda: loop.run_until_complete(work(queue))


def enqueue_in_tasks(client: Any, name: str, tasks: int) -> Work:
    """Each task sends one message after the other."""

    async def send(queue: rqttl.AsyncQueue, count: int) -> None:
        for _ in range(count):
            await queue.enqueue(BODY)

    async def work(queue: rqttl.AsyncQueue) -> None:
        await asyncio.gather(*[send(queue, 1000 // tasks) for _ in range(tasks)])

    return _with_loop(client, name, work)


def consume_in_loop(client: Any, name: str) -> Work:
    """The messages are there before; `consume` of asyncio takes and acks them."""

    async def work(queue: rqttl.AsyncQueue) -> None:
        async with queue.consume(prefetch=100, lease=HOUR, wait=timedelta(0)) as deliveries:
            async for delivery in deliveries:
                await delivery.ack()

    done = _with_loop(client, name, work)
    rqttl.Broker(client).queue(name).enqueue_many([BODY] * 1000)
    return done


def sweep_leases(broker: rqttl.Broker, name: str) -> Work:
    queue = _filled(broker, name, 251)
    queue.receive()
    queue.sweep()
    queue.receive_many(250, lease=MOMENT)
    time.sleep(0.01)
    return queue.sweep


def sweep_expired(broker: rqttl.Broker, name: str) -> Work:
    return _with_letters(broker, name, 250)[0].sweep


def redrive(broker: rqttl.Broker, name: str) -> Work:
    queue, dead = _with_letters(broker, name, 100)
    queue.sweep()
    return dead.redrive


WORKLOADS = (
    Workload("enqueue", 100, enqueue),
    Workload("enqueue of a value", 100, partial(enqueue, body={"item": 7})),
    Workload("enqueue, id and ttl", 100, enqueue_with_id_and_ttl),
    Workload("enqueue_many of 100", 1000, enqueue_batches),
    Workload("enqueue_many of 100 values", 1000, partial(enqueue_batches, body="x" * 200)),
    Workload("enqueue_many of 100, id and ttl", 1000, enqueue_batches_with_id_and_ttl),
    Workload("enqueue, full drop-head", 100, partial(_enqueue_over_limit, overflow="drop-head")),
    Workload("enqueue, full reject-publish", 100, partial(_enqueue_over_limit, overflow="reject-publish")),
    Workload("enqueue, duplicate_window", 100, enqueue_known_window),
    Workload("enqueue, a duplicate", 100, enqueue_duplicates),
    Workload("receive", 100, receive),
    Workload("ack", 100, ack),
    Workload("nack", 100, nack),
    Workload("reject", 100, reject),
    Workload("receive + ack", 100, receive_and_ack),
    Workload("receive_many of 100 + ack_many", 1000, receive_and_ack_batches),
    Workload("consume + ack", 1000, consume),
    Workload("wake-up of a consumer", 100, wake_up, raw=True),
    Workload("asyncio: enqueue", 1000, partial(enqueue_in_tasks, tasks=1), raw=True),
    Workload("asyncio: enqueue, 100 tasks", 1000, partial(enqueue_in_tasks, tasks=100), raw=True),
    Workload("asyncio: consume + ack", 1000, consume_in_loop, raw=True),
    Workload("sweep of 250 leases", 250, sweep_leases),
    Workload("sweep of 250 dead letters", 250, sweep_expired),
    Workload("redrive of 100", 100, redrive),
)


def run(client: redis.Redis, mark: Callable[[], object], chosen: list[Workload]) -> None:
    """Run each workload once without marks, then `ROUNDS` times between two."""
    broker = rqttl.Broker(client)
    for number, workload in enumerate(chosen):
        for turn in range(ROUNDS + 1):
            client.flushall()
            work = workload.prepare(client if workload.raw else broker, f"queue-{number:02d}-{turn}")
            gc.collect()
            if turn:
                mark()
            work()
            if turn:
                mark()


def main(socket: str, side: str, *names: str) -> None:
    gc.disable()
    client = redis.Redis(unix_socket_path=socket, socket_timeout=None)
    mark = os.getppid if side == "client" else lambda: client.config_get("dir")
    run(client, mark, [workload for workload in WORKLOADS if not names or workload.name in names])


if __name__ == "__main__":
    main(*sys.argv[1:])
