"""Scans that measure how far a budget reaches: page by page along the logs, many queues in one round trip.

Redis cannot count the entries between two sequences, so a scan counts them by a read, up to the next mark of arrivals.
From there it leaps to the last mark that the budget admits. A batch without a limit, or with fewer messages than its
limit, needs no scan.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from rqttl.protocol.keys import LOG, Keyspace
from spark_connectors.ranges import sequence_number, sequence_text
from spark_connectors.read.kept import PageKeeper
from spark_connectors.redis.bulk_reader import BulkReader, xrange_command
from spark_connectors.redis.connect import Command
from spark_connectors.redis.pages import Page
from spark_connectors.stream.leap import Stretch
from spark_connectors.stream.limits import ReadRequest, ReadResult
from spark_connectors.stream.time_scan import sequence_numbers

#: Sequences with the bytes of their messages, in order.
MessageSizes: TypeAlias = list[tuple[str, int]]

_FIRST_AVERAGE = 8_192


@dataclass(frozen=True, slots=True)
class _Mark:
    """The mark at this place of a stretch."""

    stretch: Stretch
    at: int

    @property
    def text(self) -> str:
        return sequence_text(int(self.stretch.marks.sequences[self.at]))

    @property
    def rows(self) -> int:
        """The most messages between the mark before this one, or the begin, and this one."""
        counts = self.stretch.marks.counts
        return int(counts[self.at]) - (int(counts[self.at - 1]) if self.at else self.stretch.received)


@dataclass(slots=True)
class _Progress:
    """The state of the scan for one request."""

    request: ReadRequest
    after: str
    #: The part with marks, until the scan has leapt.
    stretch: Stretch | None = None
    rows: int = 0
    cost: int = 0
    result: ReadResult | None = None

    def next_mark(self) -> _Mark | None:
        """Return the next mark, at which the scan may leap."""
        if self.stretch is None:
            return None
        sequences = self.stretch.marks.sequences
        at = int(np.searchsorted(sequences, sequence_number(self.after), "right"))
        inside = at < len(sequences) and sequences[at] < sequence_number(self.request.upto)
        return _Mark(self.stretch, at) if inside else None

    def leap(self, mark: _Mark) -> None:
        """Go on to a mark, before which no message is left unread, and from there as far as the budget reaches.

        The marks bound the messages between them, so these need no read.
        """
        marks, at = mark.stretch.marks, mark.at
        steps = np.cumsum(mark.stretch.costs[at + 1 : len(marks)].astype(np.float64))
        further = int(np.searchsorted(steps, self.request.budget - self.cost, "right"))
        self.after = sequence_text(int(marks.sequences[at + further]))
        if further:
            self.rows += int(marks.counts[at + further] - marks.counts[at])
            self.cost += int(steps[further - 1])
        self.stretch = None

    def finish(self, *, done: bool = False) -> None:
        after = self.request.upto if done else self.after
        self.result = ReadResult(after, self.rows, self.cost, done or after >= self.request.upto)


class BudgetScan:
    """Answers the requests of `limits.FairShare`. Their unit is messages, or with `in_bytes` bytes of header and body.

    `detached` has the messages outside the logs, by queue, and `stretches` the unread parts with marks. The keeper gets
    each page. A page has at most `max_entries` entries, and about `reply_bytes` bytes.
    """

    def __init__(
        self,
        reader: BulkReader,
        keys: Keyspace,
        detached: Mapping[str, MessageSizes],
        stretches: Mapping[str, Stretch],
        keeper: PageKeeper,
        *,
        in_bytes: bool,
        max_entries: int,
        reply_bytes: int,
    ) -> None:
        self._reader = reader
        self._keys = keys
        self._detached = detached
        self._stretches = stretches
        self._keeper = keeper
        self._in_bytes = in_bytes
        self._max_entries = max_entries
        self._reply_bytes = reply_bytes
        self._average = _FIRST_AVERAGE

    def answer(self, requests: Sequence[ReadRequest]) -> list[ReadResult]:
        """Return the result of each request, in their order."""
        scans = [self._progress(request) for request in requests]
        unfinished = scans
        while unfinished:
            batch: list[tuple[_Progress, int]] = []
            room = max(1, min(self._max_entries, self._reply_bytes // self._average))
            for scan in unfinished:
                if room <= 0:
                    break
                batch.append((scan, min(room, self._max_entries_left(scan))))
                room -= batch[-1][1]
            pages = self._reader.fetch_pages([self._command(scan, count) for scan, count in batch])
            for (scan, count), page in zip(batch, pages, strict=True):
                self._measure(page)
                self._take(scan, page, count)
            unfinished = [scan for scan in unfinished if scan.result is None]
        return [scan.result for scan in scans if scan.result is not None]

    def _progress(self, request: ReadRequest) -> _Progress:
        stretch = None if request.at_least_one else self._stretches.get(request.queue)
        return _Progress(request, request.after, stretch)

    def _max_entries_left(self, scan: _Progress) -> int:
        """Estimate the number of entries that the rest of the budget admits, at most those up to the next mark."""
        left = scan.request.budget - scan.cost
        if scan.request.at_least_one:
            return 1
        admitted = left // self._average + 1 if self._in_bytes else left
        mark = scan.next_mark()
        # one message more than there can be: a page that is not full is the last one before the mark
        return admitted if mark is None else min(admitted, max(0, mark.rows) + 1)

    def _command(self, scan: _Progress, count: int) -> Command:
        mark = scan.next_mark()
        upto = scan.request.upto if mark is None else mark.text
        return xrange_command(self._keys.key(scan.request.queue, LOG), scan.after, upto, count)

    def _take(self, scan: _Progress, page: Page, count: int) -> None:
        mark = scan.next_mark()
        end = scan.request.upto if mark is None else mark.text
        upto = end if len(page) < count else page.sequence(-1).decode()
        numbers = sequence_numbers(scan.request.queue, page)
        self._keeper.add(scan.request.queue, sequence_number(scan.after), sequence_number(upto), numbers, page)
        detached = self._detached_upto(scan, upto)
        if detached:
            complete = self._add_messages(scan, heapq.merge(_message_sizes(page), detached))
        else:
            complete = self._add_page(scan, page)
        if not complete:
            return scan.finish()
        if upto == end and mark is not None:
            scan.leap(mark)
        elif len(page) < count:
            return scan.finish(done=True)
        if scan.request.at_least_one or scan.cost >= scan.request.budget:
            return scan.finish()
        return None

    def _add_page(self, scan: _Progress, page: Page) -> bool:
        """Add the messages of a page that the budget admits. Returns true if it admits all of them."""
        if not len(page):
            return True
        costs = page.message_sizes() if self._in_bytes else np.ones(len(page), np.int64)
        totals = scan.cost + np.cumsum(costs)
        rows = int(np.searchsorted(totals, scan.request.budget, "right"))
        if scan.request.at_least_one and not scan.rows:
            rows = max(rows, 1)
        if rows:
            scan.after, scan.rows = page.sequence(rows - 1).decode(), scan.rows + rows
            scan.cost = int(totals[rows - 1])
        return rows == len(page)

    def _add_messages(self, scan: _Progress, messages: Iterable[tuple[str, int]]) -> bool:
        """Add messages one by one. Returns true if the budget admits all of them."""
        for sequence, size in messages:
            cost = size if self._in_bytes else 1
            if scan.cost + cost > scan.request.budget and not (scan.request.at_least_one and not scan.rows):
                return False
            scan.after, scan.rows, scan.cost = sequence, scan.rows + 1, scan.cost + cost
        return True

    def _detached_upto(self, scan: _Progress, upto: str) -> MessageSizes:
        """Return the detached messages from the present end of the scan up to `upto`."""
        messages = self._detached.get(scan.request.queue, [])
        begin, end = (bisect_right(messages, sequence, key=lambda pair: pair[0]) for sequence in (scan.after, upto))
        return messages[begin:end]

    def _measure(self, page: Page) -> None:
        if len(page):
            self._average = max(page.reply_size // len(page), self._average // 4, 1)


def _message_sizes(page: Page) -> MessageSizes:
    return [(page.sequence(row).decode(), size) for row, size in enumerate(page.message_sizes().tolist())]
