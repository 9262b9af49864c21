"""Event time in a session: a limit makes no message late."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import spark_connectors
from rqttl import Message
from tests.contract.clocked import Clocked
from tests.servers import Server
from tests.spark.streaming import PATIENCE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def arrive(clocked: Clocked, queue: str, count: int, every: int) -> None:
    """Have so many messages arrive in a queue, one each `every` ms, from the start of the clock on."""
    into = clocked.declare_queue(queue)
    for i in range(count):
        clocked.go_to(i * every)
        into.enqueue(Message(b"x"))


def test_a_windowed_count_under_a_limit_counts_every_message_of_a_sparse_and_a_dense_queue(
    spark: SparkSession, server: Server, clocked: Clocked, tmp_path: Path
) -> None:
    from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it

    arrive(clocked, "dense", 3_000, 10)
    arrive(clocked, "sparse", 30, 1_000)
    spark_connectors.register(spark)
    reader = spark.readStream.format("rqttl").schema("queue string, died_at timestamp")
    messages = reader.options(url=server.url, queuePattern="#", maxEntriesPerTrigger="300").load()
    counts = messages.withWatermark("died_at", "1 second").groupBy(F.window("died_at", "5 seconds"), "queue").count()
    #: The last count of each window and queue, as a table with updates holds it.
    table: dict[tuple[object, str], int] = {}
    batches: list[int] = []

    def update(frame: DataFrame, number: int) -> None:
        rows = frame.collect()
        batches.append(number)
        table.update({(row.window.start, row.queue): row["count"] for row in rows})

    writer = counts.writeStream.outputMode("update").foreachBatch(update).trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(tmp_path)).start()
    try:
        assert query.awaitTermination(PATIENCE)
    finally:
        query.stop()

    assert len(batches) >= 11
    assert sum(n for (_, queue), n in table.items() if queue == "dense") == 3_000
    assert sum(n for (_, queue), n in table.items() if queue == "sparse") == 30
