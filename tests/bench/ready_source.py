"""The benchmark's ceiling: a source that gives out one batch again and again, so that only Spark has work to do.

It is a stream, too, with the same rows in as many micro-batches as a limit makes of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from rqttl.protocol.keys import Keyspace
from spark_connectors.columns import schema as columns
from spark_connectors.options.options import Options
from spark_connectors.ranges import FIRST, LAST, Range
from spark_connectors.read import scan
from spark_connectors.redis.bulk_reader import BulkReader


class ReadyReader(DataSourceReader):
    def __init__(self, options: Mapping[str, str], names: tuple[str, ...]) -> None:
        self._options, self._names = options, names

    def partitions(self) -> list[InputPartition]:
        """As many rows for each as there are together, divided."""
        count = int(self._options["numPartitions"])
        return [InputPartition(int(self._options["rows"]) // count)] * count

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The first batch of the queue, until there are enough rows."""
        return repeated(self._options["url"], self._names, partition.value)


class ReadyStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The rows of `ReadyReader`, with the limit of `maxEntriesPerTrigger`."""

    def __init__(self, options: Mapping[str, str], names: tuple[str, ...]) -> None:
        self._url, self._names = options["url"], names
        self._rows, self._parts = int(options["rows"]), int(options["numPartitions"])
        self._limit = options.get("maxEntriesPerTrigger")

    def initialOffset(self) -> dict[str, int]:  # noqa: N802  # Spark's name
        return {"rows": 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  # Spark's name
        return ReadMaxRows(int(self._limit)) if self._limit else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  # Spark's name
        """All rows are there from the first moment on."""

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802  # Spark's name
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else self._rows
        return {"rows": min(self._rows, start["rows"] + most)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return [InputPartition((end["rows"] - start["rows"]) // self._parts)] * self._parts

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return repeated(self._url, self._names, partition.value)


def repeated(url: str, names: tuple[str, ...], rows: int) -> Iterator[pa.RecordBatch]:
    """Yield the first batch of the queue, until there are enough rows."""
    options = Options.parse("batch", {"url": url, "queues": "dead"})
    with BulkReader(options) as reader:
        batch = next(scan.read(reader, Keyspace(), [Range("dead", FIRST, LAST, 10**6)], names))
    for given in range(0, rows, batch.num_rows):
        yield batch.slice(0, rows - given)


class ReadySource(DataSource):
    """`format("ready")`."""

    @classmethod
    def name(cls) -> str:
        return "ready"

    def schema(self) -> str:
        return columns.schema_ddl(columns.available_columns("none"))

    def reader(self, schema: StructType) -> DataSourceReader:
        return ReadyReader(self.options, tuple(schema.names))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # Spark's name
        return ReadyStream(self.options, tuple(schema.names))
