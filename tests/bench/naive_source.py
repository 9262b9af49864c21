"""The benchmark's yardstick, the obvious first version: a source that yields tuples from replies of redis-py."""

from collections.abc import Iterator, Mapping
from typing import Any

import redis
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from rqttl.protocol import codec
from rqttl.types import Death
from rqttl.units import as_datetime
from spark_connectors.columns import schema as columns

PAGE = 1000
_DEATH = tuple(Death.__dataclass_fields__)


class NaiveReader(DataSourceReader):
    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        """The log in parts that are equally long in time."""
        client = redis.Redis.from_url(self._options["url"])
        first, last = (self._end(client, reverse=reverse) for reverse in (False, True))
        client.close()
        parts = int(self._options["numPartitions"])
        cuts = [first + (last + 1 - first) * i // parts for i in range(parts + 1)]
        return [InputPartition((cuts[i], cuts[i + 1])) for i in range(parts)]

    def _end(self, client: redis.Redis, *, reverse: bool) -> int:
        look: Any = client.xrevrange if reverse else client.xrange
        return int(look(self._options["key"], count=1)[0][0][:13])

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        """Page after page, row after row."""
        client: Any = redis.Redis.from_url(self._options["url"])
        start, end = partition.value
        place = f"{start}-0"
        while page := client.xrange(self._options["key"], place, f"({end}-0", count=PAGE):
            for sequence, fields in page:
                for header, body in fields.items():
                    yield self._row(sequence, header, body)
            place = "(" + page[-1][0].decode()
        client.close()

    @staticmethod
    def _row(sequence: bytes, header: bytes, body: bytes) -> tuple[Any, ...]:
        read = codec.unpack_header(header)
        newest = read.deaths[0]
        deaths = [tuple(getattr(death, name) for name in _DEATH) for death in read.deaths]
        return (
            "dead",
            read.id,
            sequence.decode(),
            as_datetime(int(sequence[:13])),
            newest.queue,
            newest.reason,
            newest.description,
            newest.enqueued_at,
            newest.expires_at,
            newest.delivery_count,
            len(deaths),
            read.content_type,
            {name: str(value) for name, value in read.headers.items()},
            body,
            deaths,
        )


class NaiveSource(DataSource):
    """`format("naive")`."""

    @classmethod
    def name(cls) -> str:
        return "naive"

    def schema(self) -> str:
        return columns.schema_ddl(columns.available_columns("none"))

    def reader(self, schema: StructType) -> DataSourceReader:
        return NaiveReader(self.options)
