"""Sequences without a message in a set of a queue: a reader removes them, and no call does so without an end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from rqttl import CommandEvent, Queue
from rqttl.store.driver import driver_of
from tests.contract.clocked import START, Clocked

#: What stands in front of all messages: well-formed, and not.
IDS = [f"{START - 5000:013d}-{100_000 + i}" for i in range(600)] + ["garbage", "0-0", "x" * 20]
#: Scores that make the id due, or the first to be read.
SETS = {"requeued": START - 5000, "expiry": START - 1, "delayed": START - 1, "leases": (START - 1) * 1000}

ACTIONS: dict[str, Callable[[Queue], object]] = {
    "sweep": lambda queue: queue.sweep(),
    "receive": lambda queue: queue.receive_many(100, lease="1h"),
    "stats": lambda queue: queue.stats(),
    "purge": lambda queue: queue.purge(),
    "delete": lambda queue: queue.delete(),
    "update": lambda queue: queue.update(message_ttl="1h"),
    "preview": lambda queue: queue.preview_update(message_ttl="1s"),
    "nack": lambda queue: queue.nack_many(queue.receive_many(2, lease="1h")),
    "reject": lambda queue: queue.reject_many(queue.receive_many(2, lease="1h")),
    "enqueue": lambda queue: queue.enqueue_many([b"new"] * 300),
    "peek": lambda queue: queue.peek(100),
    "consume": lambda queue: next(iter(queue.consume(wait="1s").__enter__())),
}


class Spinning(AssertionError):
    """Somebody calls again and again."""


@pytest.mark.parametrize("limit", [{}, {"max_length": 200}], ids=str)
@pytest.mark.parametrize("part", SETS)
@pytest.mark.parametrize("action", ACTIONS)
def test_nobody_spins_at_ids_without_a_message(
    clocked: Clocked, client: redis.Redis, action: str, part: str, limit: dict[str, Any]
) -> None:
    queue = clocked.declare_queue("q", **limit)
    queue.enqueue_many([b"%d" % i for i in range(100)])
    key = driver_of(clocked).keyspace.key("q", part)
    client.zadd(key, dict.fromkeys(IDS, SETS[part]))
    client.hset(driver_of(clocked).keyspace.key("q", "meta"), "due_at", 0)
    calls = 0

    def count(_: object) -> None:
        nonlocal calls
        calls += 1
        if calls > 100:
            raise Spinning(action)

    clocked.events.subscribe(count, CommandEvent)
    ACTIONS[action](queue)
    clocked.events.unsubscribe(count)

    if action != "delete":
        queue.sweep()
        queue.receive_many(250)
        stats = queue.stats()
        assert client.zcount(key, SETS[part], SETS[part]) == 0
        assert stats.ready + stats.leased + stats.delayed == len(queue.peek(1_000))


def test_an_id_without_a_message_takes_no_place_of_another(clocked: Clocked, client: redis.Redis) -> None:
    queue = clocked.declare_queue("q")
    queue.enqueue_many([b"a", b"b"])
    queue.nack_many(queue.receive_many(2))
    client.zadd(driver_of(clocked).keyspace.key("q", "requeued"), {IDS[0]: START - 5000})

    assert [delivery.body for delivery in queue.receive_many(2)] == [b"a", b"b"]


def test_a_queue_ends_though_nobody_finds_some_of_its_messages(clocked: Clocked, client: redis.Redis) -> None:
    queue = clocked.declare_queue("q", expires="1s", on_expire="dead-letter", dead_letter="d")
    queue.enqueue_many([b"a", b"b"])
    queue.receive_many(2, lease="1h")
    client.delete(driver_of(clocked).keyspace.key("q", "leases"))
    clocked.advance(10_000_000)

    assert "q" not in clocked.queues()
