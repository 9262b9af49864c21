"""Survivors among many that expired are moved to where they cost less; nothing else about them changes."""

from __future__ import annotations

import pytest

from rqttl import Message, Queue
from tests.contract.clocked import Clocked, at
from tests.contract.looks import bodies, dead, one, taken

COUNT, EVERY = 12_000, 20


@pytest.fixture
def thinned(clocked: Clocked) -> Queue:
    """A queue in which 19 of 20 messages have expired; most of those that are left have been moved."""
    queue = clocked.declare_queue("q", lease="1s")
    queue.enqueue_many(
        [Message(b"%d" % i, ttl=None if i % EVERY == 0 else "10ms", id=f"m{i}", headers={"i": i}) for i in range(COUNT)]
    )
    clocked.advance(10)
    assert sum(swept.compacted for swept in queue.sweep()) >= 200
    return queue


LEFT = [b"%d" % i for i in range(0, COUNT, EVERY)]


def test_the_survivors_keep_their_order_ids_headers_and_times(clocked: Clocked, thinned: Queue) -> None:
    assert dead(thinned) == {"expired": COUNT - len(LEFT)}
    assert (thinned.stats().ready, thinned.stats().ready_bytes) == (len(LEFT), sum(map(len, LEFT)))
    assert bodies(thinned) == LEFT
    peeked, delivery = thinned.peek(1)[0], one(thinned)
    for seen in (peeked, delivery):
        assert (seen.id, seen.headers, seen.enqueued_at) == ("m0", {"i": 0}, at(0))


def test_later_messages_come_after_them(clocked: Clocked, thinned: Queue) -> None:
    thinned.enqueue_many([b"later", b"last"])

    assert bodies(thinned) == [*LEFT, b"later", b"last"]
    assert [one.body for one in thinned.receive_many(COUNT)] == [*LEFT, b"later", b"last"]


def test_they_are_leased_given_back_delayed_rejected_and_acked_like_others(clocked: Clocked, thinned: Queue) -> None:
    thinned.update(dead_letter="d")
    first, second, third, fourth, fifth = thinned.receive_many(5)
    first.nack()
    second.nack("1m")
    third.reject()
    fourth.ack()
    assert [message.state for message in thinned.peek(4)] == ["ready", "delayed", "leased", "ready"]

    clocked.advance(60_000)

    assert taken(clocked.queue("d")) == [third.body]
    assert taken(thinned, COUNT) == [first.body, second.body, fifth.body, *LEFT[5:]]
    assert thinned.stats().ready == thinned.stats().leased == 0


def test_limits_and_a_purge_reach_them(clocked: Clocked, thinned: Queue) -> None:
    thinned.update(max_length=10)
    assert bodies(thinned) == LEFT[-10:]
    thinned.enqueue(b"new")
    assert bodies(thinned) == [*LEFT[-9:], b"new"]

    assert thinned.purge() == 10

    assert (bodies(thinned), thinned.stats().ready_bytes) == ([], 0)


def test_a_new_retention_reaches_them(clocked: Clocked, thinned: Queue) -> None:
    clocked.advance(500)
    thinned.enqueue(b"young")

    thinned.update(message_ttl="500ms")

    assert bodies(thinned) == [b"young"]
