"""The benchmark's ceiling: a source that gives out one batch again and again, so that only Spark has work to do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
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
        options = Options.parse("batch", {"url": self._options["url"], "queues": "dead"})
        with BulkReader(options) as reader:
            batch = next(scan.read(reader, Keyspace(), [Range("dead", FIRST, LAST, 10**6)], self._names))
        for given in range(0, partition.value, batch.num_rows):
            yield batch.slice(0, partition.value - given)


class ReadySource(DataSource):
    """`format("ready")`."""

    @classmethod
    def name(cls) -> str:
        return "ready"

    def schema(self) -> str:
        return columns.schema_ddl(columns.entry_columns("none"))

    def reader(self, schema: StructType) -> DataSourceReader:
        return ReadyReader(self.options, tuple(schema.names))
