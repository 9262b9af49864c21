"""Purging chosen messages: those that are ready go, and nothing else happens."""

from __future__ import annotations

from typing import Any

import pytest

from rqttl import Broker, InvalidInput, Message, Queue, QueueNotFound
from tests.contract.clocked import Clocked
from tests.contract.looks import bodies, dead, one, taken


def places(queue: Queue, *wanted: bytes) -> list[str]:
    """The sequences of the messages with these bodies."""
    return [message.sequence for message in queue.peek(1_000) if message.body in wanted]


def test_chosen_messages_go_and_the_others_keep_their_order(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", dead_letter="d")
    queue.enqueue_many([b"1", b"2", b"3", b"4", b"5"])

    assert queue.purge_many(places(queue, b"2", b"3", b"5")) == 3

    stats = queue.stats()
    assert (stats.purged, stats.ready, stats.ready_bytes, dead(queue)) == (3, 2, 2, {})
    assert taken(queue) == [b"1", b"4"]
    assert clocked.queues() == ["q"]


def test_leased_delayed_and_unknown_ones_stay_as_they_are(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q")
    queue.enqueue_many([b"leased", b"delayed", b"returned", b"ready"])
    held, later, back = queue.receive_many(3)
    later.nack("1m")
    back.nack()
    chosen = [*places(queue, b"leased", b"delayed", b"returned"), "1600000000000-100000"]

    assert queue.purge_many(chosen) == 1
    assert queue.purge_many(chosen) == 0

    assert bodies(queue) == [b"leased", b"delayed", b"ready"]
    held.ack()
    clocked.advance(60_000)
    assert taken(queue) == [b"delayed", b"ready"]


def test_a_chosen_message_whose_lease_has_ended_is_ready_and_goes(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", lease="100ms")
    queue.enqueue(b"x")
    one(queue)
    clocked.advance(100)

    assert queue.purge_many(places(queue, b"x")) == 1


def test_expired_messages_are_dead_already_and_not_purged(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", dead_letter="d")
    queue.enqueue(Message(b"x", ttl="10ms"))
    chosen = places(queue, b"x")
    clocked.advance(10)

    assert queue.purge_many(chosen) == 0
    assert (dead(queue), bodies(clocked.queue("d"))) == ({"expired": 1}, [b"x"])


def test_many_are_chosen_in_any_order_and_named_twice_count_once(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q")
    queue.enqueue_many([b"%d" % i for i in range(1_000)])
    chosen = places(queue, *[b"%d" % i for i in range(0, 1_000, 3)])

    assert queue.purge_many(iter([*reversed(chosen), *chosen])) == 334
    assert bodies(queue) == [b"%d" % i for i in range(1_000) if i % 3]


def test_nothing_chosen_removes_nothing(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q")
    queue.enqueue(b"x")

    assert queue.purge_many([]) == 0
    assert queue.purge_many(set()) == 0
    assert bodies(queue) == [b"x"]


def test_room_that_a_purge_makes_can_be_used(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", max_length=2, overflow="reject-publish")
    queue.enqueue_many([b"1", b"2"])

    queue.purge_many(places(queue, b"1"))
    queue.enqueue(b"3")

    assert bodies(queue) == [b"2", b"3"]


@pytest.mark.parametrize("wrong", ["1700000000000-100000", b"x", 5, ["nonsense"], [5], ["+"]], ids=str)
def test_an_invalid_sequence_is_refused_before_anything_is_removed(broker: Broker, wrong: Any) -> None:
    queue = broker.declare_queue("q")
    queue.enqueue(b"x")

    with pytest.raises(InvalidInput, match=r"^sequences: "):
        queue.purge_many(wrong)
    with pytest.raises(InvalidInput, match=r"^sequences: "):
        queue.purge_many([*places(queue, b"x"), "nonsense"])
    assert bodies(queue) == [b"x"]


@pytest.mark.parametrize("chosen", [[], ["1700000000000-100000"]])
def test_a_queue_that_is_not_there_is_not_found(broker: Broker, chosen: list[str]) -> None:
    with pytest.raises(QueueNotFound):
        broker.queue("q").purge_many(chosen)
