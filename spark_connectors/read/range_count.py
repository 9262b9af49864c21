"""Counts of parts of dead-letter queues by the index of arrivals: of a stretch of time only its ends are read.

The numbers of arrivals count letters exactly if no letter has left the middle of the queue. The length of the log shows
this: behind the first mark it has as many letters as have arrived there. Otherwise the range has to be read.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass

from rqttl.protocol.keys import LOG, Keyspace
from spark_connectors.ranges import sequence_number, sequence_text
from spark_connectors.read.arrivals import STEP, ArrivalIndex, Marks
from spark_connectors.read.positions import QueueState
from spark_connectors.read.watch import DeletionWatch
from spark_connectors.redis.bulk_reader import BulkReader

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
    total = 0
    if upto <= after:
        return 0
    with closing(reader.pages(log.key, sequence_text(after), sequence_text(upto))) as pages:
        for page in pages:
            total += len(page)
            if total > _MOST:
                return None
    return total
