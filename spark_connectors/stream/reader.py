"""The streaming reader: batches of closed ranges, planned on the driver and read by the tasks.

Spark makes several of these: one lives on the driver as long as the query, others plan its tasks or run in them. So the
constructor does nothing, and nothing relies on `stop`. What has been read is in Spark's checkpoint alone; the queues
know nothing of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from rqttl.keys import Keyspace
from spark_connectors.options.options import Options
from spark_connectors.read import scan
from spark_connectors.read.loss import Alarm
from spark_connectors.read.watch import Span, Watcher, settle
from spark_connectors.redis.bulk_reader import Wire
from spark_connectors.stream.follow import Follower, Limit
from spark_connectors.stream.offsets import Offset


@dataclass
class StreamPartition(InputPartition):
    """What one task reads, in order."""

    spans: tuple[Span, ...]


class RqttlStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows queues from a checkpoint. Every message is in one batch, and a batch that is repeated is the same again.

    Raises `DataLoss` if a queue has lost what was to be read and `failOnDataLoss` is true.
    """

    def __init__(self, options: Options, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns
        self._follower = Follower(options)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self._options, self._columns)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  # Spark's name
        """Where a new query begins, as `startingOffsets` or `startingTimestamp` says."""
        return self._follower.initial().dump()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  # Spark's name
        """The limit of `maxEntriesPerTrigger` or `maxBytesPerTrigger`, if any."""
        rows = self._options.maybe_number("maxEntriesPerTrigger")
        size = self._options.maybe_number("maxBytesPerTrigger")
        if rows is not None:
            return ReadMaxRows(rows)
        return ReadAllAvailable() if size is None else ReadMaxBytes(size)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802  # Spark's name
        """The end of the next batch within this limit; `start` itself if there is nothing to read."""
        begin = Offset.parse(start)
        end = self._follower.latest(begin, _limit(limit))
        return start if end is begin else end.dump()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  # Spark's name
        """Let the query end with what is there now."""
        self._follower.stay()

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802  # Spark's name
        """The end of all that is there, for the progress of the query."""
        return self._follower.newest().dump()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of a batch. Rows come in the order of queue and sequence, however many tasks there are."""
        spans = self._follower.spans(Offset.parse(start), Offset.parse(end))
        return [StreamPartition(tuple(part)) for part in self._follower.parts(spans)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of a task."""
        # Spark makes a partition without anything of an empty list
        if not isinstance(partition, StreamPartition):
            return
        keys, alarm = Keyspace(self._options.text("namespace")), Alarm(fail=self._options.flag("failOnDataLoss"))
        with Wire(self._options) as wire:
            for spans in _in_order(partition.spans, wire.most):
                watches = [Watcher(span, keys, alarm) for span in spans]
                yield from scan.read(wire, keys, [span.range for span in spans], self._columns, watches)
                settle(wire, keys, watches, alarm)

    def stop(self) -> None:
        """Close the connection; Spark often does not call it."""
        self._follower.close()


def _limit(limit: ReadLimit) -> Limit | None:
    if isinstance(limit, ReadMaxRows):
        return Limit(limit.max_rows)
    return Limit(limit.max_bytes, in_bytes=True) if isinstance(limit, ReadMaxBytes) else None


def _in_order(spans: Sequence[Span], most: int) -> Iterator[list[Span]]:
    """Neighbours that a scan reads in their order: it takes small ranges before large ones."""
    for _, neighbours in groupby(spans, lambda span: span.range.rows <= most):
        yield list(neighbours)
