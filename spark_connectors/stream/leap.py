"""Leaps of a share by time: how far a batch reaches for certain, by the marks of arrivals, before any message is read.

All queues go on to one time, each to its last mark up to it. Up to that time no more messages exist than the limit
admits, so a batch with all of them keeps its limit, and no message of a later batch is older. The rest of the batch,
about a thousand messages of each queue, is shared out by `TimeShare`. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from spark_connectors.read.arrivals import Marks

#: More messages than any queue has.
_UNKNOWN = 2**60


@dataclass(frozen=True, slots=True)
class Stretch:
    """The unread part of a queue: at most `arrived - received` messages after the number `after` of a sequence.

    `received` and `arrived` are the numbers of arrivals up to its begin, at least, and up to its end, at most. `marks`
    lie in it.
    """

    after: int
    received: int
    arrived: int
    marks: Marks

    @property
    def counts(self) -> list[int]:
        """The numbers of arrivals at the begin of the stretch, at its marks, and at its end."""
        counts = self.marks.counts.tolist()
        last = counts[-1] if counts else self.received
        return [self.received, *counts, self.arrived if self.marks.complete else last + _UNKNOWN]


@dataclass(frozen=True, slots=True)
class Leap:
    """A mark of a queue to which a batch goes on, and the numbers of arrivals up to the begin and up to the mark."""

    sequence: int
    received: int
    count: int

    @property
    def rows(self) -> int:
        """The largest number of messages between the begin and the mark."""
        return self.count - self.received


def leaps(limit: int, stretches: Mapping[str, Stretch]) -> dict[str, Leap]:
    """Return the leaps of a batch of at most `limit` messages. Queues that stay where they are are left out.

    Behind each mark lie messages up to the next one, at unknown times. So the messages up to a time are at most those
    up to the next mark of each queue.
    """
    if not any(len(stretch.marks) for stretch in stretches.values()):
        return {}
    begins = [np.append(np.int64(stretch.after), stretch.marks.sequences) for stretch in stretches.values()]
    numbers = np.concatenate(begins)
    sizes = np.concatenate([np.diff(np.array(stretch.counts, np.float64)) for stretch in stretches.values()])
    order = np.argsort(numbers, kind="stable")
    admitted = int(np.searchsorted(np.cumsum(np.maximum(sizes[order], 0)), limit, "right"))
    time = int(numbers[order[admitted]]) if admitted < len(order) else int(numbers[order[-1]])
    reached = {}
    for name, stretch in stretches.items():
        at = int(np.searchsorted(stretch.marks.sequences, time, "right"))
        if at:
            count = int(stretch.marks.counts[at - 1])
            reached[name] = Leap(int(stretch.marks.sequences[at - 1]), stretch.received, count)
    return reached
