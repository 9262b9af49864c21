"""The batch reader: a snapshot of queues, planned on the driver and read by tasks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)

from rqttl.protocol.keys import Keyspace
from spark_connectors.options.options import Options
from spark_connectors.ranges import sequence_before
from spark_connectors.read import scan
from spark_connectors.read.arrivals import ArrivalIndex
from spark_connectors.read.batch_plan import plan_tasks
from spark_connectors.read.counting import COUNTED_COLUMNS, count_whole_queues, counted_rows
from spark_connectors.read.loss import LossReporter
from spark_connectors.read.plan import FilterBounds
from spark_connectors.read.range_count import count_range
from spark_connectors.read.replica import open_reader
from spark_connectors.read.watch import DeletionWatch, WatchedRange, report_deletions
from spark_connectors.redis.bulk_reader import BulkReader


@dataclass
class BatchPartition(InputPartition):
    """The ranges of one task."""

    ranges: tuple[WatchedRange, ...]


class RqttlBatchReader(DataSourceReader):
    """Reads the messages that the queues hold at the time of the plan. Each `load()` has one plan for its queries."""

    def __init__(self, options: Options, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns
        self._bounds = FilterBounds()
        self._limit: int | None = None

    def pushLimit(self, limit: int) -> bool:  # noqa: N802  # Spark's name
        """Let each task end after this number of rows. Spark calls this from 4.4 on, and applies the limit itself."""
        self._limit = limit
        return True

    def partitions(self) -> Sequence[InputPartition]:
        """Plan the tasks. Raises all errors that are known before a task starts."""
        tasks = plan_tasks(self._options, self._bounds, splits=self._columns != COUNTED_COLUMNS)
        # Spark makes a partition of `None` of an empty list
        return [BatchPartition(tuple(task)) for task in tasks or [[]]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the messages of a task. Raises `DataLoss` if messages of the snapshot were lost before."""
        if not isinstance(partition, BatchPartition) or not partition.ranges:
            return
        options, ranges = self._options, partition.ranges
        keys, counts = Keyspace(options.text("namespace")), self._columns == COUNTED_COLUMNS
        losses = LossReporter(fail=options.flag("failOnDataLoss"))
        watches = [DeletionWatch(watched, keys, losses) for watched in ranges]
        with BulkReader(options) if counts else open_reader(options, keys, ranges) as reader:
            yield from self._batches(reader, keys, watches)
            report_deletions(reader, keys, watches, losses)

    def _batches(
        self, reader: BulkReader, keys: Keyspace, watches: Sequence[DeletionWatch]
    ) -> Iterator[pa.RecordBatch]:
        """Count the ranges of a read of queue names where that is exact. Read all others, up to the pushed limit."""
        if self._columns == COUNTED_COLUMNS:
            counts, left = count_whole_queues(reader, keys, watches)
            for at, count in counts.items():
                yield from counted_rows(watches[at].watched.range.queue, count)
            watches = [watches[at] for at in left]
            index = ArrivalIndex(keys)
            partly = [(watch, count_range(reader, keys, index, watch)) for watch in watches]
            for watch, rows in partly:
                yield from counted_rows(watch.watched.range.queue, rows or 0)
            watches = [watch for watch, rows in partly if rows is None]
        if not watches:
            return
        ranges = [watch.watched.range for watch in watches]
        if self._limit is not None:
            reader.max_entries = min(reader.max_entries, self._limit)
        rows = 0
        for batch in scan.read(reader, keys, ranges, self._columns, watches, limit=self._limit):
            yield batch
            rows += batch.num_rows
            if self._limit is not None and rows >= self._limit:
                return


class RqttlFilteringReader(RqttlBatchReader):
    """The batch reader with `pushFilters=true`: it takes filters from Spark.

    **Only for a DataFrame that is used in one scan.** Up to Spark 4.3 a pushed filter stays with the loaded DataFrame:
    every later action, union or self-join of it sees only the rows that the filter left. Call `load()` anew for each
    scan. Or leave this option off and use `queues`, `startingTimestamp` and `endingTimestamp`.

    This is a class of its own, because Spark refuses all reads of a reader with a method `pushFilters` while
    `spark.sql.python.filterPushdown.enabled` is false, which is the default.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802  # Spark's name
        """Narrow the read by filters on `queue` and `died_at`. Spark still applies all filters."""
        for condition in filters:
            self._bounds = self._bounds.intersect(_bounds_of(condition))
            yield condition


def _bounds_of(condition: Filter) -> FilterBounds:
    """Convert a filter to bounds. They may admit a little more, because times are rounded outward to whole ms."""
    column = getattr(condition, "attribute", None)
    if column == ("queue",):
        return FilterBounds(_names_of(condition))
    if column != ("died_at",):
        return FilterBounds()
    value = getattr(condition, "value", None)
    if not isinstance(value, datetime):
        return FilterBounds()
    aware = value if value.tzinfo else value.replace(tzinfo=timezone.utc)
    ms = max(0, int(aware.timestamp() * 1000))
    since, until = sequence_before(max(0, ms - 1)), sequence_before(ms + 2)
    if isinstance(condition, EqualTo):
        return FilterBounds(None, since, until)
    if isinstance(condition, (GreaterThan, GreaterThanOrEqual)):
        return FilterBounds(None, since)
    return FilterBounds(None, upto=until) if isinstance(condition, (LessThan, LessThanOrEqual)) else FilterBounds()


def _names_of(condition: Filter) -> frozenset[str] | None:
    """Return the names that a filter on names admits; `None` for all names."""
    if isinstance(condition, EqualTo) and condition.value is not None:
        return frozenset({str(condition.value)})
    return frozenset(map(str, condition.value)) if isinstance(condition, In) else None
