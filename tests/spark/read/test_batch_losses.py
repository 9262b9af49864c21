"""Losses of a batch whose messages were trimmed, or deleted with their queue, before a task read them."""

from __future__ import annotations

import logging

import pytest
import redis

from rqttl import Broker, Message
from spark_connectors.errors import DataLoss
from tests.contract.clocked import Clocked
from tests.spark.following import TRIMS, letters
from tests.spark.letters import bury
from tests.spark.reading import Load


@pytest.mark.parametrize("again", [False, True])
def test_a_batch_fails_if_its_queue_was_deleted_with_what_was_to_be_read(
    clocked: Clocked, load: Load, again: bool
) -> None:
    dead = bury(clocked, 10)
    strict, lenient = load(queues="orders/dead"), load(queues="orders/dead", failOnDataLoss="false")
    dead.delete()
    clocked.advance(1)
    if again:
        bury(clocked, 3)

    with pytest.raises(DataLoss, match=r"queue 'orders/dead' was deleted.*, and unread messages .* were lost"):
        strict.rows()
    assert lenient.rows() == []


def test_a_batch_whose_letters_were_handled_before_the_queue_went_is_what_was_left_of_it(
    broker: Broker, load: Load, caplog: pytest.LogCaptureFixture
) -> None:
    dead = bury(broker, 10)
    job = load(queues="orders/dead")
    assert dead.redrive() == 10
    dead.delete()

    assert job.rows() == []
    assert caplog.text == ""


def test_a_batch_that_was_read_to_its_end_before_the_queue_went_is_whole(broker: Broker, load: Load) -> None:
    bury(broker, 10)
    bury(broker, 2_000, into="mails/dead", source="mails")
    job = load(queues="orders/dead,mails/dead", numPartitions=1)
    # small queues are read first
    batches = job.batches(0, rows=1)
    first = next(batches).to_pylist()
    broker.queue("orders/dead").delete()

    found = first + [row for batch in batches for row in batch.to_pylist()]

    assert len(found) == 2_010


@pytest.mark.parametrize("handled", [False, True])
def test_detached_messages_that_went_before_the_read_fail_the_batch(
    clocked: Clocked, client: redis.Redis, load: Load, handled: bool
) -> None:
    queue = clocked.declare_queue("a")
    queue.enqueue_many([Message(b"x" * 30, ttl=None if i % 20 == 0 else "5ms") for i in range(8_000)])
    clocked.advance(10)
    queue.sweep()
    queue.sweep()  # the first call has buried messages, and leaves the compaction to the next one
    queue.enqueue_many([b"x"] * 50)
    beside = client.hlen("rqttl:{a}:detached")
    assert beside >= 100
    batches = load(queues="a").batches(0, rows=1)
    logged = 0
    while logged < 450 - beside:
        logged += next(batches).num_rows
    assert logged + beside == 450
    if handled:
        queue.ack_many(queue.receive_many(450))
    queue.delete()

    if handled:
        assert list(batches) == []
    else:
        with pytest.raises(
            DataLoss, match="queue 'a' was deleted, and unread messages after 0000000000000-000000 were"
        ):
            list(batches)


@pytest.mark.parametrize("how", TRIMS)
def test_a_batch_whose_messages_were_trimmed_before_the_read_fails(how: str, clocked: Clocked, load: Load) -> None:
    sequences = letters(clocked.declare_queue("a"), 15)
    strict, lenient = load(queues="a"), load(queues="a", failOnDataLoss="false")
    TRIMS[how](clocked)
    lost = sequences[11 if how == "limit" else 14]

    with pytest.raises(
        DataLoss, match=f"queue 'a': messages after 0000000000000-000000, the highest of them {lost}, were removed"
    ):
        strict.rows()
    assert len(lenient.rows()) == (3 if how == "limit" else 0)


def test_a_batch_fails_in_the_middle_of_a_range_and_tells_the_unread_rest(clocked: Clocked, load: Load) -> None:
    sequences = letters(clocked.declare_queue("a"), 400)
    batches = load(queues="a", fetchEntries=100).batches(0, rows=1)
    first = next(batches).num_rows
    TRIMS["limit"](clocked)

    with pytest.raises(DataLoss, match=f"queue 'a': messages after .*, the highest of them {sequences[396]}"):
        list(batches)
    assert 0 < first < 396


def test_messages_that_were_lost_before_the_plan_are_no_loss_of_the_batch(
    clocked: Clocked, load: Load, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "spark_connectors")
    queue = clocked.declare_queue("a")
    queue.enqueue_many([b"stays", Message(b"goes", ttl="5ms"), b"stays"])
    clocked.advance(10)
    queue.sweep()

    assert len(load(queues="a").rows()) == 2
    assert caplog.records == []


def test_messages_that_were_handled_between_plan_and_read_are_no_loss(clocked: Clocked, load: Load) -> None:
    queue = clocked.declare_queue("a")
    sequences = letters(queue, 10)
    job = load(queues="a")
    queue.ack_many(queue.receive_many(3))
    queue.purge_many(sequences[3:6])

    assert len(job.rows()) == 4
