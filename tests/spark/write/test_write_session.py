"""Writing from real sessions: save modes, reports, letters that go back, streams."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException

from rqttl import Broker, Queue
from tests.repository import ROOT
from tests.spark.letters import bury
from tests.spark.streaming import finish_all
from tests.spark.writing import ids

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture
def rqttl(spark: SparkSession) -> SparkSession:
    """The session, with the format known also where the package is not installed."""
    from spark_connectors import register

    register(spark)
    return spark


@pytest.fixture
def save(rqttl: SparkSession, redis_url: str) -> Callable[..., None]:
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


def test_the_example_of_the_page_writes_rows_and_a_report(
    rqttl: SparkSession, redis_url: str, broker: Broker, tmp_path: Path
) -> None:
    queue, page = broker.declare_queue("orders"), (ROOT / "spark_connectors/write/README.md").read_text("utf-8")
    [example] = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    names = {"rows": numbered(rqttl, 3), "redis": {"url": redis_url}}
    exec(example.replace("/srv", str(tmp_path)), names)  # noqa: S102  # running it is the test

    assert held(queue) == [0, 1, 2]
    assert json.loads((tmp_path / "reports/orders.json").read_text())["stored"] == 3


def held(queue: Queue) -> list[int]:
    """The numbers of the messages, sorted."""
    return sorted(int(id.removeprefix("m-")) for id in ids(queue))


@pytest.mark.parametrize("delay", ["'2h'", "interval '2' hour"])
def test_rows_are_appended_or_scheduled_by_columns_of_due_times_and_a_rerun_adds_nothing(
    delay: str, rqttl: SparkSession, save: Callable[..., None], broker: Broker
) -> None:
    queue = broker.declare_queue("q")
    rows = numbered(rqttl, 25_000).selectExpr(
        "*",
        f"if(message_id LIKE '%1', {delay}, NULL) AS delay",
        "if(message_id LIKE '%2', timestamp '2999-01-02 03:04:05.678Z', NULL) AS deliver_at",
    )

    for _ in range(2):
        save(rows, queue="q")

        assert (queue.stats().ready, queue.stats().scheduled) == (20_000, 5_000)
    assert held(queue) == [number for number in range(25_000) if number % 10 not in (1, 2)]
    first, last = queue.scheduled()[0], queue.scheduled(5_000)[-1]
    assert first.until is not None
    assert (first.id[-1], first.until - first.enqueued_at) == ("1", timedelta(hours=2))
    assert (last.id[-1], last.until) == ("2", datetime(2999, 1, 2, 3, 4, 5, 678_000, tzinfo=timezone.utc))


@pytest.mark.parametrize(
    "mode, told",
    [("overwrite", r'\[RQTTL_SAVE_MODE\].*use \.mode\("append"\)'), (None, "UNSUPPORTED_DATA_SOURCE_SAVE_MODE")],
)
def test_other_save_modes_are_refused(
    mode: str | None, told: str, rqttl: SparkSession, save: Callable[..., None], broker: Broker
) -> None:
    queue = broker.declare_queue("q")

    with pytest.raises(AnalysisException, match=told):
        save(numbered(rqttl, 10), mode, queue="q")
    assert queue.stats().ready == 0


def test_a_mistake_is_told_before_any_task_starts(rqttl: SparkSession, save: Callable[..., None]) -> None:
    def touched(batches: Any) -> Any:
        raise AssertionError("a task ran")

    rows = numbered(rqttl, 10)
    with pytest.raises(AnalysisException, match=r"\[RQTTL_QUEUE_NOT_FOUND\] queue: there is no queue 'nobody'"):
        save(rows.mapInArrow(touched, rows.schema), queue="nobody")


def test_letters_that_were_read_and_chosen_go_back_or_are_purged(
    rqttl: SparkSession, save: Callable[..., None], broker: Broker, redis_url: str
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
    rqttl: SparkSession, save: Callable[..., None], broker: Broker, tmp_path: Path
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

    def told(self, folder: Path) -> dict[str, dict[str, Any]]:
        """The reports in a folder, by the rest of their names behind the id of the query."""
        identifier = json.loads((self.folder / "metadata").read_text())["id"]
        files = {file.name.removeprefix(f"{identifier}-"): file for file in folder.iterdir()}
        return {name: json.loads(file.read_text()) for name, file in sorted(files.items())}

    def forget(self, batch: int) -> None:
        """As if the driver had died after the batch was written, and before Spark noted that."""
        for name in (f"{batch}", f".{batch}.crc"):
            (self.folder / "commits" / name).unlink(missing_ok=True)


def test_a_stream_writes_and_reports_every_row_once_also_when_a_batch_is_replayed(
    rqttl: SparkSession, broker: Broker, redis_url: str, tmp_path: Path
) -> None:
    bury(broker, 100)
    copies, reports = broker.declare_queue("copies"), tmp_path / "reports"
    sink = Sink(rqttl, redis_url, tmp_path / "checkpoint", reportPath=str(reports))
    sink.run()
    first = sink.told(reports)
    assert (held(copies), sink.committed) == (list(range(100)), [0, 1, 2])
    assert copies.peek(1)[0].headers == {"region": "eu", "attempt": "0"}

    sink.forget(2)
    bury(broker, 10, first=100)
    sink.run()

    assert sink.committed == [0, 1, 2, 3]
    assert held(copies) == list(range(110))
    assert copies.stats().enqueued == 110
    assert [(name, one["batch_id"], one["stored"]) for name, one in first.items()] == [
        ("0.json", 0, 40),
        ("1.json", 1, 40),
        ("2.json", 2, 20),
    ]
    again = [(one["status"], one["stored"], one["duplicates"]) for one in sink.told(reports).values()]
    assert again == [("succeeded", stored, duplicates) for stored, duplicates in ((40, 0), (40, 0), (0, 20), (10, 0))]


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


def test_rows_for_a_topic_go_on_to_its_subscriptions_which_are_read_by_a_pattern(
    rqttl: SparkSession, save: Callable[..., None], broker: Broker, redis_url: str
) -> None:
    topic = broker.declare_topic("news")
    even, every = topic.subscribe("even", {"even": "yes"}), topic.subscribe("every")

    def send(count: int) -> None:
        headers = "if(cast(cast(body AS string) AS int) % 2 = 0, map('even', 'yes'), map()) AS headers"
        save(numbered(rqttl, count).selectExpr("*", headers), queue="news")

    topic.pause()
    send(300)
    assert (held(topic), held(even), held(every)) == ([*range(300)], [], [])
    topic.resume()
    assert (held(topic), held(even), held(every)) == ([], [*range(0, 300, 2)], [*range(300)])
    send(600)  # the first half is there, and no reaper runs
    assert (held(topic), held(even), held(every)) == ([], [*range(0, 600, 2)], [*range(600)])

    reading = rqttl.read.format("rqttl").option("url", redis_url).option("queuePattern", "news/*")
    counts = {row["queue"]: row["count"] for row in reading.load().groupBy("queue").count().collect()}
    assert counts == {"news/even": 300, "news/every": 600}
