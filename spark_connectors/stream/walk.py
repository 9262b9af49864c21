"""Finding out how far a limit reaches: a walk along the logs, page by page, many queues in one round trip.

Redis cannot say how many entries lie between two places, so what a limit admits is counted by reading it. That costs
nothing where all that is there fits the limit, as it usually does.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from rqttl.keys import Keyspace
from spark_connectors.redis.bulk_reader import Wire
from spark_connectors.redis.pages import Page
from spark_connectors.stream.limits import Found, Wish

#: Sequences with the bytes of each message, in order.
Sizes: TypeAlias = list[tuple[str, int]]

_FIRST_AVERAGE = 8_192


@dataclass(slots=True)
class _Step:
    """How far the walk for one wish has got."""

    wish: Wish
    after: str = field(default="")
    rows: int = 0
    amount: int = 0
    found: Found | None = None

    def end(self, *, done: bool = False) -> None:
        after = self.wish.upto if done else self.after
        self.found = Found(after, self.rows, self.amount, done or after >= self.wish.upto)


class Walker:
    """Answers wishes of `limits.ShareOut`. `in_bytes`: they are of bytes of headers and bodies, not of messages.

    `loose` has the messages of queues that are not in their logs. A page has at most `most` entries, and about `reply`
    bytes.
    """

    def __init__(
        self, wire: Wire, keys: Keyspace, loose: Mapping[str, Sizes], *, in_bytes: bool, most: int, reply: int
    ) -> None:
        self._wire = wire
        self._keys = keys
        self._loose = loose
        self._in_bytes = in_bytes
        self._most = most
        self._reply = reply
        self._average = _FIRST_AVERAGE

    def answer(self, wishes: Sequence[Wish]) -> list[Found]:
        """How far one gets with each wish, in their order."""
        steps = [_Step(wish, wish.after) for wish in wishes]
        waiting = steps
        while waiting:
            asked: list[tuple[_Step, int]] = []
            room = max(1, min(self._most, self._reply // self._average))
            for step in waiting:
                if room <= 0:
                    break
                asked.append((step, min(room, self._count(step))))
                room -= asked[-1][1]
            pages = self._wire.ask_pages([self._call(step, count) for step, count in asked])
            for (step, count), page in zip(asked, pages, strict=True):
                self._measure(page)
                self._take(step, page, count)
            waiting = [step for step in waiting if step.found is None]
        return [step.found for step in steps if step.found is not None]

    def _count(self, step: _Step) -> int:
        """How many entries the rest of a wish may have."""
        left = step.wish.budget - step.amount
        return 1 if step.wish.one else left // self._average + 1 if self._in_bytes else left

    def _call(self, step: _Step, count: int) -> tuple[object, ...]:
        key = self._keys.key(step.wish.queue, "log")
        return "XRANGE", key, f"({step.after}", step.wish.upto, "COUNT", count

    def _take(self, step: _Step, page: Page, count: int) -> None:
        upto = step.wish.upto if len(page) < count else page.place(-1).decode()
        aside = self._aside(step, upto)
        fits = self._add(step, heapq.merge(_sizes(page), aside)) if aside else self._add_page(step, page)
        if not fits:
            return step.end()
        if len(page) < count:
            return step.end(done=True)
        if step.wish.one or step.amount >= step.wish.budget:
            return step.end()
        return None

    def _add_page(self, step: _Step, page: Page) -> bool:
        """Take what can be taken of a page; returns whether that is all of it."""
        if not len(page):
            return True
        costs = page.sizes() if self._in_bytes else np.ones(len(page), np.int64)
        amounts = step.amount + np.cumsum(costs)
        rows = int(np.searchsorted(amounts, step.wish.budget, "right"))
        if step.wish.one and not step.rows:
            rows = max(rows, 1)
        if rows:
            step.after, step.rows = page.place(rows - 1).decode(), step.rows + rows
            step.amount = int(amounts[rows - 1])
        return rows == len(page)

    def _add(self, step: _Step, found: Iterable[tuple[str, int]]) -> bool:
        """Take one message after the other; returns whether all could be taken."""
        for sequence, size in found:
            cost = size if self._in_bytes else 1
            if step.amount + cost > step.wish.budget and not (step.wish.one and not step.rows):
                return False
            step.after, step.rows, step.amount = sequence, step.rows + 1, step.amount + cost
        return True

    def _aside(self, step: _Step, upto: str) -> Sizes:
        """What is not in the log between the last message of the walk and `upto`."""
        loose = self._loose.get(step.wish.queue, [])
        begin, end = (bisect_right(loose, place, key=lambda of: of[0]) for place in (step.after, upto))
        return loose[begin:end]

    def _measure(self, page: Page) -> None:
        if len(page):
            self._average = max(page.size // len(page), self._average // 4, 1)


def _sizes(page: Page) -> Sizes:
    return [(page.place(row).decode(), size) for row, size in enumerate(page.sizes().tolist())]
