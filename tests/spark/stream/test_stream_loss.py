"""Losses of a stream with existing queues, on real queues without Spark; and cases that are no loss."""

from __future__ import annotations

import json
import logging

import pytest
import redis

from rqttl import Broker, Message
from spark_connectors.errors import DataLoss
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
