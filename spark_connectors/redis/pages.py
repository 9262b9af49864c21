"""Pages of logs in the bytes of Redis: numpy locates the entries of a reply, and no entry becomes an object.

A client library makes six objects of each entry, which cost more than all later work on it. Entries that rqttl cannot
have written raise `UnexpectedReply`; redis-py parses such a reply.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from spark_connectors.errors import MalformedEntry
from spark_connectors.redis.digits import ASCII_ZEROS, Array, as_uint64_windows, leading_number

#: An entry as redis-py gives it: `[sequence, [packed header, body]]`.
Entry: TypeAlias = list[Any]

#: The bytes before the sequence of an entry of two parts, and the bytes between the sequence and the header.
_ENTRY_START, _AFTER_SEQUENCE = b"*2\r\n$20\r\n", b"\r\n*2\r\n$"
#: Bytes of a sequence.
SEQUENCE_BYTES = 20
#: Spare bytes of a buffer after the received ones, so that the same code can look at an incomplete entry.
SPARE_BYTES = 64
#: The reason to refuse an entry with another id.
NOT_A_SEQUENCE = "its id is not a sequence of rqttl"
_START_TO_HEADER = len(_ENTRY_START) + SEQUENCE_BYTES + len(_AFTER_SEQUENCE)
_STAR = 42
#: The largest offset of an Arrow array with small offsets.
_MAX_SMALL_OFFSET = 2**31 - 1


def malformed_entry(queue: str, sequence: bytes, reason: str) -> MalformedEntry:
    """Make the error for an entry of a queue that rqttl has not stored."""
    text = sequence.decode(errors="replace")
    return MalformedEntry(f"queue {queue!r}, sequence {text}: not a message that rqttl stored: {reason}")


class UnexpectedReply(Exception):
    """A reply is no page of messages: it is an error, or holds entries of other programs."""


@dataclass(slots=True, eq=False)
class Page:
    """Entries in rising order: a buffer, and the positions in it at which the parts of each entry start and stop."""

    data: Array
    sequence_starts: Array
    header_starts: Array
    header_stops: Array
    body_starts: Array
    body_stops: Array

    @classmethod
    def from_entries(cls, queue: str, entries: Sequence[Entry]) -> Page:
        """Make a page of parsed entries. Raises `MalformedEntry` for an entry without the form of a message."""
        for sequence, pair in entries:
            if len(pair) != 2:
                raise malformed_entry(queue, sequence, "it has more than one field")
            if len(sequence) != SEQUENCE_BYTES:
                raise malformed_entry(queue, sequence, NOT_A_SEQUENCE)
        parts = list(chain.from_iterable((sequence, *pair) for sequence, pair in entries))
        stops = np.cumsum(np.fromiter(map(len, parts), np.int64, len(parts)))
        starts = np.append([0], stops)
        data = np.frombuffer(b"".join(parts), np.uint8)
        return cls(data, starts[:-1:3], starts[1::3], stops[1::3], starts[2::3], stops[2::3])

    def positions(self) -> tuple[Array, ...]:
        """Return the positions of the parts, in the order of the constructor."""
        return self.sequence_starts, self.header_starts, self.header_stops, self.body_starts, self.body_stops

    def __len__(self) -> int:
        return len(self.sequence_starts)

    def __getitem__(self, rows: slice) -> Page:
        return Page(self.data, *(column[rows] for column in self.positions()))

    def sequence(self, row: int) -> bytes:
        """Return the sequence of an entry."""
        start = int(self.sequence_starts[row])
        return self.data[start : start + SEQUENCE_BYTES].tobytes()

    def sequences(self) -> Array:
        """Return the bytes of all sequences, end to end."""
        joined = take_bytes(self.data, self.sequence_starts, self.sequence_starts + SEQUENCE_BYTES).buffers()[2]
        return np.frombuffer(joined, np.uint8, SEQUENCE_BYTES * len(self))

    def message_sizes(self) -> Array:
        """Return the bytes of header and body of each entry."""
        sizes: Array = self.header_stops - self.header_starts + self.body_stops - self.body_starts
        return sizes

    @property
    def reply_size(self) -> int:
        """The bytes of these entries in the reply."""
        return int(self.body_stops[-1] - self.sequence_starts[0]) if len(self) else 0


class PageBuffer:
    """Joins pages in a buffer that it uses again. A joined page is valid until the next call: copy what you keep."""

    def __init__(self) -> None:
        self._buffer = np.empty(0, np.uint8)

    def join(self, pages: Sequence[Page]) -> Page:
        """Return one page with the entries of all pages."""
        if len(pages) == 1:
            return pages[0]
        # pages of one round trip share their buffer
        buffers = {id(page.data): page.data for page in pages}
        ends = np.cumsum([len(data) for data in buffers.values()])
        if ends[-1] > len(self._buffer):
            self._buffer = np.empty(ends[-1] + ends[-1] // 4, np.uint8)
        data = np.concatenate(list(buffers.values()), out=self._buffer[: ends[-1]])
        starts = dict(zip(buffers, [0, *ends.tolist()], strict=False))
        shifts = np.repeat([starts[id(page.data)] for page in pages], [len(page) for page in pages])
        columns = zip(*[page.positions() for page in pages], strict=True)
        return Page(data, *(np.concatenate(column) + shifts for column in columns))


def take_bytes(data: Array, starts: Array, stops: Array) -> pa.Array:
    """Make an Arrow array of byte strings of a buffer. Their positions rise and do not overlap."""
    n, large = len(starts), len(data) > _MAX_SMALL_OFFSET
    offsets = np.empty(2 * n + 1, np.int64 if large else np.int32)
    offsets[0 : 2 * n : 2], offsets[1 : 2 * n : 2], offsets[2 * n] = starts, stops, len(data)
    kind = pa.large_binary() if large else pa.binary()
    with_gaps = pa.Array.from_buffers(kind, 2 * n, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    return with_gaps.take(pa.array(np.arange(0, 2 * n, 2))).cast(pa.binary())


def parse_pages(buffer: Array, start: int, filled: int, count: int) -> tuple[list[Page], int]:
    """Parse up to `count` complete replies from `start` on. Return their pages, and the start of the next reply.

    The received bytes end at `filled`, and `SPARE_BYTES` bytes or more of the buffer follow. Raises `UnexpectedReply`
    for a reply that is no page of messages.
    """
    data, entries = buffer[start:filled], _index_entries(buffer[start:], filled - start)
    at, first, sizes = 0, 0, list[int]()
    while len(sizes) < count and (head := _list_head(data, at)):
        begin, rows = head
        if entries is None or (rows and not entries.certain(begin, first, rows)):
            return _parse_slowly(data, count, start)
        if first + rows > len(entries.starts):
            break
        sizes.append(rows)
        first += rows
        at = int(entries.ends[first - 1]) if rows else begin
    return _cut(entries.page, at, sizes) if entries else [], start + at


def _cut(page: Page, end: int, sizes: Sequence[int]) -> list[Page]:
    """Cut a page into pages of these sizes. The last one ends at `end` of the buffer."""
    whole = Page(page.data[:end], *page.positions())
    ends = np.cumsum([0, *sizes]).tolist()
    return [whole[first:last] for first, last in pairwise(ends)]


def _index_entries(buffer: Array, filled: int) -> _EntryIndex | None:
    data, windows = buffer[:filled], as_uint64_windows(buffer)
    stars = np.flatnonzero(data == _STAR)
    stars = stars[: np.searchsorted(stars, filled - len(_ENTRY_START))]
    starts = stars[(windows[stars] == _as_uint64(_ENTRY_START[:8])) & (data[stars + 8] == _ENTRY_START[8])]
    for complete in (starts, starts[:-1]):
        try:
            return _EntryIndex(data, windows, complete, starts)
        except IndexError:
            # the last one is incomplete, or some of them lie in a body
            continue
        except OverflowError:
            return None
    return None


class _EntryIndex:
    """Candidates for entries, anywhere in a buffer: the `complete` ones, and perhaps an incomplete one at the end.

    A candidate is an entry for certain if it starts at the place of an entry; the next one starts at its end, and so
    on. Replies of Redis are well-formed, so only bytes in a body can look like an entry without being one.
    """

    def __init__(self, data: Array, windows: Array, complete: Array, starts: Array) -> None:
        sequence_starts = complete + len(_ENTRY_START)
        regular = (windows[sequence_starts + SEQUENCE_BYTES - 1] >> np.uint64(8)) == _as_uint64(_AFTER_SEQUENCE)
        header_starts, header_stops = _text_bounds(data, windows, complete + _START_TO_HEADER)
        body_starts, body_stops = _text_bounds(data, windows, header_stops + 3)
        self.starts, self.ends = complete, body_stops + 2
        self.page = Page(data, sequence_starts, header_starts, header_stops, body_starts, body_stops)
        next_starts = np.append(starts, len(data))[1 : len(complete) + 1]
        self._irregular = np.append([0], np.cumsum(~regular))
        self._gaps = np.append([0], np.cumsum(self.ends != next_starts))
        self._incomplete = int(starts[-1]) if len(complete) < len(starts) else len(data)
        after_sequence = self._incomplete + len(_ENTRY_START) + SEQUENCE_BYTES
        tail = data[after_sequence : self._incomplete + _START_TO_HEADER].tobytes()
        self._incomplete_regular = _AFTER_SEQUENCE.startswith(tail)

    def certain(self, at: int, first: int, rows: int) -> bool:
        """True if up to `rows` candidates from `first` on are entries for certain. An entry must start at `at`."""
        stop = min(first + rows, len(self.starts))
        complete = first + rows <= len(self.starts)
        if (self.starts[first] if first < stop else self._incomplete) != at:
            return False
        if not (complete or self._incomplete_regular):
            return False
        linked = stop - 1 if complete else stop
        return bool(self._irregular[stop] == self._irregular[first] and self._gaps[linked] == self._gaps[first])


def _text_bounds(data: Array, windows: Array, at: Array) -> tuple[Array, Array]:
    """Return starts and stops of the texts whose lengths stand at these positions.

    Raises `IndexError` beyond the buffer, and `OverflowError` for lengths of eight digits or more.
    """
    digits = windows[at] ^ ASCII_ZEROS
    line = data[at[0] : at[0] + 8].tobytes() if len(at) else b""
    width = line.find(b"\r")
    # a false candidate may have any bytes here
    if line[: max(0, width)].isdigit() and not ((digits ^ digits[0]) << np.uint64(56 - 8 * width)).any():
        # all texts have the same length
        starts = at + (width + 2)
        stops = starts + int(line[:width])
    else:
        value, widths = leading_number(digits)
        if (widths == 8).any():
            raise OverflowError("the length of a text has eight digits or more")
        starts = at + (widths + 2)
        stops = starts + value
    if len(at) and int(stops.max()) + 2 > len(data):
        raise IndexError("a text ends beyond the buffer")
    return starts, stops


def _list_head(data: Array, at: int) -> tuple[int, int] | None:
    """Return the start and the number of the items of a list; `None` if its first line is incomplete."""
    line = data[at : at + 16].tobytes()
    stop = line.find(b"\r\n")
    if line[:1] not in (b"*", b"") or (stop >= 0 and not line[1:stop].isdigit()):
        raise UnexpectedReply(line.decode("latin-1"))
    return (at + stop + 2, int(line[1:stop])) if stop >= 0 else None


def _parse_slowly(data: Array, count: int, start: int) -> tuple[list[Page], int]:
    """Do the same as `parse_pages`, entry by entry."""
    raw, at = data.tobytes(), 0
    sizes, positions = list[int](), list[tuple[int, ...]]()
    while len(sizes) < count and (head := _list_head(data, at)):
        entries, end = _entry_positions(raw, *head)
        if len(entries) < head[1]:
            break
        sizes.append(len(entries))
        positions += entries
        at = end
    columns = np.array(positions, np.int64).reshape(-1, 5).T
    return _cut(Page(data, *columns), at, sizes), start + at


def _entry_positions(raw: bytes, at: int, rows: int) -> tuple[list[tuple[int, ...]], int]:
    """Return the positions of the parts of up to `rows` complete entries, and the end of the last of them."""
    positions: list[tuple[int, ...]] = []
    for _ in range(rows):
        sequence, header_length = at + len(_ENTRY_START), at + _START_TO_HEADER
        after_sequence = raw[sequence + SEQUENCE_BYTES : header_length]
        if not (_ENTRY_START.startswith(raw[at:sequence]) and _AFTER_SEQUENCE.startswith(after_sequence)):
            raise UnexpectedReply(raw[at:sequence].decode("latin-1"))
        header = _bulk_string(raw, header_length)
        body = header and _bulk_string(raw, header[1] + 3)
        if not header or not body:
            break
        positions.append((sequence, *header, *body))
        at = body[1] + 2
    return positions, at


def _bulk_string(raw: bytes, at: int) -> tuple[int, int] | None:
    """Return start and stop of the text whose length stands at `at`; `None` for an incomplete one."""
    stop = raw.find(b"\r\n", at, at + 16)
    if stop < 0:
        return None
    end = stop + 2 + int(raw[at:stop])
    return (stop + 2, end) if end + 2 <= len(raw) else None


def parse_text_lists(raw: bytes, count: int) -> list[list[bytes | None]] | None:
    """Parse `count` replies that are lists of texts and nulls; `None` if one of them is incomplete.

    Raises `UnexpectedReply` for other replies.
    """
    at, replies = 0, list[list[bytes | None]]()
    for _ in range(count):
        head = _list_head(np.frombuffer(raw[at : at + 16], np.uint8), 0)
        if head is None:
            return None
        at, texts = at + head[0], list[bytes | None]()
        for _ in range(head[1]):
            if raw.startswith(b"$-1\r\n", at):
                texts.append(None)
                at += 5
                continue
            bounds = _bulk_string(raw, at + 1)
            if bounds is None:
                return None
            texts.append(raw[bounds[0] : bounds[1]])
            at = bounds[1] + 2
        replies.append(texts)
    return replies


def _as_uint64(text: bytes) -> Any:
    return np.uint64(int.from_bytes(text, "little"))
