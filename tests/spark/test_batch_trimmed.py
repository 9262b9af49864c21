"""Batches whose messages were removed between the plan and the read, without Spark; and cases that are no loss."""

from __future__ import annotations

import logging

import pytest

from rqttl import Message
from spark_connectors.errors import DataLoss
from tests.contract.clocked import Clocked
from tests.servers import Server
from tests.spark.following import TRIMS, letters
from tests.spark.reading import Load, loader


@pytest.fixture
def load(server: Server) -> Load:
    return loader(server.url)


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


def test_a_batch_of_many_tasks_fails_if_retention_removes_all_of_it(clocked: Clocked, load: Load) -> None:
    clocked.declare_queue("a").enqueue_many([b"x"] * 4_000)
    job = load(queues="a", numPartitions=4)
    assert len(job.ranges) == 4
    TRIMS["retention"](clocked)

    for index in range(4):
        with pytest.raises(DataLoss):
            job.task(index)


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
