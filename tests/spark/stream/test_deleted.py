"""Losses of a stream with deleted queues, on real queues without Spark; and cases that are no loss."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import redis

from rqttl import Broker, Message
from rqttl.store.driver import driver_of
from spark_connectors.errors import DataLoss
from spark_connectors.options.options import Options
from spark_connectors.read import loss
from spark_connectors.stream.mark_plan import BatchLimit
from spark_connectors.stream.offsets import Offset
from spark_connectors.stream.reader import RqttlStreamReader, StreamPartition
from tests.contract.clocked import Clocked
from tests.servers import Server
from tests.spark.following import Follow, again, letters, planners, rows


@pytest.fixture
def follow(server: Server) -> Follow:
    return planners(server.url)


def read_all(follow: Follow, queue: str = "a") -> Offset:
    """Return the position of a query that has read the whole queue, as the next process gets it."""
    return again(follow(queues=queue).latest(follow(queues=queue).initial(), None))


def remake(broker: Broker) -> None:
    """Make the queue anew, with two messages."""
    letters(broker.declare_queue("a"), 2)


MEANWHILE: dict[str, Callable[[Broker], None]] = {"is gone": lambda _: None, "is made again": remake}
THEN = pytest.mark.parametrize("then", MEANWHILE)


# Between two batches


@THEN
def test_messages_that_came_after_the_last_look_and_went_with_the_queue_are_a_loss(
    broker: Broker, follow: Follow, then: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "spark_connectors")
    letters(broker.declare_queue("a"), 5)
    read = read_all(follow)
    unseen = letters(broker.queue("a"), 3)
    broker.queue("a").delete()
    MEANWHILE[then](broker)

    with pytest.raises(DataLoss, match=rf"queue 'a' was deleted.* after {read.positions['a'].after} .* {unseen[2]}\."):
        follow(queues="a").latest(read, None)
    lenient = follow(queues="a", failOnDataLoss="false")
    for _ in range(2):
        end = lenient.latest(read, None)
    assert len(caplog.records) == 1
    assert rows(driver_of(broker).store.client, lenient, read, end) == ({"a": 2} if then == "is made again" else {})


@THEN
@pytest.mark.parametrize("held", ["ready", "leased", "delayed", "expired"])
def test_messages_that_had_been_read_are_no_loss_in_any_state(
    clocked: Clocked, follow: Follow, held: str, then: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "spark_connectors")
    queue = clocked.declare_queue("a")
    queue.enqueue(Message(b"x", ttl="500ms"))
    read = read_all(follow)
    if held in ("leased", "delayed"):
        [delivery] = queue.receive_many(1)
        if held == "delayed":
            delivery.nack("5s")
    if held == "expired":
        clocked.advance(1_000)
        queue.sweep()
    clocked.advance(1)
    queue.delete()
    MEANWHILE[then](clocked)

    follow(queues="a").latest(read, None)
    assert caplog.records == []


@THEN
def test_messages_that_were_handled_before_the_queue_went_are_no_loss(
    broker: Broker, follow: Follow, then: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "spark_connectors")
    queue = broker.declare_queue("a", dead_letter="elsewhere")
    letters(queue, 5)
    read = read_all(follow)
    letters(queue, 4)
    queue.ack_many(queue.receive_many(7))
    queue.reject_many(queue.receive_many(2))
    queue.delete(if_empty=True)
    MEANWHILE[then](broker)

    follow(queues="a").latest(read, None)

    assert caplog.records == []


def test_messages_that_were_left_for_later_and_handled_then_are_no_loss_either(broker: Broker, follow: Follow) -> None:
    queue = broker.declare_queue("a")
    letters(queue, 5)
    cut = again(follow(queues="a").latest(follow(queues="a").initial(), BatchLimit(2)))
    assert cut.positions["a"].ahead == 3
    queue.ack_many(queue.receive_many(5))
    queue.delete()

    follow(queues="a").latest(cut, None)


def test_messages_that_were_left_for_later_and_went_with_the_queue_are_a_loss(broker: Broker, follow: Follow) -> None:
    letters(broker.declare_queue("a"), 5)
    cut = again(follow(queues="a").latest(follow(queues="a").initial(), BatchLimit(2)))
    broker.queue("a").delete()

    with pytest.raises(DataLoss, match="queue 'a' was deleted, and unread messages after"):
        follow(queues="a").latest(cut, None)


def test_messages_that_expired_unread_before_their_queue_was_deleted_are_a_loss(
    clocked: Clocked, follow: Follow
) -> None:
    queue = clocked.declare_queue("a", message_ttl="500ms")
    letters(queue, 5)
    read = read_all(follow)
    lost = letters(queue, 3)
    clocked.advance(1_000)
    queue.sweep()
    queue.delete(if_empty=True)

    with pytest.raises(DataLoss, match=f"queue 'a' was deleted.*the highest of them {lost[2]}"):
        follow(queues="a").latest(read, None)


@pytest.mark.parametrize("on_expire", ["drop", "dead-letter"])
def test_the_end_of_a_lifetime_is_a_deletion_like_any_other(clocked: Clocked, follow: Follow, on_expire: Any) -> None:
    queue = clocked.declare_queue("a", expires="500ms", on_expire=on_expire, dead_letter="elsewhere")
    letters(queue, 5)
    read = read_all(follow)
    lost = letters(queue, 3)
    clocked.advance(500)
    queue.sweep()

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


def test_a_loss_of_an_earlier_queue_of_the_name_is_not_told_again(clocked: Clocked, follow: Follow) -> None:
    letters(clocked.declare_queue("a"), 5)
    clocked.queue("a").delete()
    clocked.advance(1)
    letters(clocked.declare_queue("a"), 5)
    read = read_all(follow)
    clocked.queue("a").ack_many(clocked.queue("a").receive_many(9))
    clocked.queue("a").delete()

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

    second = query.latest(first, None)

    assert set(second.positions) == {"b"}
    assert query.latest(second, None) is second


# When there can be no tombstone any more


@pytest.mark.parametrize("known", [0, 3])
def test_after_a_week_what_was_known_to_be_unread_counts_as_lost_and_nothing_else(
    clocked: Clocked, client: redis.Redis, follow: Follow, known: int, caplog: pytest.LogCaptureFixture
) -> None:
    # by the clock of these queues it is years ago that anybody read
    caplog.set_level(logging.WARNING, "spark_connectors")
    letters(clocked.declare_queue("a"), 5)
    cut = again(follow(queues="a").latest(follow(queues="a").initial(), BatchLimit(5 - known) if known else None))
    clocked.queue("a").delete()
    client.delete("rqttl:{a}:tombstone")

    if known:
        with pytest.raises(DataLoss, match=f"{known} at most\\. Redis remembers the losses"):
            follow(queues="a").latest(cut, None)
    else:
        follow(queues="a").latest(cut, None)
        assert len(caplog.records) == 1


def test_a_tombstone_is_kept_longer_than_readers_count_on(broker: Broker, client: redis.Redis) -> None:
    letters(broker.declare_queue("a"), 1)
    broker.queue("a").delete()

    assert client.pttl("rqttl:{a}:tombstone") > loss.TOMBSTONE_LIFETIME


# Within a batch


@THEN
def test_a_batch_whose_queue_went_with_some_of_it_cannot_be_repeated(
    client: redis.Redis, broker: Broker, follow: Follow, then: str
) -> None:
    sequences = letters(broker.declare_queue("a"), 5)
    start = follow(queues="a").initial()
    end = follow(queues="a").latest(start, None)
    broker.queue("a").delete()
    MEANWHILE[then](broker)

    with pytest.raises(DataLoss, match=rf"^\[RQTTL_DATA_LOSS\] queue 'a' was deleted.* of them {sequences[4]}\."):
        follow(queues="a").watched_ranges(start, end)
    assert rows(client, follow(queues="a", failOnDataLoss="false"), start, end) == {}


@THEN
def test_a_batch_all_of_which_was_handled_before_its_queue_went_is_empty_when_repeated(
    client: redis.Redis, broker: Broker, follow: Follow, then: str
) -> None:
    queue = broker.declare_queue("a")
    letters(queue, 5)
    start = follow(queues="a").initial()
    end = follow(queues="a").latest(start, None)
    queue.ack_many(queue.receive_many(5))
    queue.delete()
    MEANWHILE[then](broker)

    assert rows(client, follow(queues="a"), start, end) == {}


def stream_task(server: Server, broker: Broker, *, fail: bool) -> tuple[RqttlStreamReader, StreamPartition]:
    """A task that is to read the queue `a`, planned."""
    options = {"url": server.url, "queues": "a", "failOnDataLoss": str(fail).lower(), "fetchEntries": "100"}
    reader = RqttlStreamReader(Options.parse("stream", options), ("queue", "sequence"))
    start = reader.initialOffset()
    [task] = reader.partitions(start, reader.latestOffset(start, reader.getDefaultReadLimit()))
    assert isinstance(task, StreamPartition)
    return reader, task


@pytest.mark.parametrize("beside", [False, True])
def test_a_task_of_a_stream_tells_what_went_with_the_queue_and_what_was_handled_is_no_loss(
    server: Server, broker: Broker, client: redis.Redis, beside: bool
) -> None:
    for handled in (False, True):
        queue = broker.declare_queue("a")
        letters(queue, 50)
        client.hset("rqttl:{a}:meta", "holds_dead_letters", int(not beside))
        tasks = [stream_task(server, broker, fail=fail) for fail in (True, False)]
        if handled:
            queue.ack_many(queue.receive_many(50))
        queue.delete()

        (strict, planned), (lenient, also_planned) = tasks
        assert list(lenient.read(also_planned)) == []
        if handled:
            assert list(strict.read(planned)) == []
        else:
            with pytest.raises(
                DataLoss, match="queue 'a' was deleted, and unread messages after 0000000000000-000000 were"
            ):
                list(strict.read(planned))
