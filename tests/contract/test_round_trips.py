"""One script call per user call: counted by Redis itself, once a client knows the queue."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from rqttl import Broker, Queue

#: What the server counts where a client has called it; commands inside scripts are among the others.
CALLS = ("evalsha", "eval", "script|load", "blpop", "multi", "sadd", "smembers", "get", "ping")


def calls(client: redis.Redis) -> dict[str, int]:
    stats: Any = client.info("commandstats")
    return {name: int(stats.get(f"cmdstat_{name}", {}).get("calls", 0)) for name in CALLS}


@pytest.fixture
def no_others(broker: Broker) -> Iterator[None]:
    """Brokers that earlier tests left open are closed before the test, not within it: that takes calls."""
    gc.collect()
    broker.queues()  # on asyncio the portal closes them before it makes this call
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def queue(broker: Broker, no_others: None) -> Queue:
    """A queue that the broker knows, with scripts that the server knows."""
    queue = broker.declare_queue("q", message_ttl="1h", dead_letter="d")
    queue.enqueue_many([b"x"] * 400)
    for delivery, settle in zip(queue.receive_many(4), ("ack", "nack", "reject", "renew"), strict=True):
        getattr(delivery, settle)()
    queue.peek()
    queue.stats()
    return queue


@pytest.mark.parametrize(
    "action, expected",
    [
        (lambda queue: queue.enqueue(b"x", ttl="1m"), 1),
        (lambda queue: queue.enqueue_many([b"x"] * 100), 1),
        (lambda queue: queue.enqueue_many([b"x"] * 1_000), 4),  # as one transaction
        (lambda queue: queue.receive(), 1),
        (lambda queue: queue.receive_many(100), 1),
        (lambda queue: queue.receive(wait="1m"), 1),
        (lambda queue: queue.peek(), 1),
        (lambda queue: queue.stats(), 1),
    ],
)
def test_a_call_is_one_script(
    client: redis.Redis, queue: Queue, action: Callable[[Queue], object], expected: int
) -> None:
    before = calls(client)

    action(queue)

    after = calls(client)
    assert {name: after[name] - before[name] for name in CALLS if after[name] != before[name]} == {
        "evalsha": expected,
        **({"multi": 1} if expected > 1 else {}),
    }


@pytest.mark.parametrize("settle", ["ack", "nack", "reject", "renew"])
@pytest.mark.parametrize("count", [1, 100])
def test_settling_is_one_script(client: redis.Redis, queue: Queue, settle: str, count: int) -> None:
    deliveries = queue.receive_many(count)
    before = calls(client)

    getattr(queue, f"{settle}_many")(deliveries)

    after = calls(client)
    assert {name: after[name] - before[name] for name in CALLS if after[name] != before[name]} == {"evalsha": 1}


@pytest.mark.usefixtures("no_others")
@pytest.mark.parametrize("policies", [0, 200])
def test_policies_add_no_round_trip(client: redis.Redis, broker: Broker, policies: int) -> None:
    for i in range(policies):
        broker.set_policy(f"p{i}", ("q", "a.#", "#")[i % 3], {"max_length": 1_000 + i})
    queue = broker.declare_queue("q")
    queue.enqueue_many([b"x"] * 10)
    assert queue.receive()  # now the server knows all scripts
    before = calls(client)

    broker.declare_queue("q")
    queue.enqueue(b"x")
    assert queue.receive()

    after = calls(client)
    assert {name: after[name] - before[name] for name in CALLS if after[name] != before[name]} == {"evalsha": 3}
