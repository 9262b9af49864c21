"""A delay beside retention: the message dies on time, or the delay lasts to its end, also if retention changes."""

from __future__ import annotations

from typing import Any

import pytest

from rqttl import Queue
from tests.contract.clocked import Clocked, at, ms
from tests.contract.looks import bodies, dead, one


def delayed(clocked: Clocked, ttl: int | None, delay: int = 10_000, **options: Any) -> Queue:
    """A queue in which one message was given back at once, with a delay."""
    queue = clocked.declare_queue("q", message_ttl=ms(ttl), **options)
    queue.enqueue(b"x")
    one(queue).nack(ms(delay), description="why")
    return queue


@pytest.mark.parametrize("later", [None, 60_000])
def test_a_delay_lasts_to_its_end_where_retention_is_raised_or_cleared(clocked: Clocked, later: int | None) -> None:
    queue = delayed(clocked, 4_000)
    clocked.advance(3_000)
    queue.update(message_ttl=ms(later))

    clocked.go_to(9_999)

    assert queue.receive() is None
    assert [(seen.state, seen.until, seen.description) for seen in queue.peek()] == [("delayed", at(10_000), "why")]
    clocked.advance(1)
    delivery = one(queue)
    assert (delivery.body, delivery.delivery_count) == (b"x", 2)


def test_the_pause_of_a_queue_lasts_to_its_end_too(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", message_ttl=ms(4_000), redelivery_delay=ms(10_000))
    queue.enqueue(b"x")
    one(queue).nack()
    queue.update(message_ttl=None)

    clocked.go_to(9_999)

    assert queue.receive() is None
    clocked.advance(1)
    assert one(queue).body == b"x"


def test_a_delayed_message_dies_at_the_end_of_retention(clocked: Clocked) -> None:
    queue = delayed(clocked, 4_000)
    assert [seen.until for seen in queue.peek()] == [at(10_000)]
    clocked.go_to(3_999)
    assert queue.stats().delayed == 1

    clocked.advance(1)

    assert queue.stats().delayed == 0
    assert dead(queue) == {"expired": 1}


@pytest.mark.parametrize("before", [None, 8_000, 60_000])
@pytest.mark.parametrize("count", [1, 700])
def test_a_lower_retention_reaches_delayed_messages(clocked: Clocked, before: int | None, count: int) -> None:
    queue = clocked.declare_queue("q", message_ttl=ms(before))
    queue.enqueue_many([b"x"] * count)
    queue.nack_many(queue.receive_many(count), delay="10s", counted=False)
    clocked.advance(1_000)

    queue.update(message_ttl=ms(4_000))

    clocked.go_to(3_999)
    assert queue.stats().delayed == count
    clocked.advance(1)
    assert queue.stats().delayed == 0
    assert dead(queue) == {"expired": count}


def test_retention_that_is_lowered_and_raised_again_changes_nothing(clocked: Clocked) -> None:
    queue = delayed(clocked, None)
    for ttl in ("4s", "2s", "1h", "3s", None):
        queue.update(message_ttl=ttl)

    clocked.go_to(9_999)

    assert queue.receive() is None
    clocked.advance(1)
    assert one(queue).body == b"x"


def test_an_uncounted_delivery_with_a_long_delay_stays_uncounted(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", message_ttl=ms(4_000))
    queue.enqueue(b"x")
    queue.nack_many([one(queue)], delay="10s", counted=False)
    queue.update(message_ttl=None)
    clocked.advance(10_000)

    delivery = one(queue)

    assert (delivery.delivery_count, queue.stats().redelivered) == (1, 0)


@pytest.mark.parametrize("own, retention", [(4_000, None), (None, 4_000)])
def test_peek_shows_no_delayed_message_past_its_deadline(
    clocked: Clocked, own: int | None, retention: int | None
) -> None:
    queue = clocked.declare_queue("q", message_ttl=ms(retention))
    queue.enqueue(b"x", ttl=ms(own))
    one(queue).nack("10s")
    clocked.go_to(3_999)
    assert bodies(queue) == [b"x"]

    clocked.advance(1)

    assert queue.peek() == []
