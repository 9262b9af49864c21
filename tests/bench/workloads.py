"""The workloads whose instructions `tests.bench.instructions` counts. It runs this file with the code of either tree.

    python workloads.py SOCKET server|client [workload ...]

Each workload is prepared on a new queue, and worked between two marks. A mark makes callgrind write down its count:
the server then asks for its working directory, the client for its parent process. Neither does so otherwise. This file
uses only the public API, so that it also runs with an older tree.
"""

import asyncio
import gc
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import redis

import rqttl
from rqttl.types import Message

BODY = bytes(range(200))
LARGE = BODY * 5
Work = Callable[[], object]
ROUNDS = 3
MOMENT = timedelta(milliseconds=1)
HOUR = timedelta(hours=1)


class Workload(NamedTuple):
    """Work for so many messages. `prepare` gets a broker and the name of a new queue, and returns the work.

    With `raw` it gets a client of redis-py in place of the broker. A tree without the file `needs` cannot do it.
    """

    name: str
    messages: int
    prepare: Callable[[Any, str], Work]
    raw: bool = False
    needs: str = ""


def each(
    call: Callable[[rqttl.Queue, Any], object],
    count: int = 100,
    given: Callable[[rqttl.Queue, int], Sequence[Any]] = lambda _, count: range(count),
    filled: int = 0,
    **options: Any,
) -> Callable[[rqttl.Broker, str], Work]:
    """So many calls on a queue with so many messages, each with one of the `given` things. The first one warms up."""

    def prepare(broker: rqttl.Broker, name: str) -> Work:
        if "dead_letter" in options:
            broker.declare_queue(f"{name}/dead")
        queue = broker.declare_queue(name, **options)
        queue.enqueue_many([BODY] * filled)
        first, *others = given(queue, count + 1)
        call(queue, first)
        return lambda: [call(queue, one) for one in others]

    return prepare


def _ids(_: rqttl.Queue, count: int) -> Sequence[str]:
    return [f"order-{i:06d}" for i in range(count)]


def _batches(_: rqttl.Queue, count: int) -> Sequence[list[Message]]:
    return [[Message(BODY, id=f"{k}-order-{i:06d}", ttl=HOUR) for i in range(100)] for k in range(count)]


def _leased(queue: rqttl.Queue, count: int) -> Sequence[rqttl.Delivery]:
    return queue.receive_many(count, lease=HOUR)


def _try(queue: rqttl.Queue, _: object) -> None:
    with suppress(rqttl.QueueFull):
        queue.enqueue(BODY)


def _receive_and_ack(queue: rqttl.Queue, _: object) -> None:
    delivery = queue.receive()
    assert delivery is not None  # the queue holds so many
    delivery.ack()


def enqueue_duplicates(broker: rqttl.Broker, name: str) -> Work:
    work = KNOWN(broker, name)
    work()
    return work


KNOWN = each(lambda queue, id: queue.enqueue(BODY, id=id), given=_ids, duplicate_window=HOUR)


def _filled(broker: rqttl.Broker, name: str, count: int) -> rqttl.Queue:
    queue = broker.declare_queue(name)
    queue.enqueue_many([BODY] * count)
    return queue


def _with_letters(broker: rqttl.Broker, name: str, count: int) -> tuple[rqttl.Queue, rqttl.Queue]:
    """A queue with messages that have expired, and its dead-letter queue."""
    dead = broker.declare_queue(f"{name}/dead")
    queue = broker.declare_queue(name, dead_letter=dead.name)
    queue.enqueue(BODY)
    queue.enqueue_many([Message(BODY, ttl=MOMENT)] * count)
    time.sleep(0.01)
    return queue, dead


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


def publish(broker: rqttl.Broker, name: str, batch: int, queues: int) -> Work:
    """Send batches to a topic, of which each queue gets all."""
    topic = broker.declare_topic(name)
    for i in range(queues):
        topic.subscribe(f"{i:03}")
    send: Work = partial(topic.enqueue, LARGE) if batch == 1 else partial(topic.enqueue_many, [LARGE] * batch)
    send()
    return lambda: [send() for _ in range(calls(batch, queues))]


def pass_on(broker: rqttl.Broker, name: str) -> Work:
    """Batches of 100 wait at a topic, and are passed on to three queues."""
    publish(broker, name, 100, 3)()
    wait, go = _in_two_steps(broker, name)
    wait()
    go()
    return lambda: [(wait(), go()) for _ in range(5)]


def forward(broker: rqttl.Broker, name: str, backlog: bool) -> Work:
    """Single messages for a queue that forwards, or a backlog of 100."""
    queue = broker.declare_queue(name, forward_to=f"{name}/next")
    queue.enqueue(LARGE)
    if not backlog:
        return lambda: [queue.enqueue(LARGE) for _ in range(200)]
    wait, go = _in_two_steps(broker, name)
    wait()
    return go


def _in_two_steps(broker: rqttl.Broker, name: str) -> tuple[Work, Work]:
    """Works that store 100 messages in the log of a topic, and pass on what waits there."""
    from rqttl.flows import topics  # an older tree has none
    from rqttl.flows.steps import GetConfig
    from rqttl.protocol import commands
    from rqttl.store.driver import driver_of

    driver = driver_of(broker)
    store = commands.enqueue_alike(driver.step(GetConfig(name)), [LARGE] * 100)
    return lambda: driver.step(store), lambda: driver.perform(topics.pass_on(driver.keyspace, name))


def calls(batch: int, queues: int) -> int:
    """The calls of a workload with topics: small ones are many, as Lua clears up at some of them only."""
    return max(5, 200 // (batch * queues))


def _large(_: rqttl.Queue, count: int) -> Sequence[list[Message]]:
    return [[Message(LARGE, id=f"{k}-order-{i:06d}") for i in range(100)] for k in range(count)]


#: Sizes of batches, and numbers of queues; a message is a copy here.
PUBLISHED = ((1, 1), (1, 3), (1, 10), (1, 100), (100, 1), (100, 3), (100, 10))
_TOPICS = "rqttl/topic.py"

WORKLOADS = (
    Workload("enqueue", 100, each(lambda queue, _: queue.enqueue(BODY))),
    Workload("enqueue of a value", 100, each(lambda queue, _: queue.enqueue({"item": 7}))),
    Workload("enqueue, id and ttl", 100, each(lambda queue, id: queue.enqueue(BODY, id=id, ttl=HOUR), given=_ids)),
    Workload("enqueue_many of 100", 1000, each(lambda queue, _: queue.enqueue_many([BODY] * 100), 10)),
    Workload("enqueue_many of 100 values", 1000, each(lambda queue, _: queue.enqueue_many(["x" * 200] * 100), 10)),
    Workload("enqueue_many of 100, id and ttl", 1000, each(rqttl.Queue.enqueue_many, 10, _batches)),
    Workload("enqueue, full drop-head", 100, each(_try, filled=100, max_length=100, overflow="drop-head")),
    Workload("enqueue, full reject-publish", 100, each(_try, filled=100, max_length=100, overflow="reject-publish")),
    Workload("enqueue, duplicate_window", 100, KNOWN),
    Workload("enqueue, a duplicate", 100, enqueue_duplicates),
    Workload("receive", 100, each(lambda queue, _: queue.receive(), filled=101)),
    Workload("ack", 100, each(lambda _, delivery: delivery.ack(), given=_leased, filled=101)),
    Workload("nack", 100, each(lambda _, delivery: delivery.nack(), given=_leased, filled=101)),
    Workload(
        "reject",
        100,
        each(lambda _, delivery: delivery.reject(), given=_leased, filled=101, dead_letter="{queue}/dead"),
    ),
    Workload("receive + ack", 100, each(_receive_and_ack, filled=101)),
    Workload(
        "receive_many of 100 + ack_many",
        1000,
        each(lambda queue, _: queue.ack_many(queue.receive_many(100)), 10, filled=1100),
    ),
    Workload("consume + ack", 1000, consume),
    Workload("wake-up of a consumer", 100, wake_up, raw=True),
    Workload("asyncio: enqueue", 1000, partial(enqueue_in_tasks, tasks=1), raw=True),
    Workload("asyncio: enqueue, 100 tasks", 1000, partial(enqueue_in_tasks, tasks=100), raw=True),
    Workload("asyncio: consume + ack", 1000, consume_in_loop, raw=True),
    Workload("sweep of 250 leases", 250, sweep_leases),
    Workload("sweep of 250 dead letters", 250, sweep_expired),
    Workload("redrive of 100", 100, redrive),
    Workload("enqueue of 1 kB, id", 200, each(lambda queue, id: queue.enqueue(LARGE, id=id), 200, _ids)),
    Workload("enqueue_many of 100 of 1 kB, id", 1000, each(rqttl.Queue.enqueue_many, 10, _large)),
    *(
        Workload(f"publish {m} x {n}", calls(m, n) * m * n, partial(publish, batch=m, queues=n), needs=_TOPICS)
        for m, n in PUBLISHED
    ),
    Workload("pass on 100 x 3", 1500, pass_on, needs=_TOPICS),
    Workload("forward of one", 200, partial(forward, backlog=False), needs=_TOPICS),
    Workload("forward of a backlog of 100", 100, partial(forward, backlog=True), needs=_TOPICS),
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
