"""Messages that come back to a queue with a limit: nobody sees more than that, and the expired go before the living."""

from __future__ import annotations

from typing import Any

import pytest

from rqttl import Message, flows
from rqttl.store.driver import driver_of
from tests.contract.clocked import Clocked, ms
from tests.contract.looks import bodies, dead, ready, take


def numbered(first: int, last: int) -> list[bytes]:
    return [b"%04d" % i for i in range(first, last)]


def depths(clocked: Clocked) -> list[int]:
    """Return the depths of `q` before, between and after the bounded steps of a sweep."""
    queue, seen = clocked.queue("q"), []
    while True:
        seen.append(queue.stats(sweep=False).ready)
        (swept,) = driver_of(clocked).perform(flows.sweeping.sweep("q", rounds=1))
        if not swept.more:
            return [*seen, queue.stats(sweep=False).ready, queue.stats().ready]


def leased(clocked: Clocked, count: int, lease: str = "1s") -> None:
    queue = clocked.queue("q")
    for _ in range(0, count, 250):
        queue.receive_many(min(250, count), lease=lease)


@pytest.mark.parametrize("limit", [{"max_length": 50}, {"max_length_bytes": 200}], ids=str)
@pytest.mark.parametrize("how", ["lease", "delay"])
def test_no_look_sees_more_than_the_limit_while_messages_come_back(
    clocked: Clocked, limit: dict[str, Any], how: str
) -> None:
    queue = clocked.declare_queue("q", dead_letter="d")
    queue.enqueue_many(numbered(0, 300))
    held = queue.receive_many(250, lease="1s") + queue.receive_many(50, lease="1s")
    if how == "delay":
        queue.nack_many(held, "1s")
    queue.update(**limit)
    queue.enqueue_many(numbered(300, 340))
    clocked.advance(1_000)

    assert max(depths(clocked)) <= 50

    assert ready(queue) == numbered(290, 340)
    assert dead(queue) == {"maxlen": 290}
    assert bodies(clocked.queue("d")) == numbered(0, 290)


def test_a_returned_message_is_dropped_only_as_one_of_the_oldest(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", max_length=4, dead_letter="d")
    queue.enqueue_many(numbered(0, 4))
    first = take(queue, 2)
    held = queue.receive_many(2, lease="1s")
    queue.enqueue_many(numbered(4, 7))
    clocked.advance(1_000)
    queue.stats()

    assert (len(first), len(held)) == (2, 2)
    assert (ready(queue), bodies(clocked.queue("d"))) == (numbered(3, 7), numbered(2, 3))


def test_a_giant_that_comes_back_waits_until_many_small_ones_have_made_room(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", max_length_bytes=3_000, dead_letter="d")
    queue.enqueue_many([b"old"] * 500)
    olds = queue.receive_many(250) + queue.receive_many(250)
    queue.enqueue(b"x" * 2_900)
    giant = queue.receive(lease="1s")
    queue.nack_many(olds, counted=False)
    clocked.advance(1_000)

    seen = depths(clocked)

    assert giant is not None
    assert (max(seen), queue.stats().ready_bytes) == (500, 2_999)
    assert ready(queue) == [b"old"] * 33 + [b"x" * 2_900]
    assert dead(queue) == {"maxlen": 467}


@pytest.mark.parametrize("limit", [{"max_length": 500}, {"max_length_bytes": 2000}], ids=str)
def test_expired_messages_make_room_for_lost_leases(clocked: Clocked, limit: dict[str, Any]) -> None:
    queue = clocked.declare_queue("q", **limit)
    queue.enqueue_many(numbered(0, 300))
    leased(clocked, 300)
    queue.enqueue_many([Message(body, ttl="1s") for body in numbered(300, 800)])
    clocked.advance(1_000)

    stats = queue.stats()

    assert (stats.ready, dead(queue)) == (300, {"expired": 500})


def test_5_000_lost_leases_lose_none_to_messages_that_expired(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", max_length=5_000)
    queue.enqueue_many(numbered(0, 5_000))
    leased(clocked, 5_000)
    for start in range(0, 5_000, 1_000):
        queue.enqueue_many([Message(body, ttl=ms(1_000)) for body in numbered(5_000 + start, 6_000 + start)])
    clocked.advance(1_000)

    while queue.stats(sweep=False).overdue or queue.stats(sweep=False).leased:
        assert queue.stats().ready <= 5_000

    assert (queue.stats().ready, dead(queue)) == (5_000, {"expired": 5_000})


def test_8_000_lost_leases_beside_8_000_messages_are_dropped_before_anybody_sees_more(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", max_length=8_000)
    queue.enqueue_many(numbered(0, 8_000))
    leased(clocked, 8_000)
    queue.enqueue_many(numbered(8_000, 16_000))
    clocked.advance(1_000)

    assert queue.stats().ready <= 8_000
    assert max(depths(clocked)) <= 8_000
    assert dead(queue) == {"maxlen": 8_000}


@pytest.mark.parametrize("expired", [100, 600])
def test_expired_messages_make_room_for_those_that_are_given_back(clocked: Clocked, expired: int) -> None:
    queue = clocked.declare_queue("q", max_length=600, dead_letter="d")
    queue.enqueue_many(numbered(0, 200))
    held = queue.receive_many(200)
    queue.enqueue_many([Message(body, ttl="1s") for body in numbered(200, 200 + expired)])
    queue.enqueue_many(numbered(200 + expired, 800))
    clocked.advance(1_000)

    queue.nack_many(held)

    assert queue.stats(sweep=False).ready <= 600
    lost = max(0, 200 - expired)
    assert dead(queue) == {"expired": expired} | ({"maxlen": lost} if lost else {})
    assert ready(queue) == numbered(lost, 200) + numbered(200 + expired, 800)


def test_a_queue_that_refuses_takes_back_all(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", max_length=300, overflow="reject-publish")
    queue.enqueue_many(numbered(0, 300))
    leased(clocked, 300)
    queue.enqueue_many(numbered(300, 600))
    clocked.advance(1_000)

    assert (queue.stats().ready, dead(queue)) == (600, {})
