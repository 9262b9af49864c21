"""The asyncio interface against redis-py's own asyncio client and against the sync interface, interleaved in one run.

    python -m tests.bench.asynchronous

Each figure is the median of the rounds; ratios count, rates depend on the machine.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable
from typing import Any

import redis.asyncio

import rqttl
from rqttl.flows import GetConfig
from rqttl.protocol import commands
from rqttl.store.driver import driver_of
from tests.servers import Server, find_binary

MESSAGES, ROUNDS = 10_000, 5
BODY = b"x" * 200


async def _shared(count: int, send: Callable[[], Any]) -> None:
    """Send the messages from so many tasks."""

    async def work() -> None:
        for _ in range(MESSAGES // count):
            await send()

    await asyncio.gather(*[work() for _ in range(count)])


async def _enqueue(url: str, tasks: int) -> float:
    async with rqttl.connect_async(url) as broker:
        queue = await broker.declare_queue("q")
        await queue.enqueue(BODY)
        started = time.perf_counter()
        await _shared(tasks, lambda: queue.enqueue(BODY))
        return time.perf_counter() - started


async def _enqueue_by_redis_py(url: str, tasks: int) -> float:
    """The same script, sent by the client of redis-py."""
    with rqttl.connect(url) as broker:
        broker.declare_queue("q")
        config = driver_of(broker).step(GetConfig("q"))
        broker.queue("q").enqueue(BODY)
    command = commands.enqueue_alike(config, [BODY])
    words = ("EVALSHA", command.script.sha, *command.words)
    client = redis.asyncio.Redis.from_url(url)
    await client.ping()
    started = time.perf_counter()
    await _shared(tasks, lambda: client.execute_command(*words))
    elapsed = time.perf_counter() - started
    await client.aclose()
    return elapsed


def _enqueue_sync(url: str) -> float:
    with rqttl.connect(url) as broker:
        queue = broker.declare_queue("q")
        queue.enqueue(BODY)
        started = time.perf_counter()
        for _ in range(MESSAGES):
            queue.enqueue(BODY)
        return time.perf_counter() - started


async def _consume(url: str) -> float:
    async with rqttl.connect_async(url) as broker:
        queue = await broker.declare_queue("q")
        await queue.enqueue_many([BODY] * MESSAGES)
        started = time.perf_counter()
        async with queue.consume(prefetch=100, wait=0) as deliveries:
            async for delivery in deliveries:
                async with delivery:
                    pass
        return time.perf_counter() - started


def _consume_sync(url: str) -> float:
    with rqttl.connect(url) as broker:
        queue = broker.declare_queue("q")
        queue.enqueue_many([BODY] * MESSAGES)
        started = time.perf_counter()
        with queue.consume(prefetch=100, wait=0) as deliveries:
            for delivery in deliveries:
                with delivery:
                    pass
        return time.perf_counter() - started


#: Name, our work, the work beside it, and the ratio to reach.
ROWS: tuple[tuple[str, Callable[[str], float], Callable[[str], float], float], ...] = (
    (
        "enqueue, 100 tasks, against redis.asyncio",
        lambda url: asyncio.run(_enqueue(url, 100)),
        lambda url: asyncio.run(_enqueue_by_redis_py(url, 100)),
        4.0,
    ),
    ("enqueue, 1 task, against sync", lambda url: asyncio.run(_enqueue(url, 1)), _enqueue_sync, 0.9),
    ("consume, against sync", lambda url: asyncio.run(_consume(url)), _consume_sync, 0.7),
)


def main() -> None:
    """Measure all rows, and print them."""
    binary = find_binary("7.0")
    if binary is None:
        raise SystemExit("no redis-server 7 or later")
    server = Server(binary)
    try:
        for name, own, other, goal in ROWS:
            times: dict[bool, list[float]] = {True: [], False: []}
            for _ in range(ROUNDS):
                for mine, work in ((True, own), (False, other)):
                    with server.client() as client:
                        client.flushall()
                    times[mine].append(work(server.url))
            own_time, its_time = statistics.median(times[True]), statistics.median(times[False])
            rates = f"{MESSAGES / own_time:9,.0f}/s {MESSAGES / its_time:9,.0f}/s {its_time / own_time:6.2f}"
            print(f"{name:44} {rates}  (goal {goal:.2f})")
    finally:
        server.remove()


if __name__ == "__main__":
    main()
