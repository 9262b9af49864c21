"""The streaming reader: batches of closed ranges, planned on the driver and read by tasks.

Spark makes several readers: one lives on the driver as long as the query; others plan its tasks or run in them. So the
constructor does not connect, and nothing relies on `stop`. Only Spark's checkpoint knows the position of a query.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from rqttl.protocol.keys import Keyspace
from spark_connectors.options.options import Options
from spark_connectors.read import scan
from spark_connectors.read.loss import LossReporter
from spark_connectors.read.replica import open_reader
from spark_connectors.read.servers import ServerColumn, by_server, naming
from spark_connectors.read.watch import DeletionWatch, WatchedRange, report_deletions
from spark_connectors.stream.pace import Pauses
from spark_connectors.stream.planner import StreamPlanner
from spark_connectors.stream.servers.offset import is_composed
from spark_connectors.stream.servers.planner import ServersPlanner
from spark_connectors.stream.unread import BatchLimit


@dataclass
class StreamPartition(InputPartition):
    """The ranges of one task, in order."""

    ranges: tuple[WatchedRange, ...]


class PlannedOffset(Protocol):
    """An offset of a query over one server or several: `Offset` or `ServersOffset`."""

    def dump(self) -> dict[str, Any]:
        """Return the JSON value for the checkpoint."""


class Planner(Protocol):
    """The planner of a query over one server or several: `StreamPlanner` or `ServersPlanner`."""

    @property
    def queue_count(self) -> int:
        """The number of queues at the last question."""

    def parse(self, values: Mapping[str, Any]) -> Any:
        """Parse an offset of a checkpoint."""

    def initial(self) -> PlannedOffset:
        """Return the start of a new query."""

    def latest(self, start: Any, limit: BatchLimit | None, *, may_wait: bool = False) -> Any:
        """Return the end of the next batch, or `start`."""

    def newest(self) -> PlannedOffset:
        """Return the end of all queues, as last read."""

    def unread(self) -> int | None:
        """Return the number of messages after the end of the last batch, as last read. `None` before the first one."""

    def freeze(self) -> None:
        """Ignore all messages that arrive from now on."""

    def tasks(self, start: Any, end: Any) -> list[list[WatchedRange]]:
        """Plan the tasks of a batch."""

    def close(self) -> None:
        """Close all connections."""


class RqttlStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows queues from a checkpoint. Every message is in one batch, and a repeated batch has the same messages.

    With `failOnDataLoss`, raises `DataLoss` if a queue has lost unread messages.
    """

    def __init__(self, options: Options, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns
        self._planner: Planner = ServersPlanner(options) if options.is_composed else StreamPlanner(options)
        self._frozen = False
        self._pauses = Pauses()

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self._options, self._columns)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  # Spark's name
        """Return the start of a new query, from `startingOffsets` or `startingTimestamp`."""
        return self._planner.initial().dump()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  # Spark's name
        """Return the limit of `maxEntriesPerTrigger` or `maxBytesPerTrigger`, or else of `minEntriesPerTrigger`."""
        kinds: tuple[tuple[str, Callable[[int], ReadLimit]], ...] = (
            ("maxEntriesPerTrigger", ReadMaxRows),
            ("maxBytesPerTrigger", ReadMaxBytes),
            ("minEntriesPerTrigger", ReadMinRows),
        )
        limits = ((kind, self._options.optional_number(name)) for name, kind in kinds)
        return next((kind(amount) for kind, amount in limits if amount is not None), ReadAllAvailable())

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802  # Spark's name
        """Return the end of the next batch within this limit; `start` itself if there is nothing to read.

        Spark replaces each limit by `ReadAllAvailable` if the query has one batch only.
        """
        self._pauses.wait()
        planner = self._planner_for(start)
        begin = planner.parse(start)
        may_wait = not isinstance(limit, ReadAllAvailable)
        end = planner.latest(begin, _batch_limit(limit), may_wait=may_wait)
        self._pauses.note(idle=end is begin, queues=planner.queue_count)
        return start if end is begin else end.dump()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  # Spark's name
        """Let the query end with the messages that exist now."""
        self._frozen = True
        self._planner.freeze()

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802  # Spark's name
        """Return the end of all queues for the progress report of the query, and as `unread` its lag.

        This is the number of messages after the end of the last batch, at most. It is absent before the first batch.
        """
        newest, unread = self._planner.newest().dump(), self._planner.unread()
        return newest if unread is None else {**newest, "unread": unread}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Plan the tasks of a batch. Its rows come in the order of queue and sequence, for any number of tasks."""
        planner = self._planner_for({**start, **end})
        return [StreamPartition(tuple(task)) for task in planner.tasks(planner.parse(start), planner.parse(end))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the messages of a task."""
        # Spark makes a partition of `None` of an empty list
        if not isinstance(partition, StreamPartition):
            return
        column = ServerColumn(self._columns)
        for options, ranges in by_server(self._options, partition.ranges):
            yield from column.add(_read_server(options, ranges, column.others), options.address.server)

    def _planner_for(self, offset: Mapping[str, Any]) -> Planner:
        """Return the planner for an offset. One of several servers may come back in a query of a single server."""
        if is_composed(offset) and isinstance(self._planner, StreamPlanner):
            self._planner.close()
            self._planner = ServersPlanner(self._options)
            if self._frozen:
                self._planner.freeze()
        return self._planner

    def stop(self) -> None:
        """Close the connection. Spark often skips this call."""
        self._planner.close()


def _read_server(options: Options, task: Sequence[WatchedRange], columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
    """Read the ranges of one server."""
    keys = Keyspace(options.text("namespace"))
    losses = LossReporter(fail=options.flag("failOnDataLoss"), server=options.server)
    unread = [watched for watched in task if watched.kept is None]
    with naming(options.server), open_reader(options, keys, unread) as reader:
        for neighbours in _in_order(task, reader.max_entries):
            watches = [DeletionWatch(watched, keys, losses) for watched in neighbours]
            ranges = [watched.range for watched in neighbours]
            kept = {i: watched.kept for i, watched in enumerate(neighbours) if watched.kept is not None}
            yield from scan.read(reader, keys, ranges, columns, watches, kept=kept)
            report_deletions(reader, keys, watches, losses)


def _batch_limit(limit: ReadLimit) -> BatchLimit | None:
    if isinstance(limit, ReadMaxRows):
        return BatchLimit(limit.max_rows)
    return BatchLimit(limit.max_bytes, in_bytes=True) if isinstance(limit, ReadMaxBytes) else None


def _in_order(ranges: Sequence[WatchedRange], max_entries: int) -> Iterator[list[WatchedRange]]:
    """Yield runs of small or of large ranges: a scan reads small ranges before large ones, and each kind in order.

    Ranges that are read already belong to any run.
    """
    run: list[WatchedRange] = []
    large: bool | None = None
    for watched in ranges:
        if watched.kept is None:
            is_large = watched.range.rows > max_entries
            if large is not None and is_large != large:
                yield run
                run = []
            large = is_large
        run.append(watched)
    if run:
        yield run
