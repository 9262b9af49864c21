"""Event time in a session: a limit makes no message late."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import spark_connectors
from rqttl import Message
from tests.contract.clocked import Clocked
from tests.servers import Server
from tests.spark.streaming import windowed_counts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def arrive(clocked: Clocked, queue: str, count: int, every: int) -> None:
    """Have so many messages arrive in a queue, one each `every` ms, from the start of the clock on."""
    into = clocked.declare_queue(queue)
    for i in range(count):
        clocked.go_to(i * every)
        into.enqueue(Message(b"x"))


def test_a_windowed_count_under_a_limit_counts_every_message_of_a_sparse_and_a_dense_queue(
    spark: SparkSession, server: Server, clocked: Clocked, tmp_path: Path
) -> None:
    arrive(clocked, "dense", 3_000, 10)
    arrive(clocked, "sparse", 30, 1_000)
    spark_connectors.register(spark)
    reader = spark.readStream.format("rqttl").schema("queue string, died_at timestamp")
    messages = reader.options(url=server.url, queuePattern="#", maxEntriesPerTrigger="300").load()

    counts, batches = windowed_counts(messages, "queue", tmp_path)

    assert batches >= 11
    assert counts == {"dense": 3_000, "sparse": 30}
