"""Several servers in a session: a batch, a write back, a stream whose server is killed, and event time."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

import spark_connectors
from rqttl import Message
from tests.spark.fleets import Fleet, Row
from tests.spark.letters import bury
from tests.spark.streaming import PATIENCE, finish, windowed_counts
from tests.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


@pytest.fixture(autouse=True)
def source(spark: SparkSession) -> None:
    """Register the data source in the session."""
    spark_connectors.register(spark)


class Follower:
    """Runs a query over the queue `a` of all servers, and keeps the last rows of each batch."""

    def __init__(self, spark: SparkSession, fleet: Fleet, folder: Path, **options: str) -> None:
        self._spark, self._folder = spark, folder
        self._options: dict[str, str] = {
            "url": fleet.url,
            "queues": "a",
            "retryBackoff": "1ms",
            "connectRetries": "1",
            **options,
        }
        self.batches: dict[int, list[Row]] = {}

    @property
    def counts(self) -> Counter[str]:
        # a copy: the thread of the callback adds batches meanwhile
        return Counter(server for rows in list(self.batches.values()) for server, _, _ in rows)

    def start(self, *, available_now: bool = False) -> StreamingQuery:
        frame = self._spark.readStream.format("rqttl").options(**self._options).load()
        writer = frame.select("server", "queue", "sequence").writeStream.foreachBatch(self._take)
        trigger = {"availableNow": True} if available_now else {"processingTime": "100 milliseconds"}
        return writer.option("checkpointLocation", str(self._folder)).trigger(**trigger).start()

    def run(self) -> None:
        """Read all present messages. Raises the error of the query."""
        finish(self.start(available_now=True))

    def _take(self, frame: DataFrame, number: int) -> None:
        self.batches[number] = [(row.server, row.queue, row.sequence) for row in frame.collect()]


def reported(query: StreamingQuery) -> defaultdict[str, Any]:
    """Return the latest offset in the last progress of a query."""
    sources = [source for progress in query.recentProgress for source in progress.sources]
    latest = sources[-1].latestOffset if sources else None
    return defaultdict(list, json.loads(str(latest)) if latest else {})


def send(fleet: Fleet, server: str, count: int) -> None:
    fleet.brokers[server].declare_queue("a").enqueue_many([Message(b"x")] * count)


def test_a_batch_over_two_servers_has_their_column_and_letters_go_back_to_where_they_are(
    spark: SparkSession, fleet: Fleet, spark_conf: Callable[[str, str], None]
) -> None:
    bury(fleet.brokers["eu"], 300)
    bury(fleet.brokers["us"], 40)
    options = {"url": fleet.url, "queues": "orders/dead", "numPartitions": "3"}
    letters = spark.read.format("rqttl").options(**options).load()

    assert letters.columns[:3] == ["queue", "server", "message_id"]
    assert {row.server: row["count"] for row in letters.groupBy("server").count().collect()} == {"eu": 300, "us": 40}
    assert letters.where("server = 'us'").count() == 40
    assert spark.read.format("rqttl").options(**options).schema("queue string").load().count() == 340

    writer = letters.where("message_id < 'm-2'").write.format("rqttl").option("url", fleet.url).mode("append")
    writer.option("operation", "redrive").save()
    back = {name: fleet.brokers[name].queue("orders").stats().ready for name in ("eu", "us")}
    assert back == {"eu": 2 + 10 + 100, "us": 2 + 10}
    assert fleet.brokers["us"].queue("orders/dead").stats().ready == 28

    fleet.servers["us"].kill()
    spark_conf("spark.sql.python.filterPushdown.enabled", "true")
    pushed = spark.read.format("rqttl").options(**options, connectRetries="0", pushFilters="true").load()
    assert pushed.where("server IN ('eu', 'mars')").count() == 300 - 112


def test_a_stream_goes_on_without_a_killed_server_and_reads_it_when_it_is_back(
    spark: SparkSession, fleet: Fleet, tmp_path: Path
) -> None:
    follower = Follower(spark, fleet, tmp_path, onServerLost="skip", maxEntriesPerTrigger="4")
    send(fleet, "eu", 10)
    send(fleet, "us", 5)
    follower.run()
    assert follower.counts == {"eu": 10, "us": 5}

    send(fleet, "us", 7)
    fleet.servers["us"].kill()
    send(fleet, "eu", 3)
    follower.run()
    assert follower.counts == {"eu": 13, "us": 5}

    query = follower.start()
    try:
        send(fleet, "eu", 2)
        until(lambda: follower.counts["eu"] == 15 or query.exception(), PATIENCE)
        until(lambda: reported(query)["away"] == ["us"] or query.exception(), PATIENCE)
        fleet.restart("us")
        until(lambda: follower.counts["us"] == 12 or query.exception(), PATIENCE)
    finally:
        query.stop()
    follower.run()

    rows = [row for batch in follower.batches.values() for row in batch]
    assert query.exception() is None
    assert len(rows) == len(set(rows)) == 27
    assert max(map(len, follower.batches.values())) <= 4


def test_a_killed_server_fails_a_stream_by_default_and_no_message_is_missing_after_it(
    spark: SparkSession, fleet: Fleet, tmp_path: Path
) -> None:
    follower = Follower(spark, fleet, tmp_path)
    send(fleet, "eu", 10)
    send(fleet, "us", 5)
    follower.run()
    send(fleet, "eu", 1)
    send(fleet, "us", 2)
    fleet.servers["us"].kill()

    with pytest.raises(StreamingQueryException, match=r"RQTTL_UNREACHABLE\] server 'us': "):
        follower.run()
    fleet.restart("us")
    follower.run()

    assert follower.counts == {"eu": 11, "us": 7}


def test_a_windowed_count_under_a_limit_counts_every_message_of_two_servers(
    spark: SparkSession, fleet: Fleet, tmp_path: Path
) -> None:
    for server, count, every in (("eu", 1_500, 20), ("us", 30, 1_000)):
        broker = fleet.brokers[server]
        into = broker.declare_queue("a")
        for i in range(count):
            broker.go_to(i * every)
            into.enqueue(Message(b"x"))
    reader = spark.readStream.format("rqttl").schema("server string, died_at timestamp")
    messages = reader.options(url=fleet.url, queues="a", maxEntriesPerTrigger="200").load()

    counts, batches = windowed_counts(messages, "server", tmp_path)

    assert batches >= 8
    assert counts == {"eu": 1_500, "us": 30}
