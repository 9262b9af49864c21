"""The plan of a read, made on the driver: the queues, their ranges, and the partition of the ranges into tasks.

The plan raises all errors that are known before a task starts: missing queues, sequences that are already removed, a
user without the right to read.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heapreplace

from rqttl.checks import queue_names
from rqttl.protocol.keys import DETACHED, LOG, META, Keyspace
from rqttl.text import did_you_mean
from spark_connectors.errors import DataLoss, InvalidOption, NoSuchQueue
from spark_connectors.options import patterns
from spark_connectors.options.options import Options
from spark_connectors.ranges import FIRST, LAST, Range, sequence_before, sequence_number
from spark_connectors.read.arrivals import STEP, ArrivalIndex, MarkRequest, Marks
from spark_connectors.read.positions import QueueState
from spark_connectors.read.probe import LogProbe
from spark_connectors.redis.bulk_reader import BulkReader
from spark_connectors.redis.names import HOLDS_DEAD_LETTERS, STATE_FIELDS

_log = logging.getLogger("spark_connectors")

_QUEUES_AT_ONCE = 250
#: The rows of a task, and the most tasks, unless `numPartitions` says how many.
_TASK_ROWS, _MAX_TASKS = 250_000, 64
#: Queues of up to this many messages are not probed: one task can read them without a noticeable delay.
_SMALL_QUEUE = 10_000


@dataclass(frozen=True, slots=True)
class QueueSnapshot:
    """A queue at one moment: its record, the entries of its log, and its messages outside the log."""

    queue: str
    state: QueueState
    logged: int
    detached: int
    holds_dead_letters: bool

    @property
    def rows(self) -> int:
        """The number of messages."""
        return self.logged + self.detached

    @property
    def may_have_detached(self) -> bool:
        """True if messages lie outside the log, or may leave it during the read. Dead letters never leave it."""
        return bool(self.detached) or not self.holds_dead_letters


def queue_snapshots(reader: BulkReader, keys: Keyspace, queues: Sequence[str]) -> dict[str, QueueSnapshot]:
    """Take a snapshot of each queue that exists, in few round trips."""
    snapshots: dict[str, QueueSnapshot] = {}
    for start in range(0, len(queues), _QUEUES_AT_ONCE):
        chunk = queues[start : start + _QUEUES_AT_ONCE]
        replies = reader.execute_all(
            [
                command
                for queue in chunk
                for command in (
                    ("HMGET", keys.key(queue, META), *STATE_FIELDS, HOLDS_DEAD_LETTERS),
                    ("XLEN", keys.key(queue, LOG)),
                    ("HLEN", keys.key(queue, DETACHED)),
                )
            ]
        )
        for i, queue in enumerate(chunk):
            (*fields, dead_letters), logged, detached = replies[3 * i : 3 * i + 3]
            if (state := QueueState.from_fields(fields)) is not None:
                snapshots[queue] = QueueSnapshot(queue, state, logged, detached, dead_letters == b"1")
    return snapshots


def registered_queues(reader: BulkReader, keys: Keyspace) -> list[str]:
    """Return the names of all queues. Raises `InvalidOption` for one node of a cluster, where there are none."""
    names = queue_names(reader.execute("SMEMBERS", keys.registry))
    if not names:
        reader.refuse_cluster()
    return list(names)


def select_queues(options: Options, reader: BulkReader, keys: Keyspace) -> dict[str, QueueSnapshot]:
    """Return the queues that the options select. Raises `NoSuchQueue` for a missing queue of `queues`."""
    pattern = options.optional_text("queuePattern")
    if pattern is None:
        queues = queue_snapshots(reader, keys, options.queues)
        if missing := [queue for queue in options.queues if queue not in queues]:
            raise _no_such_queue(reader, keys, missing)
        return queues
    return queue_snapshots(reader, keys, patterns.matching(pattern, registered_queues(reader, keys)))


def _no_such_queue(reader: BulkReader, keys: Keyspace, missing: Sequence[str]) -> NoSuchQueue:
    """Make the error for missing queues of the option `queues`. It suggests a name like the first of them.

    Raises `InvalidOption` for one node of a cluster.
    """
    reader.refuse_cluster()
    names = queue_names(reader.execute("SMEMBERS", keys.registry))
    hint = did_you_mean(missing[0], names, "the first dead letter creates a dead-letter queue")
    others = f" (nor {len(missing) - 1} more of this option)" if len(missing) > 1 else ""
    return NoSuchQueue(f"queues: there is no queue {missing[0]!r} in namespace {keys.namespace!r}{others}{hint}")


def plan_ranges(options: Options, reader: BulkReader, keys: Keyspace, queues: Iterable[QueueSnapshot]) -> list[Range]:
    """Plan the range of each queue for a batch. It ends at the present last message or before. Raises `DataLoss`."""
    ranges, index = [], ArrivalIndex(keys)
    for queue in queues:
        whole = Range(queue.queue, FIRST, queue.state.last_sequence, queue.rows, queue.may_have_detached)
        start, end = _start(options, queue), _end(options, queue)
        if end < start:
            name = "endingOffsets" if options["endingTimestamp"] is None else "endingTimestamp"
            raise InvalidOption(f"{name}: queue {queue.queue!r}: the range ends at {end}, before it starts at {start}")
        clipped = whole.clip(start, end)
        if clipped.empty or not whole.rows:
            continue
        if clipped != whole and whole.rows > _SMALL_QUEUE:
            marks = index.read(reader, [MarkRequest.all_in(clipped)]).get(clipped.queue)
            rows = None if marks is None else _rows_by_marks(queue, clipped, marks)
            clipped = replace(
                clipped, rows=LogProbe(reader, keys, whole).estimate_rows(clipped) if rows is None else rows
            )
        ranges.append(clipped)
    return ranges


def _rows_by_marks(queue: QueueSnapshot, part: Range, marks: Marks) -> int | None:
    """Estimate the rows of a part of a queue by the nearest marks; `None` for too few marks."""
    after, upto = sequence_number(part.after), sequence_number(part.upto)
    inside = marks.between(after, upto)
    if not inside.complete or len(inside) == 0:
        return None
    begin = marks.count_upto(after) or max(0, queue.state.enqueued - queue.rows)
    end = queue.state.enqueued if part.upto >= queue.state.last_sequence else int(inside.counts[-1]) + STEP // 2
    return max(1, min(queue.rows, end - begin))


def _start(options: Options, queue: QueueSnapshot) -> str:
    since, offsets = options.optional_number("startingTimestamp"), options.offsets("startingOffsets")
    if since is not None:
        return sequence_before(since)
    after = offsets if isinstance(offsets, str) else offsets.get(queue.queue, "earliest")
    if after == "earliest":
        return FIRST
    if (trimmed := queue.state.trimmed_upto) > after:
        text = (
            f"startingOffsets: queue {queue.queue!r}: messages after {after}, the highest of them "
            f"{trimmed}, were removed by retention, a limit or a purge"
        )
        if options.flag("failOnDataLoss"):
            raise DataLoss(f"{text}. With failOnDataLoss=false the job reads the remaining messages")
        _log.warning("%s", text)
    return after


def _end(options: Options, queue: QueueSnapshot) -> str:
    until, offsets = options.optional_number("endingTimestamp"), options.offsets("endingOffsets")
    if until is not None:
        return sequence_before(until)
    upto = offsets if isinstance(offsets, str) else offsets.get(queue.queue, "latest")
    return LAST if upto == "latest" else upto


def check_read_access(reader: BulkReader, keys: Keyspace, ranges: Sequence[Range]) -> None:
    """Run each command of the tasks once, on one queue. A user without the rights gets the error before tasks start."""
    for first in ranges[:1]:
        log = keys.key(first.queue, LOG)
        reader.execute_all(
            [
                ("XRANGE", log, "+", "+", "COUNT", 1),
                ("XREVRANGE", log, "+", "+", "COUNT", 1),
                ("HSCAN", keys.key(first.queue, DETACHED), 0, "COUNT", 1),
            ]
        )


def task_count(options: Options, total: int) -> int:
    """Return the number of tasks for this number of rows."""
    tasks = options.optional_number("numPartitions")
    if tasks is None:
        tasks = min(_MAX_TASKS, -(-total // _TASK_ROWS))
    # a task without rows costs as much time as one with rows
    return min(tasks, max(1, total))


def partitions(
    options: Options,
    reader: BulkReader,
    keys: Keyspace,
    ranges: Sequence[Range],
    *,
    in_order: bool = False,
    splits: bool = True,
) -> list[list[Range]]:
    """Partition ranges into tasks of about equal size: split large ranges if it `splits`, and put small ones together.

    With `in_order`, the tasks, one after the other, keep the order of the ranges. Otherwise each task reads one node of
    a cluster, unless `numPartitions` admits fewer tasks than there are nodes.
    """
    total = sum(whole.rows for whole in ranges)
    tasks = task_count(options, total)
    parts = {whole.queue: round(whole.rows * tasks / max(1, total)) if splits else 1 for whole in ranges}
    by_marks = [MarkRequest.all_in(whole) for whole in ranges if parts[whole.queue] > 1]
    marks = ArrivalIndex(keys).read(reader, by_marks)
    pieces: list[Range] = []
    for whole in ranges:
        pieces += _split(reader, keys, whole, parts[whole.queue], marks.get(whole.queue))
    if in_order:
        return pack_in_order(pieces, max(1, tasks))
    nodes: dict[Hashable, list[Range]] = {}
    for piece in pieces:
        nodes.setdefault(reader.node_of(keys.key(piece.queue, LOG)), []).append(piece)
    if options.optional_number("numPartitions") is None:
        tasks = max(tasks, len(nodes))
    spare, rows = tasks - len(nodes), [sum(piece.rows for piece in own) for own in nodes.values()]
    if spare < 0:
        return pack_evenly(pieces, max(1, tasks))
    shares = [1 + spare * part // max(1, sum(rows)) for part in rows]
    return [task for own, share in zip(nodes.values(), shares, strict=True) for task in pack_evenly(own, share)]


def _split(reader: BulkReader, keys: Keyspace, whole: Range, parts: int, marks: Marks | None) -> list[Range]:
    """Split a range by marks, or by probes where there are too few marks."""
    if parts <= 1:
        return [whole]
    ends = None
    if marks is not None:
        ends = marks.split(sequence_number(whole.after), sequence_number(whole.upto), whole.rows, parts)
    return LogProbe(reader, keys, whole).split(parts) if ends is None else whole.cut(ends)


def pack_in_order(pieces: Sequence[Range], tasks: int) -> list[list[Range]]:
    """Put neighbours together into this number of tasks or fewer. No task is empty."""
    share = (sum(piece.rows for piece in pieces) + len(pieces)) / tasks
    packed: dict[int, list[Range]] = {}
    load = 0.0
    for piece in pieces:
        # the middle of a piece decides; an empty piece has a cost, too
        packed.setdefault(min(tasks - 1, int((load + (piece.rows + 1) / 2) / share)), []).append(piece)
        load += piece.rows + 1
    return list(packed.values())


def pack_evenly(pieces: Sequence[Range], tasks: int) -> list[list[Range]]:
    """Put pieces into this number of tasks or fewer: largest first, each into the smallest task. No task is empty."""
    loads = [(0, i) for i in range(min(tasks, len(pieces)))]
    packed: list[list[Range]] = [[] for _ in loads]
    heapify(loads)
    for piece in sorted(pieces, key=lambda piece: (-piece.rows, piece.queue, piece.after)):
        load, i = loads[0]
        packed[i].append(piece)
        # an empty piece has a cost, too
        heapreplace(loads, (load + piece.rows + 1, i))
    return packed
