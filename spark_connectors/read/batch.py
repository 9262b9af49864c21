"""The batch reader: a snapshot of queues, planned on the driver and read by tasks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from rqttl.protocol.keys import Keyspace
from spark_connectors.options.options import Options
from spark_connectors.read import plan, scan
from spark_connectors.read.arrivals import ArrivalIndex
from spark_connectors.read.counting import COUNTED_COLUMNS, count_range, count_whole_queues, counted_rows
from spark_connectors.read.loss import LossReporter
from spark_connectors.read.watch import DeletionWatch, WatchedRange, now_ms, present_dataset, report_deletions
from spark_connectors.redis.bulk_reader import BulkReader


def plan_tasks(options: Options, *, splits: bool) -> list[list[WatchedRange]]:
    """Plan the tasks of a batch. Raises all errors that are known before a task starts.

    Messages that were lost before the snapshot are not in the batch.
    """
    keys = Keyspace(options.text("namespace"))
    with BulkReader(options) as reader:
        dataset = present_dataset(reader, keys)
        queues = plan.select_queues(options, reader, keys)
        ranges = plan.plan_ranges(options, reader, keys, queues.values())
        plan.check_read_access(reader, keys, ranges)
        tasks = plan.partitions(options, reader, keys, ranges, splits=splits)
    return [
        [
            WatchedRange(part, state.created_at, state.trimmed_upto, now_ms(), state.enqueued, dataset)
            for part in task
            for state in [queues[part.queue].state]
        ]
        for task in tasks
    ]


@dataclass
class BatchPartition(InputPartition):
    """The ranges of one task."""

    ranges: tuple[WatchedRange, ...]


class RqttlBatchReader(DataSourceReader):
    """Reads the messages that the queues hold at the time of the plan. Each `load()` has one plan for its queries."""

    def __init__(self, options: Options, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns

    def partitions(self) -> Sequence[InputPartition]:
        """Plan the tasks. Raises all errors that are known before a task starts."""
        tasks = plan_tasks(self._options, splits=self._columns != COUNTED_COLUMNS)
        # Spark makes a partition of `None` of an empty list
        return [BatchPartition(tuple(task)) for task in tasks or [[]]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the messages of a task. Raises `DataLoss` if messages of the snapshot were lost before."""
        if not isinstance(partition, BatchPartition) or not partition.ranges:
            return
        options, ranges = self._options, partition.ranges
        keys = Keyspace(options.text("namespace"))
        losses = LossReporter(fail=options.flag("failOnDataLoss"))
        watches = [DeletionWatch(watched, keys, losses) for watched in ranges]
        with BulkReader(options) as reader:
            yield from self._batches(reader, keys, watches)
            report_deletions(reader, keys, watches, losses)

    def _batches(
        self, reader: BulkReader, keys: Keyspace, watches: Sequence[DeletionWatch]
    ) -> Iterator[pa.RecordBatch]:
        """Count the ranges of a read of queue names where that is exact, and read all others."""
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
        yield from scan.read(reader, keys, ranges, self._columns, watches)
