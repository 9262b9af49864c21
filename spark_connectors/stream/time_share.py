"""Shares of a batch limit by time: a merge of all queues by sequence, until the limit is full. Pure.

The sequences of all queues come from one clock. So a batch takes the oldest messages of all queues, and no later batch
has an older one: the watermark of a query then drops nothing. Equal sequences of two queues come in the order of names.

The merge knows the messages of each queue up to its frontier. A batch is complete up to the lowest frontier, and the
next page is the page of the queues that hold it back. An estimate of density decides their number and the page sizes.
The messages that the merge knows beyond the end of a batch serve the next batch, so it reads no message twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil

import numpy as np

from spark_connectors.redis.digits import Array

#: Steps of the search for a time. The result is exact to a part in 16 million of the whole stretch.
_SEARCH_STEPS = 24
#: The size of a message in bytes, until the merge knows one.
_FIRST_SIZE = 1_024
_NONE = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class ReadAhead:
    """The messages of a queue after `after` that a scan has read: numbers of their sequences, in order, and sizes.

    `frontier` is the number up to which the scan has read the log.
    """

    after: int
    frontier: int
    numbers: Array = field(default_factory=lambda: _NONE)
    sizes: Array = field(default_factory=lambda: _NONE)


@dataclass(frozen=True, slots=True)
class UnreadRange:
    """The range `(after, upto]` of a queue, as numbers of sequences, with at most `rows` messages."""

    after: int
    upto: int
    rows: int
    ahead: ReadAhead

    def known(self) -> tuple[Array, Array]:
        """Return the numbers and the sizes of the messages that are known in the range."""
        inside = (self.ahead.numbers > self.after) & (self.ahead.numbers <= self.upto)
        return self.ahead.numbers[inside], self.ahead.sizes[inside]


@dataclass(frozen=True, slots=True)
class PageRequest:
    """The next `count` messages of the log of a queue, in `(after, upto]`."""

    queue: str
    after: int
    upto: int
    count: int

    def reached(self, numbers: Array) -> int:
        """Return the end of the range that a page with these messages has read: a page that is not full is the last."""
        return int(numbers[-1]) if len(numbers) == self.count else self.upto


class TimeShare:
    """One batch of at most `limit` units, messages or bytes, from queues with unread ranges.

    While `requests` returns some, `add` takes the page of each. Then `end_of` and `rows_of` have the outcome. The first
    message of a batch fits in any case, unless the batch is `begun`: then other messages come before these.
    """

    def __init__(self, limit: int, ranges: Mapping[str, UnreadRange], *, in_bytes: bool, begun: bool = False) -> None:
        self._limit, self._in_bytes, self._begun = limit, in_bytes, begun
        self._names = sorted(ranges)
        self._index = {name: i for i, name in enumerate(self._names)}
        parts = [ranges[name] for name in self._names]
        known = [part.known() for part in parts]
        self._after = _numbers(part.after for part in parts)
        self._upto = _numbers(part.upto for part in parts)
        self._frontier = _numbers(min(part.upto, max(part.after, part.ahead.frontier)) for part in parts)
        lengths = _numbers(len(numbers) for numbers, _ in known)
        #: The estimated number of messages beyond the frontier.
        self._left = np.maximum(1, _numbers(part.rows for part in parts) - lengths)
        #: Queues without a known message. One message of each comes first.
        self._headless = (lengths == 0) & (self._frontier < self._upto)
        #: The least size of the next page. It doubles, because a burst is denser than the estimate.
        self._least = np.ones(len(parts), np.int64)
        #: The known messages that the batch has not taken: number, queue and size, in the order of the merge.
        self._pool = _merged([(numbers, i, sizes) for i, (numbers, sizes) in enumerate(known)])
        self._cost = 0
        self._rows = np.zeros(len(parts), np.int64)
        self._last: tuple[int, int] | None = None
        self._full = False
        self._arrived: list[tuple[Array, int, Array]] = []

    # --------------------------------------------------------------------------------------------- reading

    def requests(self, room: int) -> list[PageRequest]:
        """Return the next pages to read, with at most `room` messages in all; none at the end of the batch."""
        self._join_arrived()
        heads = np.flatnonzero(self._headless)
        waiting = np.flatnonzero(self._frontier < self._upto)
        if len(heads) and len(waiting) > 1:
            return [self._request(int(i), 1) for i in heads[: max(1, room)]]
        self._headless[heads] = False
        self._take_complete(waiting)
        if self._full or not len(waiting):
            return []
        return self._pages(waiting, max(1, room))

    def add(self, request: PageRequest, numbers: Array, sizes: Array) -> None:
        """Add the page of a request. A page that is not full ends the range of its queue."""
        i = self._index[request.queue]
        self._frontier[i] = request.reached(numbers)
        self._left[i] = max(1, self._left[i] - len(numbers))
        self._least[i] = 1 if self._headless[i] else 2 * request.count
        self._headless[i] = False
        self._arrived.append((numbers, i, sizes))

    def _join_arrived(self) -> None:
        if len(self._arrived) == 1 and not len(self._pool[0]):
            numbers, i, sizes = self._arrived.pop()
            self._pool = (numbers, np.full(len(numbers), i), sizes)
        elif self._arrived:
            self._pool, self._arrived = _merged(self._arrived, self._pool), []

    def _request(self, i: int, count: int) -> PageRequest:
        return PageRequest(self._names[i], int(self._frontier[i]), int(self._upto[i]), count)

    def _pages(self, waiting: Array, room: int) -> list[PageRequest]:
        """Request pages of the queues that hold the batch back, the one with the lowest frontier first."""
        need = (self._limit - self._cost) / self._unit() + self._in_bytes
        until = self._time_of(waiting, need)
        order = waiting[np.argsort(self._frontier[waiting], kind="stable")]
        requests: list[PageRequest] = []
        for i in order.tolist():
            if room <= 0 or (requests and self._frontier[i] >= until):
                break
            expected = ceil(self._rate(i) * (until - float(self._frontier[i])))
            count = int(max(1, min(room, need, max(expected, self._least[i]))))
            requests.append(self._request(i, count))
            room -= count
        return requests

    def _rate(self, i: int) -> float:
        return float(self._left[i]) / float(self._upto[i] - self._frontier[i])

    def _unit(self) -> float:
        """Return the cost of a message, in units of the limit."""
        if not self._in_bytes:
            return 1
        sizes = self._pool[2]
        taken = int(self._rows.sum())
        return max(1, (self._cost + int(sizes.sum())) / (taken + len(sizes))) if taken + len(sizes) else _FIRST_SIZE

    def _time_of(self, waiting: Array, need: float) -> float:
        """Estimate the number of the sequence at which `need` messages are read: the known ones, and the expected."""
        known, starts = self._pool[0], self._frontier[waiting].astype(np.float64)
        spans = (self._upto[waiting] - self._frontier[waiting]).astype(np.float64)
        rates = self._left[waiting] / spans
        low, high = float(starts.min()), float(self._upto[waiting].max())
        if len(waiting) == 1 and not len(known):
            return high
        for _ in range(_SEARCH_STEPS):
            middle = (low + high) / 2
            expected = float((rates * np.clip(middle - starts, 0, spans)).sum())
            if expected + int(np.searchsorted(known, int(middle), "right")) < need:
                low = middle
            else:
                high = middle
        return high

    # ---------------------------------------------------------------------------------------------- taking

    def _take_complete(self, waiting: Array) -> None:
        """Take the messages up to the lowest frontier that still fit."""
        numbers, queues, sizes = self._pool
        complete = len(numbers)
        if len(waiting):
            complete = int(np.searchsorted(numbers, self._frontier[waiting].min(), "right"))
        costs = sizes[:complete] if self._in_bytes else np.ones(complete, np.int64)
        totals = self._cost + np.cumsum(costs)
        rows = int(np.searchsorted(totals, self._limit, "right"))
        if self._last is None and complete and not self._begun:
            rows = max(rows, 1)
        if rows:
            self._cost, self._last = int(totals[rows - 1]), (int(numbers[rows - 1]), int(queues[rows - 1]))
            self._rows += np.bincount(queues[:rows], minlength=len(self._rows))
            self._pool = (numbers[rows:], queues[rows:], sizes[rows:])
        self._full = rows < complete or self._cost >= self._limit

    # --------------------------------------------------------------------------------------------- outcome

    def rows_of(self, queue: str) -> int:
        """Return the number of messages of a queue in the batch."""
        return int(self._rows[self._index[queue]])

    def end_of(self, queue: str) -> int:
        """Return the number of the sequence at which the range of a queue ends: the time that the batch has reached."""
        i = self._index[queue]
        upto = int(self._upto[i])
        if not (len(self._pool[0]) or (self._frontier < self._upto).any()):
            return upto
        if self._last is None:
            return int(self._after[i]) if self._full else upto
        number, last_queue = self._last
        return max(int(self._after[i]), min(upto, number if i <= last_queue else number - 1))

    def read_ahead(self) -> dict[str, ReadAhead]:
        """Return the messages of each queue that the batch has not taken."""
        numbers, queues, sizes = self._pool
        order = np.argsort(queues, kind="stable")
        ends = np.searchsorted(queues[order], np.arange(len(self._names) + 1))
        return {
            name: ReadAhead(self.end_of(name), int(self._frontier[i]), numbers[part], sizes[part])
            for i, name in enumerate(self._names)
            for part in [order[ends[i] : ends[i + 1]]]
        }


def _numbers(values: object) -> Array:
    return np.fromiter(values, np.int64)  # type: ignore[call-overload,no-any-return]  # any iterable of integers


def _merged(parts: Sequence[tuple[Array, int, Array]], pool: tuple[Array, ...] = ()) -> tuple[Array, Array, Array]:
    """Merge messages of queues into the pool, each of them once."""
    numbers = np.concatenate([*pool[:1], *(numbers for numbers, _, _ in parts), _NONE])
    queues = np.concatenate([*pool[1:2], *(np.full(len(numbers), i) for numbers, i, _ in parts), _NONE])
    sizes = np.concatenate([*pool[2:], *(sizes for _, _, sizes in parts), _NONE])
    order = np.lexsort((queues, numbers))
    numbers, queues, sizes = numbers[order], queues[order], sizes[order]
    first = np.ones(len(numbers), bool)
    first[1:] = (numbers[1:] != numbers[:-1]) | (queues[1:] != queues[:-1])
    return numbers[first], queues[first], sizes[first]
