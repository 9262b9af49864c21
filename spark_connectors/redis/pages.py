"""Pages of logs as Redis sent them: where in a reply its entries lie is found with numpy, and nothing is taken apart.

A client library makes six objects of each entry, which costs more than all that is done with it afterwards. What is not
as rqttl writes it is `Odd`, and is left to such a library.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from spark_connectors.errors import MalformedEntry
from spark_connectors.redis.digits import ZEROS, Array, leading, words

#: An entry as redis-py gives it: `[sequence, [packed header, body]]`.
Entry: TypeAlias = list[Any]

#: How an entry begins, if it is of two parts of which the first is a sequence; and what is between that and the next.
_MARK, _BETWEEN = b"*2\r\n$20\r\n", b"\r\n*2\r\n$"
#: Bytes of a sequence.
WIDTH = 20
#: Bytes that a buffer has behind what came, so that what is cut off can be looked at like all the rest.
SPARE = 64
#: What is wrong with others.
NO_PLACE = "its id is not the place of a message"
_MARK_TO_TEXT = len(_MARK) + WIDTH + len(_BETWEEN)
_STAR = 42
#: What Arrow's offsets can point at.
_FAR = 2**31 - 1


def malformed(queue: str, place: bytes, why: str) -> MalformedEntry:
    """The error for an entry of a queue that rqttl has not stored."""
    said = place.decode(errors="replace")
    return MalformedEntry(f"queue {queue!r}, sequence {said}: not a message that rqttl stored: {why}")


class Odd(Exception):
    """A reply that is no page of messages: an error, or entries of other programs."""


@dataclass(slots=True, eq=False)
class Page:
    """Entries in rising order: a buffer, and where the parts of each begin and end in it."""

    data: Array
    places: Array
    headers: Array
    header_stops: Array
    bodies: Array
    body_stops: Array

    @classmethod
    def of(cls, queue: str, entries: Sequence[Entry]) -> Page:
        """Entries that were taken apart. Raises `MalformedEntry` for what has not the form of a message."""
        for place, pair in entries:
            if len(pair) != 2:
                raise malformed(queue, place, "it has more than one field")
            if len(place) != WIDTH:
                raise malformed(queue, place, NO_PLACE)
        parts = list(chain.from_iterable((place, *pair) for place, pair in entries))
        stops = np.cumsum(np.fromiter(map(len, parts), np.int64, len(parts)))
        starts = np.append([0], stops)
        data = np.frombuffer(b"".join(parts), np.uint8)
        return cls(data, starts[:-1:3], starts[1::3], stops[1::3], starts[2::3], stops[2::3])

    def columns(self) -> tuple[Array, ...]:
        """Where the parts lie."""
        return self.places, self.headers, self.header_stops, self.bodies, self.body_stops

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, rows: slice) -> Page:
        return Page(self.data, *(column[rows] for column in self.columns()))

    def place(self, row: int) -> bytes:
        """The sequence of an entry."""
        begin = int(self.places[row])
        return self.data[begin : begin + WIDTH].tobytes()

    def sequences(self) -> Array:
        """All sequences end to end."""
        found = take(self.data, self.places, self.places + WIDTH).buffers()[2]
        return np.frombuffer(found, np.uint8, WIDTH * len(self))

    def sizes(self) -> Array:
        """Bytes of the header and the body of each."""
        found: Array = self.header_stops - self.headers + self.body_stops - self.bodies
        return found

    @property
    def size(self) -> int:
        """Bytes of the reply."""
        return int(self.body_stops[-1] - self.places[0]) if len(self) else 0


class Joiner:
    """Puts pages one after the other, in a buffer that it uses again: only copies of what is in it may be kept."""

    def __init__(self) -> None:
        self._buffer = np.empty(0, np.uint8)

    def join(self, pages: Sequence[Page]) -> Page:
        """All their entries, until the next call."""
        if len(pages) == 1:
            return pages[0]
        # those of one round trip have one buffer
        buffers = {id(page.data): page.data for page in pages}
        ends = np.cumsum([len(data) for data in buffers.values()])
        if ends[-1] > len(self._buffer):
            self._buffer = np.empty(ends[-1] + ends[-1] // 4, np.uint8)
        data = np.concatenate(list(buffers.values()), out=self._buffer[: ends[-1]])
        begins = dict(zip(buffers, [0, *ends.tolist()], strict=False))
        shifts = np.repeat([begins[id(page.data)] for page in pages], [len(page) for page in pages])
        columns = zip(*[page.columns() for page in pages], strict=True)
        return Page(data, *(np.concatenate(one) + shifts for one in columns))


def take(data: Array, starts: Array, stops: Array) -> pa.Array:
    """The byte strings at these places of a buffer, which rise and do not overlap."""
    n, far = len(starts), len(data) > _FAR
    offsets = np.empty(2 * n + 1, np.int64 if far else np.int32)
    offsets[0 : 2 * n : 2], offsets[1 : 2 * n : 2], offsets[2 * n] = starts, stops, len(data)
    kind = pa.large_binary() if far else pa.binary()
    found = pa.Array.from_buffers(kind, 2 * n, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    return found.take(pa.array(np.arange(0, 2 * n, 2))).cast(pa.binary())


def pages(buffer: Array, start: int, filled: int, count: int) -> tuple[list[Page], int]:
    """The next replies, `count` of them or those that are there to their end, and where the one after them begins.

    What came ends at `filled`, with `SPARE` bytes or more of the buffer behind it. Raises `Odd` for what is no page of
    messages.
    """
    data, found = buffer[start:filled], _found(buffer[start:], filled - start)
    at, first, rows = 0, 0, list[int]()
    while len(rows) < count and (head := _head(data, at)):
        begin, more = head
        if found is None or (more and not found.runs(begin, first, more)):
            return _walked(data, count, start)
        if first + more > len(found.begins):
            break
        rows.append(more)
        first += more
        at = int(found.ends[first - 1]) if more else begin
    return _cut(found.page, at, rows) if found else [], start + at


def _cut(page: Page, end: int, rows: Sequence[int]) -> list[Page]:
    """Pages of so many rows each, of which the last ends here."""
    whole = Page(page.data[:end], *page.columns())
    ends = np.cumsum([0, *rows]).tolist()
    return [whole[first:last] for first, last in pairwise(ends)]


def _found(buffer: Array, filled: int) -> _Found | None:
    data, seen = buffer[:filled], words(buffer)
    stars = np.flatnonzero(data == _STAR)
    stars = stars[: np.searchsorted(stars, filled - len(_MARK))]
    begins = stars[(seen[stars] == _word(_MARK[:8])) & (data[stars + 8] == _MARK[8])]
    for whole in (begins, begins[:-1]):
        try:
            return _Found(data, seen, whole, begins)
        except IndexError:
            # the last is cut off, or some of them lie in a body
            continue
        except OverflowError:
            return None
    return None


class _Found:
    """What looks like entries, wherever in a buffer: those that are `whole`, and perhaps one that is cut off.

    An entry is one for certain if it begins where one must, and the next begins where it ends, and so on: all that
    comes from Redis is well formed, so only what lies in a body can look like an entry without being one.
    """

    def __init__(self, data: Array, seen: Array, whole: Array, begins: Array) -> None:
        places = whole + len(_MARK)
        regular = (seen[places + WIDTH - 1] >> np.uint64(8)) == _word(_BETWEEN)
        headers, header_stops = _text(data, seen, whole + _MARK_TO_TEXT)
        bodies, body_stops = _text(data, seen, header_stops + 3)
        self.begins, self.ends = whole, body_stops + 2
        self.page = Page(data, places, headers, header_stops, bodies, body_stops)
        follows = np.append(begins, len(data))[1 : len(whole) + 1]
        self._irregular = np.append([0], np.cumsum(~regular))
        self._gaps = np.append([0], np.cumsum(self.ends != follows))
        self._cut = int(begins[-1]) if len(whole) < len(begins) else len(data)
        between = data[self._cut + len(_MARK) + WIDTH : self._cut + _MARK_TO_TEXT].tobytes()
        self._cut_regular = _BETWEEN.startswith(between)

    def runs(self, at: int, first: int, rows: int) -> bool:
        """Whether so many from the `first` on, or all that there are, are entries for certain if one begins here."""
        stop = min(first + rows, len(self.begins))
        whole = first + rows <= len(self.begins)
        if (self.begins[first] if first < stop else self._cut) != at or not (whole or self._cut_regular):
            return False
        linked = stop - 1 if whole else stop
        return bool(self._irregular[stop] == self._irregular[first] and self._gaps[linked] == self._gaps[first])


def _text(data: Array, seen: Array, at: Array) -> tuple[Array, Array]:
    """Where texts begin and stop of which the lengths stand here.

    Raises `IndexError` beyond the buffer, and `OverflowError` for lengths of eight digits or more.
    """
    digits = seen[at] ^ ZEROS
    line = data[at[0] : at[0] + 8].tobytes() if len(at) else b""
    width = line.find(b"\r")
    # what only looks like an entry may have anything here
    if line[: max(0, width)].isdigit() and not ((digits ^ digits[0]) << np.uint64(56 - 8 * width)).any():
        # all are as long as each other
        starts = at + (width + 2)
        stops = starts + int(line[:width])
    else:
        value, widths = leading(digits)
        if (widths == 8).any():
            raise OverflowError("a text is longer than is looked for here, which says nothing of whether it is whole")
        starts = at + (widths + 2)
        stops = starts + value
    if len(at) and int(stops.max()) + 2 > len(data):
        raise IndexError("a text ends beyond the buffer")
    return starts, stops


def _head(data: Array, at: int) -> tuple[int, int] | None:
    """Where the parts of a list begin, and how many it has; `None` if that is not there."""
    line = data[at : at + 16].tobytes()
    stop = line.find(b"\r\n")
    if line[:1] not in (b"*", b"") or (stop >= 0 and not line[1:stop].isdigit()):
        raise Odd(line.decode("latin-1"))
    return (at + stop + 2, int(line[1:stop])) if stop >= 0 else None


def _walked(data: Array, count: int, start: int) -> tuple[list[Page], int]:
    """What `pages` gives, found entry by entry."""
    raw, at = data.tobytes(), 0
    rows, spans = list[int](), list[tuple[int, ...]]()
    while len(rows) < count and (head := _head(data, at)):
        found, end = _entries(raw, *head)
        if len(found) < head[1]:
            break
        rows.append(len(found))
        spans += found
        at = end
    columns = np.array(spans, np.int64).reshape(-1, 5).T
    return _cut(Page(data, *columns), at, rows), start + at


def _entries(raw: bytes, at: int, rows: int) -> tuple[list[tuple[int, ...]], int]:
    """Where the parts of so many entries lie, or of those that are there to their end, and where these end."""
    spans: list[tuple[int, ...]] = []
    for _ in range(rows):
        places, start = at + len(_MARK), at + _MARK_TO_TEXT
        if not (_MARK.startswith(raw[at:places]) and _BETWEEN.startswith(raw[places + WIDTH : start])):
            raise Odd(raw[at:places].decode("latin-1"))
        header = _bulk(raw, start)
        body = header and _bulk(raw, header[1] + 3)
        if not header or not body:
            break
        spans.append((places, *header, *body))
        at = body[1] + 2
    return spans, at


def _bulk(raw: bytes, at: int) -> tuple[int, int] | None:
    """Where a text begins and stops of which the length stands here; `None` if it is not there to its end."""
    stop = raw.find(b"\r\n", at, at + 16)
    if stop < 0:
        return None
    end = stop + 2 + int(raw[at:stop])
    return (stop + 2, end) if end + 2 <= len(raw) else None


def texts(raw: bytes, count: int) -> list[list[bytes | None]] | None:
    """So many replies that are lists of texts or of nothing; `None` if they are not all there to their end.

    Raises `Odd` for others.
    """
    at, found = 0, list[list[bytes | None]]()
    for _ in range(count):
        head = _head(np.frombuffer(raw[at : at + 16], np.uint8), 0)
        if head is None:
            return None
        at, some = at + head[0], list[bytes | None]()
        for _ in range(head[1]):
            if raw.startswith(b"$-1\r\n", at):
                some.append(None)
                at += 5
                continue
            span = _bulk(raw, at + 1)
            if span is None:
                return None
            some.append(raw[span[0] : span[1]])
            at = span[1] + 2
        found.append(some)
    return found


def _word(text: bytes) -> Any:
    return np.uint64(int.from_bytes(text, "little"))
