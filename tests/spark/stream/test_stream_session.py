"""Streaming queries in a session: batches, limits, losses, policies and event time."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it

import spark_connectors
from rqttl import Broker, Message
from spark_connectors.versions import TELLS_START
from tests.contract.clocked import Clocked
from tests.servers import Server
from tests.spark.following import held
from tests.spark.letters import bury
from tests.spark.streaming import SEVERAL_BATCHES, Stream, finish_all

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


Streams = Callable[..., Stream]


@pytest.fixture
def stream(spark: SparkSession, server: Server, broker: Broker, tmp_path: Path) -> Streams:
    """Makes a query of this test: `stream(queues="orders/dead", maxEntriesPerTrigger=100)`."""

    def make(**options: object) -> Stream:
        return Stream(spark, tmp_path / "checkpoint", server.url, **options)

    return make


def into(broker: Broker, queue: str, count: int) -> None:
    """Have so many letters arrive in a queue."""
    bury(broker, count, into=queue, source=f"source.of.{queue}")


def test_each_letter_is_in_one_batch_within_the_limit_and_in_order(stream: Streams, broker: Broker) -> None:
    bury(broker, 350)
    query = stream(queues="orders/dead", maxEntriesPerTrigger=100)

    assert query.run() == [100, 100, 100, 50]
    bury(broker, 35, first=350)
    assert query.run() == [35]
    assert query.run() == []
    assert query.rows == held(broker, "orders/dead")


def test_a_batch_that_failed_is_repeated_as_it_was(stream: Streams, broker: Broker) -> None:
    for i in range(3):
        into(broker, f"dead.{i}", 100)
    query = stream(queuePattern="dead.#", maxEntriesPerTrigger=120)
    query.crash_in = 1

    with pytest.raises(StreamingQueryException, match="the batch was read, and not committed"):
        query.run()
    into(broker, "dead.1", 40)
    query.crash_in = -1
    query.run(numPartitions=5, maxEntriesPerTrigger=1_000)

    failed, repeated = query.attempts[1]
    assert len(failed) == 120
    assert repeated == failed
    assert Counter(query.rows) == Counter(held(broker, "dead.0", "dead.1", "dead.2"))
    assert all(len(of) == 1 for number, of in query.attempts.items() if number != 1)


@SEVERAL_BATCHES
def test_available_now_ends_while_more_comes_than_is_read(stream: Streams, broker: Broker) -> None:
    bury(broker, 200)
    there = held(broker, "orders/dead")
    query = stream(queuePattern="*/dead", maxEntriesPerTrigger=100)

    def produce() -> None:
        n = 200 + 150 * len(query.attempts)
        bury(broker, 150, first=n)
        into(broker, f"new{n}/dead", 1)

    query.meanwhile = produce

    assert query.run() == [100, 100]
    assert query.rows == there
    query.meanwhile = int
    assert query.run(maxEntriesPerTrigger=1_000_000) == [302]


def test_queues_come_and_go_while_a_query_runs(stream: Streams, broker: Broker) -> None:
    into(broker, "dead.a", 10)
    query = stream(queuePattern="dead.#")
    expected = held(broker, "dead.a")
    running = query.start()
    try:
        running.processAllAvailable()
        into(broker, "dead.b", 4)
        expected += held(broker, "dead.b")
        running.processAllAvailable()
        broker.queue("dead.a").delete()
        into(broker, "dead.a", 3)
        expected += held(broker, "dead.a")
        running.processAllAvailable()
        progress = running.lastProgress
    finally:
        running.stop()

    assert query.rows == expected
    assert progress is not None
    if not TELLS_START:
        return
    offsets = json.loads(json.dumps(progress["sources"][0]["latestOffset"], default=str))
    offsets = json.loads(offsets) if isinstance(offsets, str) else offsets
    assert set(offsets["queues"]) == {"dead.a", "dead.b"}
    assert offsets["unread"] == 0


def test_a_query_that_waits_connects_to_nothing_and_asks_before_it_starts(
    spark: SparkSession, tmp_path: Path, server: Server
) -> None:
    nowhere = Stream(spark, tmp_path / "a", "redis://127.0.0.1:1/0", queues="a", connectRetries=0)
    missing = Stream(spark, tmp_path / "b", server.url, queues="nobody/dead")

    assert spark.readStream.format("rqttl").options(**nowhere.options).load().isStreaming
    with pytest.raises(StreamingQueryException, match=r"\[RQTTL_UNREACHABLE\] url: "):
        nowhere.run()
    with pytest.raises(StreamingQueryException, match=r"\[RQTTL_QUEUE_NOT_FOUND\] queues: there is no queue 'nobody"):
        missing.run()


def test_a_windowed_count_under_a_limit_counts_every_message_of_a_sparse_and_a_dense_queue(
    spark: SparkSession, server: Server, clocked: Clocked, tmp_path: Path
) -> None:
    for name, count, every in (("dense", 3_000, 10), ("sparse", 30, 1_000)):
        queue = clocked.declare_queue(name)
        for i in range(count):
            clocked.go_to(i * every)
            queue.enqueue(Message(b"x"))
    spark_connectors.register(spark)
    reader = spark.readStream.format("rqttl").schema("queue string, died_at timestamp")
    messages = reader.options(url=server.url, queuePattern="#", maxEntriesPerTrigger="300").load()
    windows = messages.withWatermark("died_at", "1 second").groupBy(F.window("died_at", "5 seconds"), "queue").count()
    #: The last count of each window and queue, as a table with updates holds it. Late messages would be missing.
    table: dict[tuple[object, str], int] = {}
    batches: list[int] = []

    def update(frame: DataFrame, number: int) -> None:
        batches.append(number)
        table.update({(row.window.start, row.queue): row["count"] for row in frame.collect()})

    writer = windows.writeStream.outputMode("update").foreachBatch(update).trigger(availableNow=True)
    finish_all(writer.option("checkpointLocation", str(tmp_path)).start, tmp_path)

    assert len(batches) >= 11
    counts = [sum(count for (_, queue), count in table.items() if queue == name) for name in ("dense", "sparse")]
    assert counts == [3_000, 30]


class Archive(Stream):
    """Archives each batch, then purges its letters with the writer."""

    def _take(self, frame: DataFrame, number: int) -> None:
        self.meanwhile = lambda: write(frame)
        write = self._purge
        super()._take(frame, number)

    def _purge(self, frame: DataFrame) -> None:
        options = {"url": self.options["url"], "operation": "purge"}
        frame.write.format("rqttl").options(**options).mode("append").save()


def test_archive_then_purge_can_be_restarted_after_a_batch_that_failed_behind_its_purge(
    spark: SparkSession, server: Server, broker: Broker, tmp_path: Path
) -> None:
    bury(broker, 40)
    archived = held(broker, "orders/dead")
    query = Archive(spark, tmp_path / "checkpoint", server.url, queues="orders/dead", maxEntriesPerTrigger=10)
    query.crash_in = 1
    with pytest.raises(StreamingQueryException, match="the batch was read, and not committed"):
        query.run()
    assert held(broker, "orders/dead") == archived[20:]
    query.crash_in = -1

    assert sum(query.run()) == 20
    assert query.attempts[1] == [archived[10:20], []]
    assert query.attempts[0][0] + query.attempts[1][0] + query.rows[10:] == archived
    assert held(broker, "orders/dead") == []
