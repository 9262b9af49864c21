"""`update`: the messages that die by changed options are counted, beforehand and afterwards."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from rqttl import Broker, InvalidOption, Message, Policy, QueueNotFound, UpdateResult
from tests.contract.clocked import Clocked
from tests.lua.states import everything

BODIES = [bytes([65 + i % 26]) * (i % 7) for i in range(600)]


def counts(result: UpdateResult) -> tuple[int, int]:
    return result.expired, result.trimmed


def filled(clocked: Clocked) -> Any:
    """600 messages, one a ms; the first 20 were received and came back, the next 30 have an own TTL that is over."""
    queue = clocked.declare_queue("orders", dead_letter_maxlen="over")
    for i, body in enumerate(BODIES):
        queue.enqueue(body, ttl=None if not 20 <= i < 50 else "580ms")
        clocked.advance(1)
    batch = queue.receive_many(20)
    queue.nack_many(batch)
    clocked.advance(100)
    return queue


CHANGES: list[dict[str, Any]] = [
    {"message_ttl": "300ms"},
    {"message_ttl": 0},
    {"message_ttl": "1h"},
    {"max_length": 100},
    {"max_length_bytes": 500},
    {"max_length": 9, "message_ttl": "400ms"},
    {"lease": "5s"},
    {"max_length": 0, "overflow": "reject-publish"},
]


@pytest.mark.parametrize("changes", CHANGES)
def test_update_tells_what_a_preview_has_counted(clocked: Clocked, changes: dict[str, Any]) -> None:
    queue = filled(clocked)

    preview = queue.preview_update(**changes)
    before = queue.stats()
    result = queue.update(**changes)
    after = queue.stats()

    assert result == preview
    assert before.ready == 570
    assert after.ready == 570 - result.expired - result.trimmed
    assert after.deaths.get("expired", 0) == 30 + result.expired
    assert after.deaths.get("maxlen", 0) == result.trimmed
    assert (result.before, result.after) == (before_options(queue, changes), queue.options())


def before_options(queue: Any, changes: dict[str, Any]) -> Any:
    return queue.options().changed(dict.fromkeys(changes))


def test_a_preview_changes_nothing_but_what_is_due(clocked: Clocked, client: redis.Redis) -> None:
    queue = filled(clocked)
    queue.sweep()
    before = everything(client)

    assert counts(queue.preview_update(message_ttl="300ms", max_length=3)) == (401 - 30, 199 - 3)
    assert everything(client) == before


def test_messages_that_are_overdue_are_no_effect_of_an_update(clocked: Clocked) -> None:
    queue = clocked.declare_queue("orders", message_ttl="1s")
    queue.enqueue_many([b"x"] * 300)
    clocked.advance(1_000)
    queue.enqueue_many([b"y"] * 10)

    assert counts(queue.update(max_length=4)) == (0, 6)
    deaths = queue.stats().deaths
    assert (deaths["expired"], deaths["maxlen"]) == (300, 6)


def test_returned_messages_push_nothing_out_while_expired_ones_take_the_room(clocked: Clocked) -> None:
    queue = clocked.declare_queue("orders", max_length=500, lease="1s")
    queue.enqueue_many([b"leased"] * 300)
    assert len(queue.receive_many(300)) == 300
    queue.enqueue_many([Message(b"brief", ttl="1s")] * 500)
    clocked.advance(1_000)

    queue.sweep()

    stats = queue.stats()
    assert (stats.ready, stats.deaths["expired"], stats.deaths["maxlen"]) == (300, 500, 0)


def nothing_but_delayed(clocked: Clocked, count: int = 1) -> Any:
    """A queue with so many delayed messages, 5 s old."""
    queue = clocked.declare_queue("orders", dead_letter_expired="late")
    queue.enqueue_many([b"x"] * count)
    for _ in range(0, count, 500):
        queue.nack_many(queue.receive_many(500), delay="1h")
    clocked.advance("5s")
    return queue


@pytest.mark.parametrize("count", [1, 600])
@pytest.mark.parametrize("ready", [0, 3])
def test_delayed_messages_that_a_shorter_retention_ends_are_counted_too(
    clocked: Clocked, count: int, ready: int
) -> None:
    queue = nothing_but_delayed(clocked, count)
    queue.enqueue_many([b"young"] * ready)

    preview = queue.preview_update(message_ttl="1s", max_length=1)
    result = queue.update(message_ttl="1s", max_length=1)

    assert counts(preview) == counts(result) == (count, max(0, ready - 1))
    assert queue.stats().deaths["expired"] == clocked.queue("late").stats().ready == count


def test_delayed_messages_that_a_policy_ends_are_counted_too(clocked: Clocked) -> None:
    queue = nothing_but_delayed(clocked)

    preview = clocked.preview_policy(Policy.read("p", "orders", {"message_ttl": "1s"}))
    result = clocked.set_policy("p", "orders", {"message_ttl": "1s"})

    assert preview.expired == result.expired == queue.stats().deaths["expired"] == 1


@pytest.mark.parametrize("call", ["update", "preview_update"])
def test_a_wrong_change_is_refused_before_anything_is_swept(clocked: Clocked, client: redis.Redis, call: str) -> None:
    queue = clocked.declare_queue("orders", message_ttl="1s")
    queue.enqueue(b"x")
    clocked.advance(2_000)
    before = everything(client)

    with pytest.raises(InvalidOption):
        getattr(queue, call)(max_length=-1)

    assert everything(client) == before


def test_a_preview_of_a_missing_queue_says_so(broker: Broker) -> None:
    with pytest.raises(QueueNotFound):
        broker.queue("nope").preview_update(max_length=1)
