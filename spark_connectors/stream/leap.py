"""Leaps of a limit: how far a batch reaches for certain, by the marks of arrivals, before any message is read.

In a share by time all queues go on to one time, each to its last mark up to it. Up to that time no more messages exist,
or no more bytes, than the limit admits. So a batch with all of them keeps its limit, and no message of a later batch is
older. The rest of the batch, about a thousand messages of each queue, is shared out by `TimeShare`. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from spark_connectors.read.arrivals import UNKNOWN, Marks
from spark_connectors.redis.digits import Array


@dataclass(frozen=True, slots=True)
class Stretch:
    """The unread part of a queue: at most `arrived - received` messages after the number `after` of a sequence.

    `received` and `arrived` are the numbers of arrivals up to its begin, at least, and up to its end, at most. `marks`
    lie in it. For a limit of bytes, `bytes` has the most bytes up to the first mark, from mark to mark, and to the end.
    """

    after: int
    received: int
    arrived: int
    marks: Marks
    bytes: Array | None = None

    @property
    def costs(self) -> Array:
        """The most units of the limit up to the first mark, from mark to mark, and from the last one to the end."""
        if self.bytes is not None:
            return self.bytes
        counts = self.marks.counts.tolist()
        last = counts[-1] if counts else self.received
        end = self.arrived if self.marks.complete else last + UNKNOWN
        return np.maximum(np.diff(np.array([self.received, *counts, end], np.int64)), 0)

    def with_first(self, cost: int) -> Stretch:
        """Return the stretch with the exact bytes up to the first mark."""
        costs = self.costs
        return replace(self, bytes=np.append(np.int64(min(cost, int(costs[0]))), costs[1:]))

    def leap_to(self, at: int) -> Leap:
        """Return the leap over this number of marks, one at least."""
        count = int(self.marks.counts[at - 1])
        return Leap(int(self.marks.sequences[at - 1]), self.received, count, int(self.costs[:at].sum()))


@dataclass(frozen=True, slots=True)
class Leap:
    """A mark of a queue to which a batch goes on, and the numbers of arrivals up to the begin and up to the mark.

    `cost` is the most that lies between them, in units of the limit.
    """

    sequence: int
    received: int
    count: int
    cost: int


def leaps(limit: int, stretches: Mapping[str, Stretch]) -> dict[str, Leap]:
    """Return the leaps of a batch of at most `limit` units. Queues that stay where they are are left out.

    Behind each mark lie messages up to the next one, at unknown times. So the messages up to a time are at most those
    up to the next mark of each queue.
    """
    if not any(len(stretch.marks) for stretch in stretches.values()):
        return {}
    begins = [np.append(np.int64(stretch.after), stretch.marks.sequences) for stretch in stretches.values()]
    numbers = np.concatenate(begins)
    costs = np.concatenate([stretch.costs for stretch in stretches.values()]).astype(np.float64)
    order = np.argsort(numbers, kind="stable")
    admitted = int(np.searchsorted(np.cumsum(costs[order]), limit, "right"))
    time = int(numbers[order[admitted]]) if admitted < len(order) else int(numbers[order[-1]])
    reached = {}
    for name, stretch in stretches.items():
        at = int(np.searchsorted(stretch.marks.sequences, time, "right"))
        if at:
            reached[name] = stretch.leap_to(at)
    return reached


def exact_leaps(
    limit: int, stretches: Mapping[str, Stretch], exact: Callable[[Mapping[str, Stretch]], Mapping[str, Stretch]]
) -> dict[str, Leap]:
    """Return the leaps of a batch of at most `limit` bytes. The bytes before the first mark of each queue are exact.

    `exact` returns stretches with these bytes. They are fewer than those of the marks, so more queues may reach a mark
    with them, and `exact` is called again for these.
    """
    known, asked = dict(stretches), set[str]()
    reached = leaps(limit, known)
    while new := reached.keys() - asked:
        known.update(exact({name: stretches[name] for name in new}))
        asked |= new
        reached = leaps(limit, known)
    return reached
