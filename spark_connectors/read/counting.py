"""Counts of dead-letter queues, for reads of the column `queue` alone.

The counters of a whole queue tell its number: no entry crosses the network. Of a stretch of time only the ends are
read: the numbers of arrivals count dead letters exactly if none has left the middle of the queue. The length of the log
shows this: behind the first mark it has as many as have arrived there. Otherwise the range has to be read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from rqttl.protocol.keys import LOG, META, Keyspace
from spark_connectors.columns.schema import arrow_schema
from spark_connectors.ranges import FIRST, recorded_sequence, sequence_number, sequence_text
from spark_connectors.read.arrivals import STEP, ArrivalIndex, Marks
from spark_connectors.read.positions import QueueState
from spark_connectors.read.watch import DeletionWatch
from spark_connectors.redis.bulk_reader import BulkReader
from spark_connectors.redis.names import LAST_FIELD

#: The only columns that a count can fill.
COUNTED_COLUMNS = ("queue",)
_RANGES_AT_ONCE = 250
_BATCH_ROWS = 10_000


def count_whole_queues(
    reader: BulkReader, keys: Keyspace, watches: Sequence[DeletionWatch]
) -> tuple[dict[int, int], list[int]]:
    """Count the messages of ranges. Returns the counts by index, and the indices of ranges that have to be read.

    A range has a count if it is a whole queue of dead letters: these never leave the log, so its length is their
    number. The record is read after the length. If it still has the end of the range, nothing has arrived meanwhile.
    """
    parts = [watch.watched.range for watch in watches]
    candidates = [index for index, part in enumerate(parts) if part.after == FIRST and not part.detached]
    counts: dict[int, int] = {}
    for start in range(0, len(candidates), _RANGES_AT_ONCE):
        chunk = candidates[start : start + _RANGES_AT_ONCE]
        names = [parts[index].queue for index in chunk]
        logs = [("XLEN", keys.key(name, LOG)) for name in names]
        records = [("HMGET", keys.key(name, META), LAST_FIELD) for name in names]
        replies = reader.execute_all([*logs, *records, *(watches[index].command for index in chunk)])
        lengths, lasts, states = (replies[at : at + len(chunk)] for at in range(0, 3 * len(chunk), len(chunk)))
        for index, length, [last], state in zip(chunk, lengths, lasts, states, strict=True):
            if recorded_sequence(last) == parts[index].upto:
                watches[index].check(state, FIRST)
                counts[index] = length
    return counts, [index for index in range(len(watches)) if index not in counts]


def counted_rows(queue: str, count: int) -> Iterator[pa.RecordBatch]:
    """Yield this number of rows with the name of a queue."""
    batch = pa.record_batch([pa.repeat(queue, min(count, _BATCH_ROWS))], schema=arrow_schema(COUNTED_COLUMNS))
    for start in range(0, count, _BATCH_ROWS):
        yield batch.slice(0, count - start)


#: Smaller ranges are read: their ends are as large.
_LEAST_ROWS = 8 * STEP
#: The most messages between a place and a mark that are read.
_MOST = 4 * STEP


@dataclass(frozen=True, slots=True)
class _Log:
    """A log: its length and its first message, and its record at that time."""

    key: str
    length: int
    first: int
    state: QueueState
    marks: Marks


def count_range(reader: BulkReader, keys: Keyspace, index: ArrivalIndex, watch: DeletionWatch) -> int | None:
    """Return the number of messages in a range; `None` if it has to be read. Reports losses as a read does."""
    part = watch.watched.range
    if part.detached or part.rows < _LEAST_ROWS:
        return None
    log = _read_log(reader, keys.key(part.queue, LOG), index, watch)
    return None if log is None else _count(reader, log, sequence_number(part.after), sequence_number(part.upto))


def _read_log(reader: BulkReader, key: str, index: ArrivalIndex, watch: DeletionWatch) -> _Log | None:
    """Read the facts of a log, and the marks at the ends of the range and at the first message."""
    part = watch.watched.range
    first = ("XRANGE", key, "-", "+", "COUNT", 1)
    before, length, entries, after = reader.execute_all([watch.command, ("XLEN", key), first, watch.command])
    state = QueueState.from_fields(after)
    if before != after or state is None or state.created_at != watch.watched.created_at or not entries:
        return None
    watch.check(after, part.after)
    begin = entries[0][0].decode()
    number = sequence_number(begin)
    marks = index.around(reader, part.queue, begin, (part.after, part.upto))
    inside = marks.between(number - 1, sequence_number(state.last_sequence))
    return _Log(key, length, number, state, inside) if len(inside) else None


def _count(reader: BulkReader, log: _Log, after: int, upto: int) -> int | None:
    """Count the messages in `(after, upto]`, if none has left the log behind the first mark."""
    mark, arrived = int(log.marks.sequences[0]), int(log.marks.counts[0])
    head = _messages(reader, log, log.first - 1, mark)
    if head is None or log.length - head != log.state.enqueued - arrived or upto < mark:
        return None
    last = sequence_number(log.state.last_sequence)
    end = log.state.enqueued if upto >= last else _arrivals(reader, log, upto)
    if after >= mark:
        begin = _arrivals(reader, log, after)
    else:
        inside = head if after < log.first else _messages(reader, log, after, mark)
        begin = None if inside is None else arrived - inside
    return None if begin is None or end is None else max(0, end - begin)


def _arrivals(reader: BulkReader, log: _Log, sequence: int) -> int | None:
    """Return the number of arrivals up to a sequence behind the first mark."""
    at = int(log.marks.sequences[log.marks.sequences <= sequence][-1])
    inside = _messages(reader, log, at, sequence)
    return None if inside is None else log.marks.count_upto(sequence) + inside


def _messages(reader: BulkReader, log: _Log, after: int, upto: int) -> int | None:
    """Read the messages in `(after, upto]`, and return their number; `None` for too many."""
    if upto <= after:
        return 0
    total = reader.count_entries(log.key, sequence_text(after), sequence_text(upto), _MOST)
    return None if total > _MOST else total
