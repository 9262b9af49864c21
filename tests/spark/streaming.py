"""Streaming queries of tests: what each of their batches held."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import spark_connectors
from spark_connectors.versions import TELLS_START

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

#: Tests of what only Spark 4.2 can do: a run with Trigger.AvailableNow that has several batches, and ends.
SEVERAL_BATCHES = pytest.mark.skipif(not TELLS_START, reason="Spark 4.2 or later")
#: The longest that a query of a test may take. The test itself has 600 s.
PATIENCE = 500


def finish(query: StreamingQuery) -> None:
    """Wait for the end of a query that reads only what is there. Raises the error of the query."""
    try:
        assert query.awaitTermination(PATIENCE)
    finally:
        query.stop()


def finish_all(start: Callable[[], StreamingQuery], checkpoint: Path) -> None:
    """Read all that is there. Before Spark 4.2 a run has one batch only, so there are as many runs as it takes."""
    done, commits = -1, checkpoint / "commits"
    while done < (count := len(list(commits.glob("[0-9]*")))):
        finish(start())
        done = len(list(commits.glob("[0-9]*"))) if TELLS_START else count


class Stream:
    """A query over `options` whose checkpoint is in `folder`; each `run` is the query of a new process."""

    def __init__(self, spark: SparkSession, folder: Path, url: str, **options: object) -> None:
        spark_connectors.register(spark)
        self.spark = spark
        self.folder = folder
        self.options = {"url": url, **{name: str(value) for name, value in options.items()}}
        #: The rows of each batch, `(queue, sequence)` in the order in which they came; every attempt is added.
        self.attempts: dict[int, list[list[tuple[str, str]]]] = {}
        self.crash_in = -1
        #: Done in each batch, before it ends.
        self.meanwhile: Callable[[], object] = int

    def run(self, **changed: object) -> list[int]:
        """Read all present messages. Returns the number of rows of each batch. Raises the error of the query."""
        before = {number: len(of) for number, of in self.attempts.items()}
        finish_all(lambda: self.start(available_now=True, **changed), self.folder)
        return [len(of[-1]) for number, of in sorted(self.attempts.items()) if len(of) > before.get(number, 0)]

    def start(self, *, available_now: bool = False, every: object = "", **changed: object) -> StreamingQuery:
        """Start it, with a processing time of `every`; one that is not `available_now` runs until it is stopped."""
        options = {**self.options, **{name: str(value) for name, value in changed.items()}}
        frame = self.spark.readStream.format("rqttl").options(**options).load().select("queue", "sequence")
        writer = frame.writeStream.option("checkpointLocation", str(self.folder)).foreachBatch(self._take)
        if available_now:
            writer = writer.trigger(availableNow=True)
        elif every:
            writer = writer.trigger(processingTime=str(every))
        return writer.start()

    @property
    def rows(self) -> list[tuple[str, str]]:
        """All rows, batch by batch, each batch as its last attempt had it."""
        return [row for _, of in sorted(self.attempts.items()) for row in of[-1]]

    def _take(self, frame: DataFrame, number: int) -> None:
        rows = [(row.queue, row.sequence) for row in frame.collect()]
        # one step: the thread of the test reads this meanwhile, and finds no batch without an attempt
        self.attempts[number] = [*self.attempts.get(number, []), rows]
        self.meanwhile()
        if number == self.crash_in:
            raise RuntimeError("the batch was read, and not committed")
