"""Fair shares of a batch limit: exact, and without starvation of a queue. Pure.

All queues get the same share, in rounds. A queue returns what it does not need, and the others share it. A rest that
cannot be divided goes to the queues in turn: the next batch begins with the first queue that got nothing in this one.
The first queue gets one message in any case, so a message that is larger than its share, or than the whole limit, is
read, too. Only such a message exceeds a limit, in a batch of its own.

A generator yields requests, and receives their results: nothing here talks to Redis.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass

#: The number of queues that are asked at once for a single message.
_QUEUES_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """Read ahead in `(after, upto]` of a queue, up to this budget; with `at_least_one`, one message in any case."""

    queue: str
    after: str
    upto: str
    budget: int
    at_least_one: bool = False


@dataclass(frozen=True, slots=True)
class ReadResult:
    """The messages up to `after`: their number, and their cost in units of the limit.

    `done` is true if no message lies between `after` and the end of the request.
    """

    after: str
    rows: int
    cost: int
    done: bool


@dataclass(slots=True)
class QueueShare:
    """The part of one queue in a batch, so far."""

    after: str
    upto: str
    rows: int = 0
    cost: int = 0
    done: bool = False

    def add(self, result: ReadResult) -> int:
        """Add the messages of a result. Returns their cost."""
        self.after, self.done = result.after, result.done
        self.rows, self.cost = self.rows + result.rows, self.cost + result.cost
        return result.cost


Rounds = Generator[list[ReadRequest], list[ReadResult], None]


class FairShare:
    """One batch of at most `limit` units, messages or bytes, from queues that may all have messages."""

    def __init__(self, limit: int, shares: Mapping[str, QueueShare], next_queue: str = "") -> None:
        names = sorted(shares)
        begin = next((i for i, name in enumerate(names) if name >= next_queue), 0)
        self.order = names[begin:] + names[:begin]
        self.shares = dict(shares)
        self._left = limit

    @property
    def next_queue(self) -> str:
        """The queue that the next batch serves first; empty if no queue has more messages."""
        names = self._open()
        unserved = (name for name in names if not self.shares[name].rows)
        return next(unserved, next(iter(names[1:] + names[:1]), ""))

    def run(self) -> Rounds:
        """Yield requests, and receive their results in the same order. `shares` has the outcome at the end."""
        yield from self._serve_first()
        while self._left > 0 and (budgets := self._budgets(self._open())):
            requests = [self._request(name, budget) for name, budget in budgets.items()]
            progress = yield from self._serve(requests)
            if not progress:
                single = [self._request(name, 1, at_least_one=True) for name in self._open()]
                if not (yield from self._serve(single)):
                    return

    def _open(self) -> list[str]:
        return [name for name in self.order if not self.shares[name].done]

    def _request(self, name: str, budget: int, *, at_least_one: bool = False) -> ReadRequest:
        return ReadRequest(name, self.shares[name].after, self.shares[name].upto, budget, at_least_one)

    def _serve_first(self) -> Rounds:
        """Give one message to the first queue that has any. Queues without messages are done."""
        for i in range(0, len(self.order), _QUEUES_AT_ONCE):
            chunk = self.order[i : i + _QUEUES_AT_ONCE]
            results = yield [self._request(name, 1, at_least_one=True) for name in chunk]
            for name, result in zip(chunk, results, strict=True):
                self._left -= self.shares[name].add(result)
                if result.rows:
                    return

    def _budgets(self, names: list[str]) -> dict[str, int]:
        """Return budgets that raise all shares to the same level. If too little is left, some queues get one unit."""
        behind = sorted(names, key=lambda name: self.shares[name].cost)
        spent = sum(self.shares[name].cost for name in behind)
        while behind and self.shares[behind[-1]].cost * len(behind) >= self._left + spent:
            spent -= self.shares[behind.pop()].cost
        level = (self._left + spent) // max(1, len(behind))
        budgets = {name: level - self.shares[name].cost for name in behind}
        return {name: budget for name, budget in budgets.items() if budget} or dict.fromkeys(behind[: self._left], 1)

    def _serve(self, requests: list[ReadRequest]) -> Generator[list[ReadRequest], list[ReadResult], bool]:
        """Add the results that still fit. Returns true if a share has changed."""
        changed = False
        for request, result in zip(requests, (yield requests), strict=True):
            if result.cost <= self._left and (result.rows or result.done):
                self._left -= self.shares[request.queue].add(result)
                changed = True
        return changed
