"""Losses of a stream, of queues that are there and of deleted ones, without Spark; and cases that are no loss."""

from __future__ import annotations

import json
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
from tests.spark.following import TRIMS, Follow, again, by_limit, by_purge, letters, read_all, rows


@pytest.mark.parametrize("how", TRIMS)
def test_messages_trimmed_unread_fail_the_query_or_are_passed_over(
    how: str, client: redis.Redis, clocked: Clocked, follow: Follow, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "spark_connectors")
    queue = clocked.declare_queue("a")
    letters(queue, 5)
    read = follow(queues="a").latest(follow(queues="a").initial(), None)
    lost = letters(queue, 10)
    TRIMS[how](clocked)
    letters(queue, 2)

    with pytest.raises(DataLoss) as raised:
        follow(queues="a").latest(again(read), None)
    lenient = follow(queues="a", failOnDataLoss="false")
    end = lenient.latest(again(read), None)

    highest = client.hget("rqttl:{a}:meta", "trimmed_upto")
    assert isinstance(highest, bytes)
    assert str(raised.value).startswith(
        f"[RQTTL_DATA_LOSS] queue 'a': messages after {read.positions['a'].after}, "
        f"the highest of them {highest.decode()},"
    )
    assert highest.decode() >= lost[-4]
    assert rows(client, lenient, read, end) == {"a": 3 if how == "limit" else 2}
    assert len(caplog.records) == 1
    assert follow(queues="a").latest(again(end), None).positions == end.positions


@pytest.mark.parametrize("how", TRIMS)
def test_messages_that_had_been_read_or_left_before_the_query_began_are_no_loss(
    how: str, client: redis.Redis, clocked: Clocked, follow: Follow
) -> None:
    letters(clocked.declare_queue("a"), 15)
    read = follow(queues="a").latest(follow(queues="a").initial(), None)
    TRIMS[how](clocked)
    follow(queues="a").latest(again(read), None)
    letters(clocked.queue("a"), 2)

    for options in ({}, {"startingTimestamp": "1970-01-01 00:00Z"}):
        planner = follow(queues="a", **options)
        end = planner.latest(planner.initial(), None)
        assert rows(client, planner, planner.initial(), end) == {"a": 3 if how == "limit" else 2}


@pytest.mark.parametrize("how", TRIMS)
@pytest.mark.parametrize("seen", ["never", "never, by a restarted query", "empty"])
def test_messages_that_a_new_queue_lost_before_its_first_batch_are_a_loss(
    how: str, seen: str, clocked: Clocked, follow: Follow
) -> None:
    letters(clocked.declare_queue("b"), 1)
    read = read_all(follow, queuePattern="#")
    strict, lenient = follow(queuePattern="#"), follow(queuePattern="#", failOnDataLoss="false")
    if seen == "never":
        assert strict.latest(read, None) is lenient.latest(read, None) is read
    queue = clocked.declare_queue("a")
    if seen == "empty":
        assert strict.latest(read, None) is lenient.latest(read, None) is read
    lost = letters(queue, 5)
    TRIMS[how](clocked)

    with pytest.raises(DataLoss, match="queue 'a': messages after 0000000000000-000000, the highest of them"):
        strict.latest(read, None)

    end = lenient.latest(read, None)
    assert end.positions["a"].after == lost[-1]
    assert follow(queuePattern="#").latest(again(end), None).positions == end.positions


@pytest.mark.parametrize(
    "before, after",
    [
        ({"queuePattern": "b.#"}, {"queuePattern": "#"}),
        ({"queuePattern": "b.#"}, {"queues": "b.1,a"}),
        ({"queues": "b.1"}, {"queues": "b.1,a"}),
    ],
)
def test_what_a_queue_lost_before_a_restart_selects_it_is_no_loss(
    before: dict[str, str], after: dict[str, str], clocked: Clocked, follow: Follow
) -> None:
    letters(clocked.declare_queue("b.1"), 1)
    letters(clocked.declare_queue("a"), 5)
    by_limit(clocked)
    read = read_all(follow, **before)

    planner = follow(**after)
    end = planner.latest(read, None)

    assert {watched.range.queue for watched in planner.watched_ranges(read, end)} == {"a"}
    letters(clocked.queue("a"), 5)
    by_purge(clocked)
    with pytest.raises(DataLoss, match="queue 'a'"):
        follow(**after).latest(again(end), None)


@pytest.mark.parametrize("lose", ["delete", "forget", "forget and declare"])
def test_a_loss_that_was_accepted_is_over_also_if_the_run_read_no_row(
    lose: str, client: redis.Redis, clocked: Clocked, follow: Follow
) -> None:
    letters(clocked.declare_queue("a"), 5)
    read = read_all(follow, queuePattern="#")
    letters(clocked.queue("a"), 5)
    if lose == "delete":
        clocked.queue("a").delete()
    else:
        client.flushall()
    if lose == "forget and declare":
        clocked.declare_queue("a")
    with pytest.raises(DataLoss):
        follow(queuePattern="#").latest(read, None)

    lenient = follow(queuePattern="#", failOnDataLoss="false")
    end = again(lenient.latest(read, None))

    assert lenient.watched_ranges(read, end) == []
    assert lenient.latest(end, None) is end
    assert follow(queuePattern="#").latest(end, None) is end


def test_a_loss_behind_the_target_of_a_run_is_accepted_by_this_run(clocked: Clocked, follow: Follow) -> None:
    letters(clocked.declare_queue("a"), 5)
    lenient = follow(queues="a", failOnDataLoss="false")
    lenient.freeze()
    read = again(lenient.latest(lenient.initial(), None))
    letters(clocked.queue("a"), 5)
    by_purge(clocked)

    end = again(lenient.latest(read, None))

    assert lenient.latest(end, None) is end
    assert follow(queues="a").latest(end, None).positions["a"].received == 10


@pytest.mark.parametrize("how", TRIMS)
def test_messages_that_a_new_queue_of_the_same_name_lost_before_the_next_look_are_a_loss(
    how: str, client: redis.Redis, clocked: Clocked, follow: Follow
) -> None:
    letters(clocked.declare_queue("a"), 5)
    read = read_all(follow)
    clocked.queue("a").delete()
    clocked.advance(1)
    lost = letters(clocked.declare_queue("a"), 5)
    TRIMS[how](clocked)

    highest = lost[1] if how == "limit" else ""
    with pytest.raises(DataLoss, match=f"queue 'a': messages after 0000000000000-000000, .* {highest}"):
        follow(queues="a").latest(read, None)
    lenient = follow(queues="a", failOnDataLoss="false")
    end = lenient.latest(read, None)
    assert rows(client, lenient, read, end) == {"a": 3 if how == "limit" else 0}
    assert follow(queues="a").latest(again(end), None).positions == end.positions


def test_missing_messages_behind_a_starting_sequence_of_the_user_are_a_loss(clocked: Clocked, follow: Follow) -> None:
    sequences = letters(clocked.declare_queue("a"), 15)
    by_limit(clocked)

    strict = follow(queues="a", startingOffsets=json.dumps({"a": sequences[4]}))
    start = strict.initial()

    with pytest.raises(DataLoss):
        strict.latest(start, None)
    behind = follow(queues="a", startingOffsets=json.dumps({"a": sequences[11]}))
    assert behind.latest(behind.initial(), None).positions["a"].after == sequences[14]


@pytest.mark.parametrize("how", TRIMS)
def test_a_batch_is_not_repeated_with_less_than_it_had(
    how: str, client: redis.Redis, clocked: Clocked, follow: Follow
) -> None:
    letters(clocked.declare_queue("a"), 15)
    start = follow(queues="a").initial()
    end = follow(queues="a").latest(start, None)
    assert rows(client, follow(queues="a"), again(start), again(end)) == {"a": 15}
    TRIMS[how](clocked)

    with pytest.raises(DataLoss, match="queue 'a': messages after 0000000000000-000000, the highest of them"):
        follow(queues="a").watched_ranges(again(start), again(end))
    lenient = follow(queues="a", failOnDataLoss="false")
    assert rows(client, lenient, again(start), again(end)) == {"a": 3 if how == "limit" else 0}


def test_acked_redriven_and_rejected_messages_are_no_loss(client: redis.Redis, broker: Broker, follow: Follow) -> None:
    source = broker.declare_queue("orders", dead_letter="orders/dead")
    letters(source, 40)
    source.update(max_length=0)
    source.update(max_length=None)
    dead = broker.queue("orders/dead")
    start = follow(queues="orders/dead").initial()
    end = follow(queues="orders/dead").latest(start, BatchLimit(20))

    dead.redrive(limit=25)
    dead.ack_many(dead.receive_many(5))
    dead.reject_many(dead.receive_many(5))

    follow(queues="orders/dead").watched_ranges(start, end)
    rest = follow(queues="orders/dead").latest(again(end), None)
    assert rows(client, follow(queues="orders/dead"), end, rest) == {"orders/dead": 5}


@pytest.mark.parametrize("unread", [False, True])
def test_a_purge_of_chosen_letters_is_a_decision_and_no_loss(
    unread: bool, client: redis.Redis, clocked: Clocked, follow: Follow
) -> None:
    queue = clocked.declare_queue("a")
    sequences = letters(queue, 10)
    start = follow(queues="a").initial()
    end = follow(queues="a").latest(start, BatchLimit(5))
    queue.purge_many(sequences[2:8], unread=unread)

    if unread:
        with pytest.raises(DataLoss, match=f"the highest of them {sequences[7]}"):
            follow(queues="a").watched_ranges(again(start), again(end))
        return
    assert rows(client, follow(queues="a"), again(start), again(end)) == {"a": 2}
    assert follow(queues="a").latest(again(end), None).positions["a"].after == sequences[9]


def test_a_message_that_expired_early_before_a_query_began_does_not_hide_the_others(
    client: redis.Redis, clocked: Clocked, follow: Follow
) -> None:
    queue = clocked.declare_queue("a")
    queue.enqueue_many([b"stays", Message(b"goes", ttl="5ms"), b"stays"])
    clocked.advance(10)
    queue.sweep()
    planner = follow(queues="a")

    end = planner.latest(planner.initial(), BatchLimit(1))
    last = follow(queues="a").latest(again(end), BatchLimit(1))

    assert rows(client, follow(queues="a"), planner.initial(), again(end)) == {"a": 1}
    assert rows(client, follow(queues="a"), end, last) == {"a": 1}


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
