"""How far a batch with a limit reaches for certain, by the marks of arrivals, before any message is read.

All queues of a batch go on to one time, each to its last mark up to it. Up to that time no more messages exist, or no
more bytes, than the limit admits. So a batch with all of them keeps its limit, and no later batch has an older message.
The rest of the batch, about a thousand messages of each queue, is shared out by `TimeShare`. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from spark_connectors.ranges import sequence_number, sequence_text
from spark_connectors.read.arrivals import STEP, UNKNOWN, Marks, Tally
from spark_connectors.read.positions import QueuePosition, QueueState
from spark_connectors.redis.digits import Array


@dataclass(frozen=True, slots=True)
class MarkedRange:
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


@dataclass(frozen=True, slots=True)
class MarkPlan:
    """A mark of a queue to which a batch goes on, the number of arrivals up to it, and the most that it costs."""

    sequence: int
    count: int
    cost: int


def plan_by_marks(limit: int, ranges: Mapping[str, MarkedRange]) -> dict[str, MarkPlan]:
    """Return the plans of a batch of at most `limit` units. Queues that stay where they are are left out.

    Behind each mark lie messages up to the next one, at unknown times. So the messages up to a time are at most those
    up to the next mark of each queue.
    """
    if not any(len(part.marks) for part in ranges.values()):
        return {}
    begins = [np.append(np.int64(part.after), part.marks.sequences) for part in ranges.values()]
    numbers = np.concatenate(begins)
    costs = np.concatenate([part.costs for part in ranges.values()]).astype(np.float64)
    order = np.argsort(numbers, kind="stable")
    admitted = int(np.searchsorted(np.cumsum(costs[order]), limit, "right"))
    time = int(numbers[order[admitted]]) if admitted < len(order) else int(numbers[order[-1]])
    reached = {}
    for name, part in ranges.items():
        at = int(np.searchsorted(part.marks.sequences, time, "right"))
        if at:
            sequence, count = int(part.marks.sequences[at - 1]), int(part.marks.counts[at - 1])
            reached[name] = MarkPlan(sequence, count, int(part.costs[:at].sum()))
    return reached


@dataclass(frozen=True, slots=True)
class BatchLimit:
    """The largest number of messages in a batch, or of bytes of their headers and bodies."""

    amount: int
    in_bytes: bool = False


@dataclass(frozen=True, slots=True)
class Unread:
    """A queue with unread messages, at most `rows` of them; `detached` is true if some of them lie outside the log.

    A batch has the messages up to `begin` (empty: none) in any case, and shares its limit among later ones.
    """

    position: QueuePosition
    state: QueueState
    rows: int
    detached: bool
    begin: str = ""

    def is_loose(self, marks: Marks) -> bool:
        """True if far more messages than unread ones have arrived between the known number and the first mark."""
        inside = self._inside(marks, sequence_number(self.position.after))
        known = max(self.position.received, marks.count_upto(sequence_number(self.position.after)))
        return len(inside) > 0 and int(inside.counts[0]) - known > 2 * STEP

    def marked(self, marks: Marks | None, first: int | None, end: Tally | None = None) -> MarkedRange:
        """Return the unread part with its marks. `first` is the first unread message, where it is known.

        `end` has the arrivals up to now or later, for a limit of bytes. Without marks, or if more than a tenth of the
        arrivals have left the queue, the part has none: batches would be too small.
        """
        after, received, arrived = sequence_number(self.position.after), self.position.received, self.state.enqueued
        inside, begin, upto = Marks.parse(()), Tally(), None
        if marks is not None:
            after = after if first is None else max(after, first - 1)
            begin = marks.tally_upto(after)
            received, upto = max(received, begin.count), end
            known = self._inside(marks, after)
            if self.rows * 10 >= (arrived - received) * 9:
                inside, upto = known, end if known.complete else None
        if not len(inside):
            arrived = received + self.rows
        return MarkedRange(after, received, arrived, inside, None if end is None else inside.bytes_between(begin, upto))

    def planned(self, plan: MarkPlan | None) -> Unread:
        """Return the queue, of which a batch has all messages up to a mark, if there is one."""
        if plan is None:
            return self
        position = replace(self.position, received=plan.count)
        rows = max(1, min(self.rows, self.state.enqueued - plan.count))
        return replace(self, position=position, rows=rows, begin=sequence_text(plan.sequence))

    def end(self, after: str, rows: int) -> QueuePosition:
        """Return the position at the end of a batch, `rows` messages after the begin of the shared part."""
        return self.position.advanced(after, rows, self.state) if after > self.position.after else self.position

    def _inside(self, marks: Marks, after: int) -> Marks:
        """Return the marks in the unread part. Numbers that the queue has not reached are damage, and left out."""
        return marks.between(after, sequence_number(self.state.last_sequence)).within(self.state.enqueued)
