"""Losses of a stream with deleted queues, on real queues without Spark; and cases that are no loss."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import redis

from rqttl import Broker, Message
from spark_connectors.errors import DataLoss
from spark_connectors.read import loss
from spark_connectors.stream.mark_plan import BatchLimit
from tests.contract.clocked import Clocked
from tests.spark.following import Follow, again, letters, read_all, rows


def nothing(_: Broker) -> None:
    """The queue stays away."""


def make_again(broker: Broker) -> None:
    """It is made anew, with two messages."""
    letters(broker.declare_queue("a"), 2)


THEN = pytest.mark.parametrize("then", [nothing, make_again])
Then = Callable[[Broker], None]


@THEN
def test_messages_that_came_after_the_last_look_and_went_with_the_queue_are_a_loss(
    client: redis.Redis, broker: Broker, follow: Follow, then: Then, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "spark_connectors")
    letters(broker.declare_queue("a"), 5)
    read = read_all(follow)
    unseen = letters(broker.queue("a"), 3)
    broker.queue("a").delete()
    then(broker)

    with pytest.raises(DataLoss, match=rf"queue 'a' was deleted.* after {read.positions['a'].after} .* {unseen[2]}\."):
        follow(queues="a").latest(read, None)
    lenient = follow(queues="a", failOnDataLoss="false")
    for _ in range(2):
        end = lenient.latest(read, None)
    assert len(caplog.records) == 1
    assert rows(client, lenient, read, end) == ({"a": 2} if then is make_again else {})


@THEN
@pytest.mark.parametrize("held", ["ready", "leased", "delayed", "expired", "handled unread"])
@pytest.mark.usefixtures("silent")
def test_messages_that_had_been_read_or_were_handled_are_no_loss(
    clocked: Clocked, follow: Follow, held: str, then: Then
) -> None:
    queue = clocked.declare_queue("a", dead_letter_rejected="elsewhere")
    queue.enqueue(Message(b"x", ttl="500ms"))
    read = read_all(follow)
    if held in ("leased", "delayed"):
        [delivery] = queue.receive_many(1)
        if held == "delayed":
            delivery.nack("5s")
    elif held == "expired":
        clocked.advance(1_000)
        queue.sweep()
    elif held == "handled unread":
        letters(queue, 4)
        queue.ack_many(queue.receive_many(3))
        queue.reject_many(queue.receive_many(2))
    clocked.advance(1)
    queue.delete()
    then(clocked)

    follow(queues="a").latest(read, None)


def test_a_queue_that_was_read_by_the_running_query_is_not_judged_by_how_it_was_first_seen(
    broker: Broker, follow: Follow
) -> None:
    query = follow(queuePattern="#")
    start = query.initial()
    for name in "ab":
        broker.declare_queue(name)
    assert query.latest(start, None) is start
    letters(broker.queue("a"), 3)
    first = query.latest(start, None)
    broker.queue("a").delete()
    letters(broker.queue("b"), 3)

    assert set(query.latest(first, None).positions) == {"b"}


@pytest.mark.parametrize("handled", [True, False])
def test_messages_that_were_left_for_later_are_a_loss_unless_they_were_handled_then(
    handled: bool, broker: Broker, follow: Follow
) -> None:
    queue = broker.declare_queue("a")
    letters(queue, 5)
    cut = again(follow(queues="a").latest(follow(queues="a").initial(), BatchLimit(2)))
    assert cut.positions["a"].ahead == 3
    if handled:
        queue.ack_many(queue.receive_many(5))
    queue.delete()

    with (
        nullcontext() if handled else pytest.raises(DataLoss, match="queue 'a' was deleted, and unread messages after")
    ):
        follow(queues="a").latest(cut, None)


@pytest.mark.parametrize(
    "options",
    [
        {"message_ttl": "500ms"},
        {"expires": "500ms", "on_expire": "drop"},
        {"expires": "500ms", "on_expire": "dead-letter", "dead_letter": "elsewhere"},
    ],
)
def test_messages_that_expired_unread_and_the_end_of_a_lifetime_are_losses_like_any_deletion(
    options: dict[str, Any], clocked: Clocked, follow: Follow
) -> None:
    queue = clocked.declare_queue("a", **options)
    letters(queue, 5)
    read = read_all(follow)
    lost = letters(queue, 3)
    clocked.advance(1_000)
    queue.sweep()
    if "message_ttl" in options:
        queue.delete(if_empty=True)

    with pytest.raises(DataLoss, match=f"queue 'a' was deleted.*the highest of them {lost[2]}"):
        follow(queues="a").latest(read, None)


def test_of_a_queue_that_came_and_went_meanwhile_everything_unhandled_is_lost(clocked: Clocked, follow: Follow) -> None:
    letters(clocked.declare_queue("a"), 5)
    read = read_all(follow)
    clocked.queue("a").purge()
    clocked.queue("a").delete()
    follow(queues="a").latest(read, None)  # the first one had been read
    for handled in (True, False):
        clocked.advance(1)
        letters(clocked.declare_queue("a"), 1)
        if handled:
            clocked.queue("a").ack_many(clocked.queue("a").receive_many(9))
        clocked.queue("a").delete()
        clocked.advance(1)
        clocked.declare_queue("a")
        if handled:
            follow(queues="a").latest(read, None)

    with pytest.raises(DataLoss, match="queue 'a' was deleted and created again, and unread messages after"):
        follow(queues="a").latest(read, None)


def test_a_queue_that_was_seen_empty_and_never_with_what_it_lost(
    broker: Broker, follow: Follow, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "spark_connectors")
    strict, lenient = follow(queuePattern="#"), follow(queuePattern="#", failOnDataLoss="false")
    start = strict.initial()
    for name in ("a", "clean"):
        broker.declare_queue(name)
    for one in (strict, lenient):
        assert one.latest(start, None) is start
    letters(broker.queue("a"), 3)
    for name in ("a", "clean"):
        broker.queue(name).delete()

    with pytest.raises(DataLoss, match="queue 'a' was deleted, and unread messages after 0000000000000-000000"):
        strict.latest(start, None)
    assert lenient.latest(start, None) is start
    [record] = caplog.records
    assert "queue 'a' was deleted, and unread messages after" in record.getMessage()


@pytest.mark.parametrize("known", [0, 3])
def test_when_there_can_be_no_tombstone_any_more_what_was_known_to_be_unread_counts_as_lost_and_nothing_else(
    clocked: Clocked, client: redis.Redis, follow: Follow, known: int, caplog: pytest.LogCaptureFixture
) -> None:
    # by the clock of these queues it is years ago that anybody read
    caplog.set_level(logging.WARNING, "spark_connectors")
    letters(clocked.declare_queue("a"), 5)
    cut = again(follow(queues="a").latest(follow(queues="a").initial(), BatchLimit(5 - known) if known else None))
    clocked.queue("a").delete()
    client.delete("rqttl:{a}:tombstone")

    lost = rf"{known} at most\. Redis remembers the losses"
    with pytest.raises(DataLoss, match=lost) if known else nullcontext():
        follow(queues="a").latest(cut, None)
    assert len(caplog.records) == (0 if known else 1)


def test_a_tombstone_is_kept_longer_than_readers_count_on(broker: Broker, client: redis.Redis) -> None:
    letters(broker.declare_queue("a"), 1)
    broker.queue("a").delete()

    assert client.pttl("rqttl:{a}:tombstone") > loss.TOMBSTONE_LIFETIME


@THEN
@pytest.mark.parametrize("handled", [False, True])
def test_a_batch_whose_queue_went_cannot_be_repeated_unless_all_of_it_was_handled(
    handled: bool, client: redis.Redis, broker: Broker, follow: Follow, then: Then
) -> None:
    queue = broker.declare_queue("a")
    sequences = letters(queue, 5)
    start = follow(queues="a").initial()
    end = follow(queues="a").latest(start, None)
    if handled:
        queue.ack_many(queue.receive_many(5))
    queue.delete()
    then(broker)

    told = rf"^\[RQTTL_DATA_LOSS\] queue 'a' was deleted.* of them {sequences[4]}\."
    with nullcontext() if handled else pytest.raises(DataLoss, match=told):
        follow(queues="a").watched_ranges(start, end)
    assert rows(client, follow(queues="a", failOnDataLoss="false"), start, end) == {}
