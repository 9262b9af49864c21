"""The batch reader without Spark: what it plans and what its tasks read, in this process."""

import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import InputPartition

from spark_connectors.options.options import Options
from spark_connectors.ranges import Range
from spark_connectors.read.batch import BatchPartition, RqttlBatchReader
from tests.contract.clocked import Clocked
from tests.spark.letters import bury

COLUMNS = ("queue", "message_id", "sequence", "body")


class Job:
    """One load: planned when it is made, read as often as one likes. Everything crosses a pickle, as in Spark."""

    def __init__(self, url: str, columns: tuple[str, ...], options: dict[str, str]) -> None:
        said = {"connectRetries": "2", "url": url, **options}
        reader = RqttlBatchReader(Options.parse("batch", said), columns)
        self.partitions: list[InputPartition] = copied(list(reader.partitions()))
        self._reader = copied(reader)

    @property
    def ranges(self) -> list[list[Range]]:
        """The ranges of each task."""
        return [[watched.range for watched in one.ranges] for one in self.partitions if isinstance(one, BatchPartition)]

    def batches(self, index: int, rows: int) -> Iterator[pa.RecordBatch]:
        """The batches of one task, each of about so many rows; a batch is read when it is asked for."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("spark_connectors.read.scan._BUILT_ROWS", rows)
            yield from self._reader.read(self.partitions[index])

    def task(self, index: int) -> list[dict[str, Any]]:
        """The rows of one task."""
        return [row for batch in self._reader.read(self.partitions[index]) for row in batch.to_pylist()]

    def rows(self) -> list[dict[str, Any]]:
        """The rows of all tasks."""
        return [row for index in range(len(self.partitions)) for row in self.task(index)]

    def ids(self) -> list[str]:
        """The ids of all rows, sorted."""
        return sorted(row["message_id"] for row in self.rows())


Load = Callable[..., Job]


def numbers(count: int, first: int = 0) -> list[str]:
    """The ids of so many letters of `letters.bury`, sorted."""
    return sorted(f"m-{i}" for i in range(first, first + count))


def hourly(clocked: Clocked, count: int = 10) -> list[tuple[str, int]]:
    """Bury so many letters, an hour apart, in `orders/dead`; gives sequence and ms of each."""
    for i in range(count):
        bury(clocked, 1, first=i)
        clocked.advance(3_600_000)
    letters = clocked.queue("orders/dead").peek(count)
    return [(letter.sequence, int(letter.sequence[:13])) for letter in letters]


def copied(value: Any) -> Any:
    """Return a value as another process gets it."""
    return pickle.loads(pickle.dumps(value))  # noqa: S301  # what was just pickled


def loader(url: str) -> Load:
    """Makes jobs: `load(queues="orders/dead", numPartitions=2)`."""
    return lambda columns=COLUMNS, **options: Job(url, columns, {name: str(value) for name, value in options.items()})
