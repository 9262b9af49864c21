"""Writing from real sessions: save modes, failing and repeated tasks, letters that go back, streams that restart."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException

from rqttl import Broker, Queue
from tests.spark.jvm import Submitter
from tests.spark.letters import bury
from tests.spark.streaming import finish_all
from tests.spark.writing import ids

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Save = Callable[..., None]


@pytest.fixture
def rqttl(spark: SparkSession) -> SparkSession:
    """The session, with the format known also where the package is not installed."""
    from spark_connectors import register

    register(spark)
    return spark


@pytest.fixture
def save(rqttl: SparkSession, redis_url: str) -> Save:
    """Appends rows."""

    def save(rows: DataFrame, mode: str | None = "append", **options: str) -> None:
        writing = rows.write.format("rqttl").option("url", redis_url).options(**options)
        (writing if mode is None else writing.mode(mode)).save()

    return save


def numbered(spark: SparkSession, count: int) -> DataFrame:
    """As many rows, in two partitions."""
    return spark.range(0, count, 1, 2).selectExpr(
        "concat('m-', id) AS message_id", "cast(cast(id AS string) AS binary) AS body"
    )


def held(queue: Queue) -> list[int]:
    """The numbers of the messages, sorted."""
    return sorted(int(id.removeprefix("m-")) for id in ids(queue))


def test_rows_are_appended_and_a_rerun_adds_nothing(rqttl: SparkSession, save: Save, broker: Broker) -> None:
    queue = broker.declare_queue("q")
    rows = numbered(rqttl, 25_000)

    for _ in range(2):
        save(rows, queue="q")

        assert queue.stats().ready == 25_000
    assert held(queue) == list(range(25_000))


def test_a_message_has_all_that_its_row_says(rqttl: SparkSession, save: Save, broker: Broker) -> None:
    broker.declare_queue("q")
    save(
        rqttl.sql(
            "SELECT 'q' AS queue, 'a' AS message_id, 'text' AS body, map('n', 5) AS headers, "
            "'text/plain' AS content_type, INTERVAL '1' HOUR AS ttl, cast(NULL AS timestamp) AS expires_at UNION ALL "
            "SELECT 'q', 'b', 'x', NULL, NULL, NULL, timestamp'2100-01-01 00:00:00'"
        )
    )

    a, b = sorted(broker.queue("q").peek(), key=lambda one: one.id)
    assert (a.body, a.headers, a.content_type) == (b"text", {"n": 5}, "text/plain")
    assert a.expires_at is not None
    assert (a.expires_at - a.enqueued_at).total_seconds() == 3_600
    assert b.expires_at is not None
    assert b.expires_at.isoformat() == "2100-01-01T00:00:00+00:00"


@pytest.mark.parametrize(
    "mode, told",
    [
        ("overwrite", r'\[RQTTL_SAVE_MODE\].*use \.mode\("append"\)'),
        ("error", "UNSUPPORTED_DATA_SOURCE_SAVE_MODE"),
        (None, "UNSUPPORTED_DATA_SOURCE_SAVE_MODE"),
    ],
)
def test_other_save_modes_are_refused(
    mode: str | None, told: str, rqttl: SparkSession, save: Save, broker: Broker
) -> None:
    queue = broker.declare_queue("q")

    with pytest.raises(AnalysisException, match=told):
        save(numbered(rqttl, 10), mode, queue="q")
    assert queue.stats().ready == 0


@pytest.mark.parametrize(
    "options, told",
    [
        ({"queue": "nobody"}, "[RQTTL_QUEUE_NOT_FOUND] queue: there is no queue 'nobody' in namespace 'rqttl'"),
        ({}, "[RQTTL_INVALID_SCHEMA] queue: enqueue needs this column (or option queue)"),
        ({"queue": "q", "maxQueueDeph": "1"}, "[RQTTL_UNKNOWN_OPTION] maxqueuedeph: no such option; did you mean max"),
        (
            {"queue": "q", "url": "redis://:canary@127.0.0.1:1", "connectRetries": "0"},
            "[RQTTL_UNREACHABLE] url: redis://",
        ),
    ],
)
def test_wrong_options_and_columns_are_told_before_any_task_starts(
    options: dict[str, str], told: str, rqttl: SparkSession, save: Save, broker: Broker
) -> None:
    broker.declare_queue("q")

    def touched(batches: Any) -> Any:
        raise AssertionError("a task ran")

    rows = numbered(rqttl, 10)
    with pytest.raises(AnalysisException, match=re.escape(told)) as caught:
        save(rows.mapInArrow(touched, rows.schema), **options)
    assert "canary" not in str(caught.value)


def test_letters_that_were_read_and_chosen_go_back_or_are_purged(
    rqttl: SparkSession, save: Save, broker: Broker, redis_url: str
) -> None:
    letters = bury(broker, 1_000)
    read = rqttl.read.format("rqttl").option("url", redis_url).option("queues", "orders/dead").load()
    chosen = read.filter("headers['region'] = 'eu'").cache()

    for _ in range(2):
        save(chosen, operation="redrive")

        assert held(broker.queue("orders")) == list(range(0, 1_000, 2))
        assert held(letters) == list(range(1, 1_000, 2))
    for _ in range(2):
        save(read.filter("cast(headers['attempt'] AS int) < 100").select("queue", "sequence"), operation="purge")

        assert held(letters) == list(range(101, 1_000, 2))
    assert (letters.stats().redriven, letters.stats().purged) == (500, 50)


def test_refused_rows_can_be_read_mended_and_written(
    rqttl: SparkSession, save: Save, broker: Broker, tmp_path: Path
) -> None:
    queue = broker.declare_queue("q")
    rows = numbered(rqttl, 100).selectExpr("if(message_id = 'm-7', '', message_id) AS message_id", "body")

    save(rows, queue="q", rejectedPath=str(tmp_path / "rejected"))

    assert held(queue) == [i for i in range(100) if i != 7]
    schema = "reason string, cause string, row struct<message_id: string, body: binary>"
    kept = rqttl.read.schema(schema).json(str(tmp_path / "rejected"))
    assert [(one.reason, bytes(one.row.body)) for one in kept.collect()] == [("invalid_name", b"7")]
    save(kept.selectExpr("'m-7' AS message_id", "row.body AS body"), queue="q")
    assert held(queue) == list(range(100))


# Streams


class Sink:
    """A query that copies the letters of `orders/dead` into the queue `copies`, from a checkpoint."""

    def __init__(self, spark: SparkSession, url: str, folder: Path, **options: str) -> None:
        self.folder = folder
        self._spark, self._url = spark, url
        self._options = {"queue": "copies", **options}

    def run(self) -> None:
        """Write all rows."""
        letters = self._spark.readStream.format("rqttl").option("url", self._url).option("queues", "orders/dead")
        rows = (
            letters.option("maxEntriesPerTrigger", "40").load().select("message_id", "body", "headers", "content_type")
        )
        writing = rows.writeStream.format("rqttl").option("url", self._url).options(**self._options)
        writing = writing.option("checkpointLocation", str(self.folder)).trigger(availableNow=True)
        finish_all(writing.start, self.folder)

    @property
    def committed(self) -> list[int]:
        return sorted(int(file.name) for file in (self.folder / "commits").glob("[0-9]*"))

    def forget(self, batch: int) -> None:
        """As if the driver had died after the batch was written, and before Spark noted that."""
        for name in (f"{batch}", f".{batch}.crc"):
            (self.folder / "commits" / name).unlink(missing_ok=True)


def test_a_stream_writes_every_row_once_also_when_a_batch_is_replayed(
    rqttl: SparkSession, broker: Broker, redis_url: str, tmp_path: Path
) -> None:
    bury(broker, 100)
    copies = broker.declare_queue("copies")
    sink = Sink(rqttl, redis_url, tmp_path)
    sink.run()
    assert (held(copies), sink.committed) == (list(range(100)), [0, 1, 2])
    assert copies.peek(1)[0].headers == {"region": "eu", "attempt": "0"}

    sink.forget(2)
    bury(broker, 10, first=100)
    sink.run()

    assert sink.committed == [0, 1, 2, 3]
    assert held(copies) == list(range(110))
    assert copies.stats().enqueued == 110


def test_a_stream_that_is_refused_rows_ends_and_goes_on_with_a_path_for_them(
    rqttl: SparkSession, broker: Broker, redis_url: str, tmp_path: Path
) -> None:
    bury(broker, 100)
    copies = broker.declare_queue("copies", max_length=30, overflow="reject-publish")

    with pytest.raises(StreamingQueryException, match=r"\[RQTTL_ROWS_REFUSED\] enqueue of batch 0: 10 refused rows"):
        Sink(rqttl, redis_url, tmp_path / "checkpoint").run()
    assert held(copies) == list(range(30))

    kept = tmp_path / "kept"
    for _ in range(2):
        sink = Sink(rqttl, redis_url, tmp_path / "checkpoint", rejectedPath=str(kept))
        sink.run()

        rows = [json.loads(line) for file in kept.iterdir() for line in file.read_text().splitlines()]
        assert sorted(int(one["row"]["message_id"].removeprefix("m-")) for one in rows) == list(range(30, 100))
        assert held(copies) == list(range(30))
        sink.forget(2)


def test_a_stream_with_another_output_mode_is_refused(
    rqttl: SparkSession, broker: Broker, redis_url: str, tmp_path: Path
) -> None:
    broker.declare_queue("q")
    rows = (
        rqttl.readStream.format("rate")
        .load()
        .groupBy()
        .count()
        .selectExpr("'a' AS message_id", "'b' AS body", "'q' AS queue")
    )
    writing = rows.writeStream.format("rqttl").option("url", redis_url).option("checkpointLocation", str(tmp_path))

    query = writing.outputMode("complete").trigger(availableNow=True).start()
    with pytest.raises(StreamingQueryException, match=r'\[RQTTL_SAVE_MODE\].*\.outputMode\("append"\)'):
        query.awaitTermination(120)
    query.stop()


# A session of its own. Two attempts at a time are in `test_speculation.py`.

FAILING = """
import sys, time
from pyspark import TaskContext
from pyspark.sql import SparkSession
import rqttl, spark_connectors

spark = SparkSession.builder.getOrCreate()
spark_connectors.register(spark)
url = sys.argv[1]


def broken(batches):
    task = TaskContext.get()
    for i, batch in enumerate(batches):
        if i == 20 and task.partitionId() == 0 and task.attemptNumber() == 0:
            with rqttl.connect(url) as broker:
                deadline = time.monotonic() + 100
                while not any(int(one.id[2:]) < 20_000 for one in broker.queue("q").peek(40_000)):
                    assert time.monotonic() < deadline, "nothing was written"
            raise ZeroDivisionError("planned")
        yield batch


spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "500")
columns = ["concat('m-', id) AS message_id", "cast(repeat('x', 200) AS binary) AS body"]
rows = spark.range(0, 40_000, 1, 2).selectExpr(*columns)
rows = rows.mapInArrow(broken, rows.schema)
rows.write.format("rqttl").mode("append").option("url", url).option("queue", "q").save()
print("written")
spark.stop()
"""


@pytest.mark.slow
def test_a_task_that_fails_halfway_and_is_retried_stores_nothing_twice(
    submitter: Submitter, broker: Broker, redis_url: str
) -> None:
    queue = broker.declare_queue("q")

    done = submitter.run(FAILING, redis_url, master="local[2,3]")

    assert "written" in done.out, done.end
    assert held(queue) == list(range(40_000))
    assert re.search(r"enqueue: [\d,]+ stored, [\d,]+ duplicates, by 2 tasks", done.log), done.end
