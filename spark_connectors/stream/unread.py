"""Limits of batches, and the queues that share them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from spark_connectors.ranges import sequence_number, sequence_text
from spark_connectors.read.arrivals import STEP, Marks, Tally
from spark_connectors.read.positions import QueuePosition, QueueState
from spark_connectors.stream.leap import Leap, Stretch


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

    def stretch(self, marks: Marks | None, first: int | None, end: Tally | None = None) -> Stretch:
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
        return Stretch(after, received, arrived, inside, None if end is None else inside.bytes_between(begin, upto))

    def leapt(self, leap: Leap | None) -> Unread:
        """Return the queue, of which a batch has all messages up to a mark, if there is one."""
        if leap is None:
            return self
        position = replace(self.position, received=leap.count)
        rows = max(1, min(self.rows, self.state.enqueued - leap.count))
        return replace(self, position=position, rows=rows, begin=sequence_text(leap.sequence))

    def end(self, after: str, rows: int) -> QueuePosition:
        """Return the position at the end of a batch, `rows` messages after the begin of the shared part."""
        return self.position.advanced(after, rows, self.state) if after > self.position.after else self.position

    def _inside(self, marks: Marks, after: int) -> Marks:
        """Return the marks in the unread part. Numbers that the queue has not reached are damage, and left out."""
        return marks.between(after, sequence_number(self.state.last_sequence)).within(self.state.enqueued)
