"""Reading ranges of queues: pages of their logs, then what lies in `loose`, as record batches of the chosen columns.

A message may be moved from the log to `loose` while it is read, never back. So `loose` is looked into once the log has
been read, and what was seen in the log is left out there: each message that stays in its queue is read exactly once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

import pyarrow as pa

from rqttl.keys import Keyspace
from spark_connectors.columns.entries import Columns, Run
from spark_connectors.ranges import Range
from spark_connectors.redis.bulk_reader import Watch, Wire, keep_gc_quiet
from spark_connectors.redis.pages import WIDTH, Entry, Page, malformed

#: Rows that become columns at once, and about how many bytes of entries at most: below that the work for each time
#: would show. Spark gets fewer at once: what is in the cache of its processor costs it a little less.
_ROWS, _GIVEN = 8000, 4000
_BYTES = 4 * 2**20


def read(
    wire: Wire, keys: Keyspace, ranges: Sequence[Range], names: tuple[str, ...], watches: Sequence[Watch] = ()
) -> Iterator[pa.RecordBatch]:
    """All messages of these ranges, as batches of these columns; those of a range are in order as far as the log goes.

    There are as many `watches` as ranges, or none. Raises `MalformedEntry`, and what `wire` and the watches raise.
    """
    columns, gathered = Columns(names), _Gathered()
    seen = {index: _Seen() for index, found in enumerate(ranges) if found.loose}
    restore = keep_gc_quiet()
    try:
        for index, page in _pages(wire, keys, ranges, watches):
            if index in seen:
                seen[index].add(page)
            if gathered.add(ranges[index].queue, page):
                yield from _parts(columns.batch(gathered.take()))
        for index, page in _loose(wire, keys, ranges, seen):
            if gathered.add(ranges[index].queue, page):
                yield from _parts(columns.batch(gathered.take()))
        if gathered.rows:
            yield from _parts(columns.batch(gathered.take()))
    finally:
        # workers are used again
        restore()


def _parts(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    for start in range(0, batch.num_rows, _GIVEN):
        yield batch.slice(start, _GIVEN)


class _Gathered:
    """Pages that are not yet in a batch."""

    def __init__(self) -> None:
        self._runs: list[Run] = []
        self.rows, self._bytes = 0, 0

    def add(self, queue: str, page: Page) -> bool:
        """Add a page. Returns whether there is enough for a batch."""
        self._runs.append((queue, page))
        self.rows += len(page)
        self._bytes += page.size
        return self.rows >= _ROWS or self._bytes >= _BYTES

    def take(self) -> list[Run]:
        """All of them, which are gone then."""
        runs = self._runs
        self._runs, self.rows, self._bytes = [], 0, 0
        return runs


class _Seen:
    """Sequences in rising order, 20 bytes each."""

    def __init__(self) -> None:
        self._firsts: list[bytes] = []
        self._pages: list[bytes] = []

    def add(self, page: Page) -> None:
        self._firsts.append(page.place(0))
        self._pages.append(page.sequences().tobytes())

    def __contains__(self, sequence: bytes) -> bool:
        index = bisect_right(self._firsts, sequence) - 1
        if index < 0:
            return False
        page = self._pages[index]
        at = page.find(sequence)
        while at >= 0 and at % WIDTH:
            at = page.find(sequence, at + 1)
        return at >= 0


def _pages(wire: Wire, keys: Keyspace, ranges: Sequence[Range], watches: Sequence[Watch]) -> Iterator[tuple[int, Page]]:
    """Pages of the logs, with the index of the range: small ranges several at a time, large ones one by one."""
    small = [index for index, found in enumerate(ranges) if found.rows <= wire.most]
    wanted = [(keys.key(ranges[i].queue, "log"), ranges[i].after, ranges[i].upto, ranges[i].rows) for i in small]
    for group in wire.groups(wanted, [watches[i] for i in small] if watches else ()):
        for at, page in group:
            yield small[at], page
    for index, found in enumerate(ranges):
        if found.rows > wire.most:
            watch = watches[index] if watches else None
            for page in wire.pages(keys.key(found.queue, "log"), found.after, found.upto, watch):
                yield index, page


def _loose(wire: Wire, keys: Keyspace, ranges: Sequence[Range], seen: dict[int, _Seen]) -> Iterator[tuple[int, Page]]:
    """What of the ranges lies in `loose` and was not seen in the log."""
    indices = list(seen)
    for start in range(0, len(indices), 500):
        some = indices[start : start + 500]
        sizes = wire.ask_all([("HLEN", keys.key(ranges[i].queue, "loose")) for i in some])
        for index in (i for i, size in zip(some, sizes, strict=True) if size):
            found, given = ranges[index], set[bytes]()
            for fields in wire.hash_pages(keys.key(found.queue, "loose")):
                new = [
                    (sequence, joined)
                    for sequence, joined in fields
                    if found.holds(sequence.decode()) and sequence not in given and sequence not in seen[index]
                ]
                given.update(sequence for sequence, _ in new)
                if new:
                    yield index, Page.of(found.queue, [_entry(found.queue, *field) for field in new])


def _entry(queue: str, sequence: bytes, joined: bytes) -> Entry:
    """A field of `loose`, `<length of header>:<header><body>`, as an entry of the log."""
    digits, colon, rest = joined.partition(b":")
    if not (colon and digits.isdigit() and int(digits) <= len(rest)):
        raise malformed(queue, sequence, "its parts are cut off")
    return [sequence, [rest[: int(digits)], rest[int(digits) :]]]
