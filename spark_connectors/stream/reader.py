"""The streaming reader: batches of closed ranges, planned on the driver and read by tasks.

Spark makes several readers: one lives on the driver as long as the query; others plan its tasks or run in them. So the
constructor does not connect, and nothing relies on `stop`. Only Spark's checkpoint knows the position of a query.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from rqttl.protocol.keys import Keyspace
from spark_connectors.logs import log_text
from spark_connectors.options.options import Options
from spark_connectors.read import scan
from spark_connectors.read.loss import LossReporter
from spark_connectors.read.watch import DeletionWatch, WatchedRange, report_deletions
from spark_connectors.redis.bulk_reader import BulkReader
from spark_connectors.stream.mark_plan import BatchLimit
from spark_connectors.stream.offsets import Offset
from spark_connectors.stream.pace import Pauses
from spark_connectors.stream.planner import StreamPlanner
from spark_connectors.versions import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

#: The options that limit a batch, in the order of precedence, with the limit of Spark for each.
_LIMITS: tuple[tuple[str, Callable[[int], ReadLimit]], ...] = (
    ("maxEntriesPerTrigger", ReadMaxRows),
    ("maxBytesPerTrigger", ReadMaxBytes),
    ("minEntriesPerTrigger", ReadMinRows),
)


@dataclass
class StreamPartition(InputPartition):
    """The ranges of one task, in order."""

    ranges: tuple[WatchedRange, ...]


class RqttlStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows queues from a checkpoint. Every message is in one batch, and a repeated batch has the same messages.

    With `failOnDataLoss`, raises `DataLoss` if a queue has lost unread messages.
    """

    def __init__(self, options: Options, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns
        self._planner = StreamPlanner(options)
        self._pauses = Pauses()
        #: The end of the last batch that this reader has planned.
        self._planned: dict[str, Any] | None = None
        self._warned = False

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self._options, self._columns)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  # Spark's name
        """Return the start of a new query, from `startingOffsets` or `startingTimestamp`."""
        return self._planner.initial().dump()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  # Spark's name
        """Return the limit of `maxEntriesPerTrigger` or `maxBytesPerTrigger`, or else of `minEntriesPerTrigger`."""
        limits = ((kind, self._options.optional_number(name)) for name, kind in _LIMITS)
        return next((kind(amount) for kind, amount in limits if amount is not None), ReadAllAvailable())

    def latestOffset(  # noqa: N802  # Spark's name
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        """Return the end of the next batch within this limit; `start` itself if there is nothing to read.

        Spark replaces each limit by `ReadAllAvailable` if the query has one batch only. Before 4.2 it names neither
        start nor limit: the start is then the end of the last batch.
        """
        self._pauses.wait()
        if start is None or limit is None:
            self._warn_of_old_spark()
            start, limit = self._planned or self.initialOffset(), self.getDefaultReadLimit()
        begin = Offset.parse(start)
        may_wait = not isinstance(limit, ReadAllAvailable)
        end = self._planner.latest(begin, _batch_limit(limit), may_wait=may_wait)
        self._pauses.note(idle=end is begin, queues=self._planner.queue_count)
        self._planned = start if end is begin else end.dump()
        return self._planned

    def _warn_of_old_spark(self) -> None:
        """Log once what a limit does not do before Spark 4.2, which does not tell which trigger a query has."""
        names = [name for name, _ in _LIMITS if self._options[name] is not None]
        if names and not self._warned:
            log_text(
                logging.WARNING,
                f"{names[0]}: before Spark 4.2, a run with Trigger.AvailableNow reads one batch within this limit, and "
                "ends. With a processing time the limit acts as ever",
            )
        self._warned = True

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  # Spark's name
        """Let the query end with the messages that exist now."""
        self._planner.freeze()

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802  # Spark's name
        """Return the end of all queues for the progress report of the query, and as `unread` its lag.

        This is the number of messages after the end of the last batch, at most. It is absent before the first batch.
        """
        newest, unread = self._planner.newest().dump(), self._planner.unread()
        return newest if unread is None else {**newest, "unread": unread}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Plan the tasks of a batch. Its rows come in the order of queue and sequence, for any number of tasks."""
        self._planned = self._planned or end
        if start == end:
            # before 4.2 a restarted query asks this of its last batch
            return []
        return [StreamPartition(tuple(task)) for task in self._planner.tasks(Offset.parse(start), Offset.parse(end))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the messages of a task."""
        # Spark makes a partition of `None` of an empty list
        if not isinstance(partition, StreamPartition):
            return
        keys = Keyspace(self._options.text("namespace"))
        losses = LossReporter(fail=self._options.flag("failOnDataLoss"))
        with BulkReader(self._options) as reader:
            # a scan reads small ranges before large ones, and each kind in order
            for _, run in groupby(partition.ranges, lambda watched: watched.range.rows > reader.max_entries):
                neighbours = list(run)
                watches = [DeletionWatch(watched, keys, losses) for watched in neighbours]
                yield from scan.read(reader, keys, [watched.range for watched in neighbours], self._columns, watches)
                report_deletions(reader, keys, watches, losses)

    def stop(self) -> None:
        """Close the connection. Spark often skips this call."""
        self._planner.close()


def _batch_limit(limit: ReadLimit) -> BatchLimit | None:
    if isinstance(limit, ReadMaxRows):
        return BatchLimit(limit.max_rows)
    return BatchLimit(limit.max_bytes, in_bytes=True) if isinstance(limit, ReadMaxBytes) else None
