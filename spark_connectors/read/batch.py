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

from rqttl.keys import Keyspace
from spark_connectors.options.options import Options
from spark_connectors.ranges import LAST, Range, before
from spark_connectors.read import plan, scan
from spark_connectors.read.loss import Alarm
from spark_connectors.read.plan import Window
from spark_connectors.read.watch import Span, Watcher, now, settle
from spark_connectors.redis.bulk_reader import Wire


@dataclass
class BatchPartition(InputPartition):
    """What one task reads."""

    spans: tuple[Span, ...]


class RqttlBatchReader(DataSourceReader):
    """Reads what is in the queues when the reading is planned: once for each `load()`, whatever is done with it."""

    def __init__(self, options: Options, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns
        self._window = Window()

    def partitions(self) -> Sequence[InputPartition]:
        """Who reads what. Whatever can be known to go wrong is raised here, before any task starts."""
        keys = Keyspace(self._options.text("namespace"))
        with Wire(self._options) as wire:
            found = plan.selected(self._options, wire, keys, self._window)
            ranges = plan.snapshot(self._options, wire, keys, found.values(), self._window)
            plan.may_read(wire, keys, ranges)
            packed = plan.partitions(self._options, wire, keys, ranges)
        # Spark makes a partition of `None` of an empty list
        return [BatchPartition(tuple(_span(one, found[one.queue].born) for one in some)) for some in packed or [[]]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of a task. Raises `DataLoss` if some were lost with their queue before they were read."""
        if not isinstance(partition, BatchPartition) or not partition.spans:
            return
        keys, alarm = Keyspace(self._options.text("namespace")), Alarm(fail=self._options.flag("failOnDataLoss"))
        watches = [Watcher(span, keys, alarm) for span in partition.spans]
        with Wire(self._options) as wire:
            yield from scan.read(wire, keys, [span.range for span in partition.spans], self._columns, watches)
            settle(wire, keys, watches, alarm)


class RqttlFilteringReader(RqttlBatchReader):
    """The same with filters pushed down: `pushFilters=true`.

    **Only for a frame that is used for one scan.** Up to Spark 4.3 a filter that was pushed down once stays with the
    loaded frame: any further action on it, a union or a join of it with itself, sees only what that filter left. Call
    `load()` anew for each scan; or leave this off and use `queues`, `startingTimestamp` and `endingTimestamp`.

    A class of its own, because Spark refuses every read of a reader that has `pushFilters` while
    `spark.sql.python.filterPushdown.enabled` is false, which it is by default.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802  # Spark's name
        """Read no more than what some filters on `queue` and `died_at` leave; all are still applied by Spark."""
        for one in filters:
            self._window = self._window.meet(_window(one))
            yield one


def _span(found: Range, born: int) -> Span:
    """A range to watch for a deletion of its queue alone: what leaves the queue otherwise is not in a batch."""
    return Span(found, born, LAST, now())


def _window(one: Filter) -> Window:
    """What a filter leaves of everything, or a little more than that: places are rounded outward to whole ms."""
    column = getattr(one, "attribute", None)
    if column == ("queue",):
        if isinstance(one, EqualTo):
            return Window(frozenset({str(one.value)}))
        return Window(frozenset(map(str, one.value))) if isinstance(one, In) else Window()
    if column != ("died_at",):
        return Window()
    value = getattr(one, "value", None)
    if not isinstance(value, datetime):
        return Window()
    aware = value if value.tzinfo else value.replace(tzinfo=timezone.utc)
    ms = max(0, int(aware.timestamp() * 1000))
    since, until = before(max(0, ms - 1)), before(ms + 2)
    if isinstance(one, EqualTo):
        return Window(None, since, until)
    if isinstance(one, (GreaterThan, GreaterThanOrEqual)):
        return Window(None, since)
    return Window(None, upto=until) if isinstance(one, (LessThan, LessThanOrEqual)) else Window()
