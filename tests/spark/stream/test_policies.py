"""Policies and Spark: options that policies give act on written rows, and expiry queues that a policy made are read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from click.testing import CliRunner

from rqttl import Broker
from rqttl.cli import cli
from tests.servers import Server
from tests.spark.streaming import Stream
from tests.spark.writing import LETTERS, MESSAGES, Job, batch, counts, ids, numbered

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WITH_TTL = f"{MESSAGES}, ttl string"
Write = Callable[..., Job]


@pytest.fixture
def write(broker: Broker, redis_url: str) -> Write:
    """Makes jobs that write into the queue `orders`."""
    broker.declare_queue("orders", max_length=1_000)
    return lambda ddl=MESSAGES, **options: Job(redis_url, ddl, {"queue": "orders", **options})


@pytest.mark.parametrize("set_policy", ["set_policy", "set_operator_policy"])
def test_rows_beyond_the_limit_of_a_policy_are_refused(write: Write, broker: Broker, set_policy: str) -> None:
    getattr(broker, set_policy)("limit", "#", {"max_length": 3, "overflow": "reject-publish"})

    report = write().task(numbered(5))

    assert counts(report) == {"stored": 3, "duplicates": 0, "refused queue_full": 2}
    assert ids(broker.queue("orders")) == ["m-0", "m-1", "m-2"]


def test_the_retention_of_a_policy_ends_written_messages(write: Write, broker: Broker) -> None:
    broker.set_policy("short", "#", {"message_ttl": "1h", "max_ttl": "10m"})

    write(WITH_TTL).task([("a", b"1", None), ("b", b"2", "5m"), ("c", b"3", "2h")])

    lives = [view.expires_at - view.enqueued_at for view in broker.queue("orders").peek() if view.expires_at]
    assert [life.total_seconds() for life in lives] == [600, 300, 600]


def test_a_policy_that_changes_during_a_task_acts_on_its_next_rows(write: Write, broker: Broker) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield batch(MESSAGES, numbered(2))
        broker.set_policy("small", "orders", {"max_message_bytes": 3, "max_length": 3, "overflow": "reject-publish"})
        yield batch(MESSAGES, [("large", b"1234"), ("m-2", b"2"), ("m-3", b"3")])
        broker.delete_policy("small")
        yield batch(MESSAGES, [("m-4", b"1234")])

    report = write().run(batches())

    assert ids(broker.queue("orders")) == ["m-0", "m-1", "m-2", "m-4"]
    assert counts(report) == {
        "stored": 4,
        "duplicates": 0,
        "refused message_too_large": 1,
        "refused queue_full": 1,
    }


def test_an_expiry_queue_that_a_written_row_creates_has_the_options_of_its_policies(
    write: Write, broker: Broker
) -> None:
    broker.set_policy("expiry", "#", {"dead-letter-expired": "EXP.{queue}"})
    broker.set_policy("kept", "EXP.#", {"max_length": 2, "auto_delete_on_idle": "1d"})

    report = write(WITH_TTL).task([(f"m-{i}", b"x", "0") for i in range(5)])

    assert counts(report)["stored"] == 5
    born = broker.queue("EXP.orders")
    assert born.options().as_arguments() == {"max_length": 2, "auto_delete_on_idle": "1d"}
    assert ids(born) == ["m-3", "m-4"]
    assert broker.reconcile().changed == {}


def test_a_redrive_respects_the_limit_of_a_policy(write: Write, broker: Broker, redis_url: str) -> None:
    queue = broker.queue("orders")
    broker.set_policy("dead", "#", {"dead_letter": "{queue}/dead"})
    queue.enqueue_many([b"x"] * 3)
    queue.reject_many(queue.receive_many(3))
    broker.set_policy("limit", "orders", {"max_length": 1, "overflow": "reject-publish"})
    letters = [("orders/dead", view.sequence, "orders") for view in broker.queue("orders/dead").peek()]

    report = Job(redis_url, LETTERS, {"operation": "redrive"}).task(letters)

    assert counts(report) == {"moved": 1, "refused queue_full": 2}
    assert (queue.stats().ready, broker.queue("orders/dead").stats().ready) == (1, 2)


def test_a_session_writes_under_policies_and_follows_the_expiry_queues_that_they_make(
    spark: SparkSession, server: Server, broker: Broker, tmp_path: Path
) -> None:
    broker.set_policy("expiry", "#", {"dead-letter-expired": "EXP.{queue}"})
    broker.set_policy("kept", "EXP.#", {"lease": "2m"})
    broker.set_operator_policy("now", "orders.eu", {"message_ttl": 0})
    for name in ("orders.eu", "orders.us"):
        broker.declare_queue(name)
    stream = Stream(spark, tmp_path / "checkpoint", server.url, queuePattern="EXP.#", startingOffsets="earliest")

    rows = [(f"{name}-{i}", "x", name) for name in ("orders.eu", "orders.us") for i in range(10)]
    frame = spark.createDataFrame(rows, "message_id string, body string, queue string")
    frame.write.format("rqttl").option("url", server.url).mode("append").save()

    assert (sum(stream.run()), {queue for queue, _ in stream.rows}) == (10, {"EXP.orders.eu"})
    assert broker.queue("EXP.orders.eu").options().as_arguments() == {"lease": "2m"}
    assert broker.queue("orders.us").stats().ready == 10
    broker.queue("EXP.orders.eu").delete()
    broker.queue("orders.eu").enqueue(b"later", id="later")
    assert sum(stream.run()) == 1
    report = CliRunner().invoke(cli, ["--url", server.url, "dead", "report", "EXP.orders.eu", "--json"])
    assert report.exit_code == 0, report.output
    assert '"orders.eu"' in report.output
