"""Reads of ranges: pages of their logs, then their detached messages, as record batches of the requested columns.

A message may move from the log to the detached messages during the read, never back. So the detached messages are read
last, and those that the log has shown are left out: each message that stays in its queue is read exactly once.

On a cluster dead letters also leave for a queue in another slot, and come back as detached messages if it is full. A
reader of a range does not look at it again. So it reads those that are on their way, too.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence

import pyarrow as pa

from rqttl.protocol.keys import DETACHED, LOG, OUTGOING, Keyspace
from spark_connectors.columns.entries import BatchBuilder, QueuePage
from spark_connectors.ranges import Range
from spark_connectors.read.watch import execute_many
from spark_connectors.redis.bulk_reader import BulkReader, PageWatch
from spark_connectors.redis.pages import SEQUENCE_BYTES, Entry, Page, malformed_entry
from spark_connectors.redis.relaxed_gc import relaxed_gc

#: Rows that are built at once, and their approximate bytes at most: smaller batches would cost more time for each row.
#: Spark gets slices of them, because rows in the cache of the processor cost it a little less.
_BUILT_ROWS, _SLICE_ROWS = 8000, 4000
_BUILT_BYTES = 4 * 2**20
_QUEUES_AT_ONCE = 500


def read(
    reader: BulkReader,
    keys: Keyspace,
    ranges: Sequence[Range],
    names: tuple[str, ...],
    watches: Sequence[PageWatch] = (),
) -> Iterator[pa.RecordBatch]:
    """Read all messages of these ranges, as batches of these columns. The log of each range is read in order.

    There are as many `watches` as ranges, or none. Raises `MalformedEntry`, and the errors of reader and watches.
    """
    builder, buffer = BatchBuilder(names), _PageQueue()
    with relaxed_gc():
        for index, page in _pages(reader, keys, ranges, watches):
            if buffer.add(ranges[index].queue, page):
                yield from _slices(builder.build(buffer.take()))
        if buffer.rows:
            yield from _slices(builder.build(buffer.take()))


def _pages(
    reader: BulkReader, keys: Keyspace, ranges: Sequence[Range], watches: Sequence[PageWatch]
) -> Iterator[tuple[int, Page]]:
    """Yield the pages of all messages of the ranges, with the index of the range."""
    seen = {index: _SeenSequences() for index, whole in enumerate(ranges) if whole.detached}
    for index, page in _log_pages(reader, keys, ranges, watches):
        if index in seen:
            seen[index].add(page)
        yield index, page
    before = _redrives(reader, keys, ranges, seen)
    while seen:
        yield from _redriven_pages(reader, keys, ranges, seen, before)
        yield from _detached_pages(reader, keys, ranges, seen)
        now = _redrives(reader, keys, ranges, seen)
        # what has left a queue meanwhile may have been in neither place when that was read
        seen = {index: sequences for index, sequences in seen.items() if now.get(index) != before.get(index)}
        before = now


def _slices(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    for start in range(0, batch.num_rows, _SLICE_ROWS):
        yield batch.slice(start, _SLICE_ROWS)


class _PageQueue:
    """Pages that wait for the next batch."""

    def __init__(self) -> None:
        self._pages: list[QueuePage] = []
        self.rows, self._bytes = 0, 0

    def add(self, queue: str, page: Page) -> bool:
        """Add a page. Returns true if the pages are enough for a batch."""
        self._pages.append((queue, page))
        self.rows += len(page)
        self._bytes += page.reply_size
        return self.rows >= _BUILT_ROWS or self._bytes >= _BUILT_BYTES

    def take(self) -> list[QueuePage]:
        """Remove and return all pages."""
        pages = self._pages
        self._pages, self.rows, self._bytes = [], 0, 0
        return pages


class _SeenSequences:
    """The sequences of pages of a log, in rising order, 20 bytes each; and others."""

    def __init__(self) -> None:
        self._firsts: list[bytes] = []
        self._pages: list[bytes] = []
        self._others: set[bytes] = set()

    def add(self, page: Page) -> None:
        self._firsts.append(page.sequence(0))
        self._pages.append(page.sequences().tobytes())

    def is_new(self, sequence: bytes) -> bool:
        """Return True if nobody has seen the sequence. Now it is seen."""
        is_new = sequence not in self._others and not self._is_in_log(sequence)
        self._others.add(sequence)
        return is_new

    def _is_in_log(self, sequence: bytes) -> bool:
        index = bisect_right(self._firsts, sequence) - 1
        if index < 0:
            return False
        page = self._pages[index]
        at = page.find(sequence)
        while at >= 0 and at % SEQUENCE_BYTES:
            at = page.find(sequence, at + 1)
        return at >= 0


def _log_pages(
    reader: BulkReader, keys: Keyspace, ranges: Sequence[Range], watches: Sequence[PageWatch]
) -> Iterator[tuple[int, Page]]:
    """Yield pages of the logs, with the index of the range: first groups of small ranges, then each large one."""
    small = [index for index, whole in enumerate(ranges) if whole.rows <= reader.max_entries]
    log_ranges = [(keys.key(ranges[i].queue, LOG), ranges[i].after, ranges[i].upto, ranges[i].rows) for i in small]
    for group in reader.page_groups(log_ranges, [watches[i] for i in small] if watches else ()):
        for at, page in group:
            yield small[at], page
    for index, whole in enumerate(ranges):
        if whole.rows > reader.max_entries:
            watch = watches[index] if watches else None
            for page in reader.pages(keys.key(whole.queue, LOG), whole.after, whole.upto, watch):
                yield index, page


def _redrives(
    reader: BulkReader, keys: Keyspace, ranges: Sequence[Range], indices: Iterable[int]
) -> dict[int, dict[str, bytes]]:
    """Return the redrives to other slots: for each range, a line that changes with each page that leaves, by part."""
    if not reader.is_cluster:
        return {}
    places = [(index, keys.key(ranges[index].queue, OUTGOING)) for index in indices]
    sizes, found = execute_many(reader, [("HLEN", key) for _, key in places]), {}
    for index, key in (place for place, size in zip(places, sizes, strict=True) if size):
        lines = (pair for page in reader.hash_pages(key) for pair in page)
        found[index] = {name.decode(): line for name, line in lines if name.startswith(b"redrive>")}
    return found


def _redriven_pages(
    reader: BulkReader,
    keys: Keyspace,
    ranges: Sequence[Range],
    seen: Mapping[int, _SeenSequences],
    redrives: Mapping[int, Mapping[str, bytes]],
) -> Iterator[tuple[int, Page]]:
    """Yield the dead letters of the ranges that are on their way to other slots. There are few of them at a time."""
    for index in seen:
        whole = ranges[index]
        for part in redrives.get(index, ()):
            letters = reader.execute("XRANGE", keys.key(whole.queue, part), f"({whole.after}", whole.upto)
            if new := [letter for letter in letters if seen[index].is_new(letter[0])]:
                yield index, Page.from_entries(whole.queue, new)


def _detached_pages(
    reader: BulkReader, keys: Keyspace, ranges: Sequence[Range], seen: dict[int, _SeenSequences]
) -> Iterator[tuple[int, Page]]:
    """Yield the detached messages of the ranges that were not seen."""
    indices = list(seen)
    for start in range(0, len(indices), _QUEUES_AT_ONCE):
        chunk = indices[start : start + _QUEUES_AT_ONCE]
        sizes = reader.execute_all([("HLEN", keys.key(ranges[i].queue, DETACHED)) for i in chunk])
        for index in (i for i, size in zip(chunk, sizes, strict=True) if size):
            whole = ranges[index]
            for fields in reader.hash_pages(keys.key(whole.queue, DETACHED)):
                new = [
                    (sequence, packed)
                    for sequence, packed in fields
                    if whole.contains(sequence.decode()) and seen[index].is_new(sequence)
                ]
                if new:
                    yield index, Page.from_entries(whole.queue, [_entry(whole.queue, *field) for field in new])


def _entry(queue: str, sequence: bytes, packed: bytes) -> Entry:
    """Convert a detached message, `<length of header>:<header><body>`, to an entry of the log."""
    digits, colon, message = packed.partition(b":")
    if not (colon and digits.isdigit() and int(digits) <= len(message)):
        raise malformed_entry(queue, sequence, "its parts are cut off")
    return [sequence, [message[: int(digits)], message[int(digits) :]]]
