"""Counts of whole queues from their counters, for reads of the column `queue` alone: no entry crosses the network."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from rqttl.protocol.keys import LOG, META, Keyspace
from spark_connectors.columns.schema import arrow_schema
from spark_connectors.ranges import FIRST, Range, recorded_sequence
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
    candidates = [index for index, watch in enumerate(watches) if _may_be_whole(watch.watched.range)]
    counts: dict[int, int] = {}
    for start in range(0, len(candidates), _RANGES_AT_ONCE):
        chunk = candidates[start : start + _RANGES_AT_ONCE]
        names = [watches[index].watched.range.queue for index in chunk]
        logs = [("XLEN", keys.key(name, LOG)) for name in names]
        records = [("HMGET", keys.key(name, META), LAST_FIELD) for name in names]
        replies = reader.execute_all([*logs, *records, *(watches[index].command for index in chunk)])
        lengths, lasts, states = (replies[at : at + len(chunk)] for at in range(0, 3 * len(chunk), len(chunk)))
        for index, length, [last], state in zip(chunk, lengths, lasts, states, strict=True):
            if recorded_sequence(last) == watches[index].watched.range.upto:
                watches[index].check(state, FIRST)
                counts[index] = length
    return counts, [index for index in range(len(watches)) if index not in counts]


def counted_rows(queue: str, count: int) -> Iterator[pa.RecordBatch]:
    """Yield this number of rows with the name of a queue."""
    batch = pa.record_batch([pa.repeat(queue, min(count, _BATCH_ROWS))], schema=arrow_schema(COUNTED_COLUMNS))
    for start in range(0, count, _BATCH_ROWS):
        yield batch.slice(0, count - start)


def _may_be_whole(part: Range) -> bool:
    return part.after == FIRST and not part.detached
