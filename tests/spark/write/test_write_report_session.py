"""The reports of `reportPath` from real sessions: a batch, a stream that is replayed, a server that dies in a batch."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException

from rqttl import Broker
from tests.spark.letters import bury
from tests.spark.streaming import finish_all

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture
def rqttl(spark: SparkSession) -> SparkSession:
    """The session, with the format known also where the package is not installed."""
    from spark_connectors import register

    register(spark)
    return spark


def rows(spark: SparkSession) -> DataFrame:
    """100 rows of the queues `a` and `b`, in two partitions."""
    return spark.range(0, 100, 1, 2).selectExpr(
        "if(id < 70, 'a', 'b') AS queue", "concat('m-', id) AS message_id", "'x' AS body"
    )


def test_a_batch_leaves_its_report_also_if_it_fails(
    rqttl: SparkSession, broker: Broker, redis_url: str, tmp_path: Path
) -> None:
    path = tmp_path / "report.json"
    broker.declare_queue("a")
    broker.declare_queue("b", max_length=10, overflow="reject-publish")
    write = rows(rqttl).write.format("rqttl").mode("append").option("url", redis_url).option("reportPath", str(path))

    with pytest.raises(AnalysisException, match="RQTTL_ROWS_REFUSED"):
        write.save()
    refused = json.loads(path.read_text())
    broker.queue("b").update(max_length=None)
    write.save()
    told = json.loads(path.read_text())

    assert (refused["status"], refused["stored"], refused["refused"]) == ("refused", 80, 20)
    assert "RQTTL_ROWS_REFUSED" in refused["error"]
    assert (told["status"], told["stored"], told["duplicates"], told["tasks_ended"]) == ("succeeded", 20, 80, 2)
    by_queue = {one["queue"]: (one["stored"], one["duplicates"]) for one in told["queues"]}
    assert by_queue == {"a": (0, 70), "b": (20, 10)}
    assert (
        sum(one.rows for one in rqttl.read.json(str(path)).selectExpr("stored + duplicates AS rows").collect()) == 100
    )


class Sink:
    """A query that copies the letters of `orders/dead` into the queue `copies`; `through` sees each batch of rows."""

    def __init__(self, spark: SparkSession, letters: str, url: str, folder: Path) -> None:
        self._spark, self._letters, self._url = spark, letters, url
        self.checkpoint, self.reports = folder / "checkpoint", folder / "reports"

    def run(self, through: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]] | None = None) -> None:
        letters = self._spark.readStream.format("rqttl").option("url", self._letters).option("queues", "orders/dead")
        frame = letters.option("maxEntriesPerTrigger", "40").load().select("message_id", "body")
        if through is not None:
            frame = frame.mapInArrow(through, frame.schema)
        sink = {"url": self._url, "queue": "copies", "reportPath": str(self.reports), "connectRetries": "0"}
        writing = frame.writeStream.format("rqttl").options(**sink)
        writing = writing.option("checkpointLocation", str(self.checkpoint)).trigger(availableNow=True)
        finish_all(writing.start, self.checkpoint)

    @property
    def told(self) -> dict[str, dict[str, Any]]:
        """The reports, by the rest of their names behind the id of the query."""
        identifier = json.loads((self.checkpoint / "metadata").read_text())["id"]
        files = {file.name.removeprefix(f"{identifier}-"): file for file in self.reports.iterdir()}
        return {name: json.loads(file.read_text()) for name, file in sorted(files.items())}

    def forget(self, batch: int) -> None:
        """As if the driver had died after the batch was written, and before Spark noted that."""
        for name in (f"{batch}", f".{batch}.crc"):
            (self.checkpoint / "commits" / name).unlink(missing_ok=True)


def test_a_stream_leaves_a_report_of_each_batch_and_a_replay_replaces_it(
    rqttl: SparkSession, broker: Broker, redis_url: str, tmp_path: Path
) -> None:
    bury(broker, 100)
    broker.declare_queue("copies")
    sink = Sink(rqttl, redis_url, redis_url, tmp_path)
    sink.run()
    first = sink.told
    sink.forget(2)
    sink.run()

    assert {name: (one["batch_id"], one["stored"]) for name, one in first.items()} == {
        "0.json": (0, 40),
        "1.json": (1, 40),
        "2.json": (2, 20),
    }
    assert {name: (one["stored"], one["duplicates"]) for name, one in sink.told.items()} == {
        "0.json": (40, 0),
        "1.json": (40, 0),
        "2.json": (0, 20),
    }
    assert {one["status"] for one in sink.told.values()} == {"succeeded"}
