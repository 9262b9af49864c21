"""Writing in tests: batches as Spark gives them, tasks without Spark, and what was written."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import types

from rqttl import Queue
from spark_connectors.options.options import Options
from spark_connectors.write import plan
from spark_connectors.write import task as write_task
from spark_connectors.write.plan import Plan
from spark_connectors.write.report import Report

MESSAGES = "message_id string, body binary"
LETTERS = "queue string, sequence string, source string"

_TEXT, _INT = types.StringType(), types.IntegerType()
_TYPES: dict[str, tuple[types.DataType, Any]] = {
    "string": (_TEXT, pa.string()),
    "binary": (types.BinaryType(), pa.binary()),
    "int": (_INT, pa.int32()),
    "bigint": (types.LongType(), pa.int64()),
    "double": (types.DoubleType(), pa.float64()),
    "tinyint": (types.ByteType(), pa.int8()),
    "smallint": (types.ShortType(), pa.int16()),
    "float": (types.FloatType(), pa.float32()),
    "decimal(10,3)": (types.DecimalType(10, 3), pa.decimal128(10, 3)),
    "boolean": (types.BooleanType(), pa.bool_()),
    "timestamp": (types.TimestampType(), pa.timestamp("us", tz="UTC")),
    "timestamp_ntz": (types.TimestampNTZType(), pa.timestamp("us")),
    "map<string,string>": (types.MapType(_TEXT, _TEXT), pa.map_(pa.string(), pa.string())),
    "map<string,binary>": (types.MapType(_TEXT, types.BinaryType()), pa.map_(pa.string(), pa.binary())),
    "map<string,int>": (types.MapType(_TEXT, _INT), pa.map_(pa.string(), pa.int32())),
    "interval": (types.DayTimeIntervalType(), pa.duration("us")),
}


def columns(ddl: str) -> types.StructType:
    """A schema; Spark reads DDL only where there is a session."""
    pairs = [column.split(" ") for column in ddl.split(", ")]
    return types.StructType([types.StructField(name, _TYPES[kind][0]) for name, kind in pairs])


def batch(ddl: str, rows: Sequence[Sequence[Any]]) -> pa.RecordBatch:
    """Rows as a task gets them."""
    fields = [(name, _TYPES[kind][1]) for name, kind in (column.split(" ") for column in ddl.split(", "))]
    values = list(zip(*rows, strict=True)) or [() for _ in fields]
    arrays = [pa.array(list(some), kind) for some, (_, kind) in zip(values, fields, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


class Job:
    """A job without Spark: planned once, run as often as a test wants."""

    def __init__(self, url: str, ddl: str, options: Mapping[str, str]) -> None:
        self.options = Options.parse("write", {"url": url, **options})
        self.ddl = ddl
        self.plan: Plan = plan.make_plan(columns(ddl), self.options, overwrite=False)

    def task(self, rows: Sequence[Sequence[Any]], *, attempt: str = "job-0-0", size: int = 10_000) -> Report:
        """Run a task with these rows, in batches of `size`."""
        return self.run([batch(self.ddl, rows[i : i + size]) for i in range(0, len(rows), size)], attempt)

    def run(self, batches: Iterable[pa.RecordBatch], attempt: str = "job-0-0") -> Report:
        return write_task.run(self.options, self.plan, batches, attempt)


def numbered(count: int, first: int = 0) -> list[tuple[str, bytes]]:
    """Rows of `MESSAGES`."""
    return [(f"m-{i}", b"%d" % i) for i in range(first, first + count)]


def in_two_batches(between: Callable[[], object], count: int = 300) -> Iterator[pa.RecordBatch]:
    """Rows of `MESSAGES` in two batches. The options of the queue are known from the first, so the next call stores."""
    yield batch(MESSAGES, numbered(count))
    between()
    yield batch(MESSAGES, numbered(count, first=count))


def ids(queue: Queue) -> list[str]:
    return [message.id for message in queue.peek(100_000)]


def counts(report: Report) -> dict[str, int]:
    return dict(report.counts) | {f"refused {reason}": count for reason, count in report.refused.items()}
