"""Memory that comes back where most of many messages have expired, wherever the survivors stand."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis

from rqttl import Message, Queue
from rqttl.reaper import Reaper
from rqttl.store.driver import driver_of
from rqttl.testing.clocked import ClockedBroker

COUNT, EVERY = 64_000, 16


def receive_all(queue: Queue) -> None:
    """Receive all messages, and give them back then."""
    batches = []
    while batch := queue.receive_many(250):
        batches.append(batch)
    for batch in batches:
        queue.nack_many(batch)


def delay_all(queue: Queue) -> None:
    """Receive all messages and give them back with a delay that ends when the others expire."""
    while batch := queue.receive_many(250):
        queue.nack_many(batch, delay="1h")


def used(queue: Queue, client: redis.Redis) -> int:
    """The bytes of all keys that hold messages or name them."""
    keyspace = driver_of(queue).keyspace
    parts = ("log", "detached", "expiry", "leases", "requeued", "delayed", "failures")
    return sum(client.memory_usage(keyspace.key(queue.name, part), samples=0) or 0 for part in parts)


@pytest.mark.parametrize(
    "by, past",
    [("sweep", None), ("sweep", receive_all), ("reaper", receive_all), ("sweep", delay_all)],
    ids=["never received", "came back", "came back, reaper", "away"],
)
def test_survivors_of_many_messages_take_little_more_than_they_need(
    client: redis.Redis, by: str, past: Callable[[Queue], None] | None
) -> None:
    broker = ClockedBroker(client)
    queue = broker.declare_queue("q", lease="1h")
    body = b"x" * 196
    for _ in range(COUNT // 1000):
        queue.enqueue_many([Message(body, ttl=None if i % EVERY == 0 else "30m") for i in range(1000)])
    if past:
        past(queue)
    broker.clock.advance("59m")

    if by == "reaper":
        Reaper(broker).run_once()
    else:
        queue.sweep()

    left = queue.stats()
    count = left.ready + left.delayed
    assert count == COUNT // 1000 * 63
    assert used(queue, client) <= 2.5 * 1_600_000 + 1_048_576
