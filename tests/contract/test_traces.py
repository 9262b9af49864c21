"""A deleted queue leaves a trace of its deletion and of its lost messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from rqttl import Message
from tests.contract.clocked import Clocked, ms

LIFE = 1_000


def trace(client: redis.Redis) -> tuple[str, str] | None:
    """The highest place that was lost with the last queue `q`, and the highest that it had lost before."""
    assert set(client.keys("*{q}*")) <= {b"rqttl:{q}:tombstone", b"rqttl:{q}:meta"}
    found: Any = client.hgetall("rqttl:{q}:tombstone")
    return (found[b"last_id"].decode(), found[b"trimmed_upto"].decode()) if found else None


def by_command(clocked: Clocked) -> None:
    clocked.queue("q").delete()


def by_lifetime(clocked: Clocked) -> None:
    clocked.advance(LIFE)
    clocked.queue("q").sweep()
    assert clocked.queues() == []


WAYS = pytest.mark.parametrize("delete", [by_command, by_lifetime])


@WAYS
def test_the_last_message_that_nobody_has_handled_is_told(
    clocked: Clocked, client: redis.Redis, delete: Callable[[Clocked], None]
) -> None:
    queue = clocked.declare_queue("q", expires=ms(LIFE))
    places = [queue.enqueue(body).id for body in (b"1", b"2", b"3")]
    held = queue.receive_many(3, lease="1h")
    held[2].ack()
    delete(clocked)

    assert trace(client) == (places[1], "0-0")


@WAYS
def test_a_queue_whose_messages_were_all_handled_leaves_a_trace_without_a_loss(
    clocked: Clocked, client: redis.Redis, delete: Callable[[Clocked], None]
) -> None:
    queue = clocked.declare_queue("q", expires=ms(LIFE))
    queue.enqueue_many([b"acked", b"rejected"])
    one, other = queue.receive_many(2)
    one.ack()
    other.reject()
    delete(clocked)

    assert trace(client) == ("0-0", "0-0")
    assert client.keys("*{q}*") == [b"rqttl:{q}:tombstone"]


@WAYS
def test_earlier_expired_messages_are_in_the_trace_as_well(
    clocked: Clocked, client: redis.Redis, delete: Callable[[Clocked], None]
) -> None:
    queue = clocked.declare_queue("q", expires=ms(LIFE))
    place = queue.enqueue(Message(b"x", ttl="5ms")).id
    clocked.advance(5)
    queue.sweep()
    delete(clocked)

    assert trace(client) == ("0-0", place)


def test_messages_that_the_end_of_a_lifetime_dead_letters_have_left_the_queue_unhandled(
    clocked: Clocked, client: redis.Redis
) -> None:
    queue = clocked.declare_queue("q", expires=ms(LIFE), on_expire="dead-letter", dead_letter="d")
    place = queue.enqueue(b"x").id
    clocked.advance(LIFE)

    queue.sweep()
    assert clocked.queues() == ["d"]
    assert trace(client) == ("0-0", place)


def test_a_new_queue_of_the_name_keeps_the_trace_and_is_empty(clocked: Clocked, client: redis.Redis) -> None:
    place = clocked.declare_queue("q").enqueue(b"x").id
    clocked.queue("q").delete()

    assert clocked.declare_queue("q").stats().ready == 0
    assert trace(client) == (place, "0-0")
    clocked.queue("q").delete()
    assert trace(client) == (place, "0-0")


def test_a_trace_is_no_queue(clocked: Clocked) -> None:
    clocked.declare_queue("q").enqueue(b"x")
    clocked.queue("q").delete()

    assert clocked.queues() == []
