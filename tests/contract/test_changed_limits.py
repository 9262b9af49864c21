"""Options that another client changes are those of the next call of every client, and of what that call tells."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from rqttl import Broker, CommandEvent, Message, MessageTooLarge, Queue, QueueFull

#: Ways to send one body of 100 bytes.
SENDS: dict[str, Callable[[Queue], Any]] = {
    "enqueue": lambda queue: queue.enqueue(b"x" * 100),
    "enqueue with an id": lambda queue: queue.enqueue(b"x" * 100, id="a"),
    "enqueue_many": lambda queue: queue.enqueue_many([b"x", b"x" * 100]),
    "enqueue_many with ids": lambda queue: queue.enqueue_many([Message(b"x", id="a"), Message(b"x" * 100, id="b")]),
    "enqueue_many in one pipeline": lambda queue: queue.enqueue_many([b"x"] * 600 + [b"x" * 100]),
    "enqueue_many with a window": lambda queue: queue.enqueue_many([b"x"] * 600 + [b"x" * 100], duplicate_window="1m"),
}


@pytest.fixture
def other(client: redis.Redis) -> Broker:
    """Another client of the same server."""
    return Broker(client)


@pytest.mark.parametrize("send", SENDS)
def test_a_lowered_max_message_bytes_refuses_the_next_body_of_every_client(
    send: str, broker: Broker, other: Broker
) -> None:
    queue = broker.declare_queue("q")
    queue.enqueue(b"known")
    other.queue("q").update(max_message_bytes=99)

    with pytest.raises(MessageTooLarge, match=r"^body: 100 bytes are more than max_message_bytes, 99$"):
        SENDS[send](queue)

    assert [one.body for one in queue.peek(1_000)] == [b"known"]


@pytest.mark.parametrize("send", SENDS)
def test_a_raised_max_message_bytes_lets_the_next_body_of_every_client_in(
    send: str, broker: Broker, other: Broker
) -> None:
    queue = broker.declare_queue("q", max_message_bytes=99)
    queue.enqueue(b"known")
    other.queue("q").update(max_message_bytes=100)

    SENDS[send](queue)

    assert queue.peek(1_000)[-1].body == b"x" * 100


def test_a_receipt_has_the_deadline_of_the_retention_in_force(broker: Broker, other: Broker) -> None:
    queue = broker.declare_queue("q", message_ttl="1h")
    queue.enqueue(b"known")
    other.queue("q").update(message_ttl="1m")

    sent: list[Any] = [queue.enqueue(b"x"), *queue.enqueue_many([b"x", Message(b"y", id="a")])]

    assert [one.expires_at for one in sent] == [one.expires_at for one in queue.peek()[1:]]


def test_receipts_of_a_pipeline_have_the_deadlines_of_the_retention_in_force(broker: Broker, other: Broker) -> None:
    queue = broker.declare_queue("q")
    queue.enqueue(b"known")
    other.queue("q").update(message_ttl="1h")

    sent: list[Any] = [*queue.enqueue_many([b"x"] * 600)]

    assert [one.expires_at for one in sent] == [one.expires_at for one in queue.peek(1_000)[1:]]


@pytest.mark.parametrize("count", [1, 600])
def test_a_refusal_names_the_limit_in_force(count: int, broker: Broker, other: Broker) -> None:
    queue = broker.declare_queue("q", overflow="reject-publish", max_length=5)
    queue.enqueue_many([b"x"] * 5)
    other.queue("q").update(max_length=3)

    with pytest.raises(QueueFull) as refused:
        queue.enqueue(b"x")
    told = queue.enqueue_many([b"x"] * count)

    assert (refused.value.limit, refused.value.value) == ("max_length", 3)
    assert {one.value for one in told if isinstance(one, QueueFull)} == {3}


def test_a_body_that_fits_costs_no_look_at_the_options(broker: Broker) -> None:
    queue = broker.declare_queue("q", message_ttl="1h", max_message_bytes=100)
    queue.enqueue(b"known")
    calls: list[str] = []
    broker.events.subscribe(lambda event: calls.append(event.name), CommandEvent)

    queue.enqueue(b"x" * 100)
    queue.enqueue_many([b"x" * 100, Message(b"x", id="a")])

    assert calls == ["enqueue", "enqueue"]


@pytest.mark.parametrize("limit", [{"max_length": 1_500}, {"max_length_bytes": 1_500}], ids=str)
def test_no_call_delivers_what_a_lowered_limit_pushes_out(broker: Broker, limit: dict[str, int]) -> None:
    queue = broker.declare_queue("w")
    queue.enqueue_many([b"%d" % (i % 10) for i in range(6_000)])
    kept = [one.sequence for one in queue.peek(6_000)][4_500:]
    broker.set_policy("p", "w", limit)

    got = queue.receive_many(2)

    assert [one.sequence for one in got] == kept[:2]
    assert (queue.stats().ready, queue.stats().deaths["maxlen"]) == (1_498, 4_500)


def test_an_enqueue_ends_within_a_lowered_limit(broker: Broker) -> None:
    queue = broker.declare_queue("w")
    queue.enqueue_many([b"x"] * 6_000)
    broker.set_policy("p", "w", {"max_length": 1_500})

    queue.enqueue(b"y")

    assert len(queue.peek(6_000)) == 1_500
