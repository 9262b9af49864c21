"""Sequences, which are places in a queue's order, and ranges of them: `(after, upto]`.

A sequence is the text `<13 digits of ms>-<6 digits>`, so text order is their order. As a whole number it is
`ms * 1,000,000 + serial`, where the serials of one ms run from 100,000 on without gaps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

#: Before the first and after the last of all sequences.
FIRST = "0000000000000-000000"
LAST = "9999999999999-999999"
#: The serials of one millisecond, and the first of them.
SERIALS = 1_000_000
FIRST_SERIAL = 100_000


def position(sequence: str | bytes) -> int:
    """A sequence as a number, in the same order."""
    return int(sequence[:13]) * SERIALS + int(sequence[14:])


def sequence(position: int) -> str:
    """The sequence of a number."""
    ms, serial = divmod(position, SERIALS)
    return f"{ms:013d}-{serial:06d}"


def before(ms: int) -> str:
    """The place right before everything of a millisecond: what lies after it is of that ms or later."""
    return sequence(max(0, ms * SERIALS - 1))


@dataclass(frozen=True, slots=True, order=True)
class Range:
    """The messages of a queue after `after`, up to and with `upto`. `rows` is an estimate of how many there are.

    `loose` says that some of them may be in the hash `loose` of the queue, or be moved there while somebody reads.
    Neighbours `(a, b]` and `(b, c]` share nothing and leave out nothing, and what is enqueued later is in neither.
    """

    queue: str
    after: str
    upto: str
    rows: int = 0
    loose: bool = True

    @property
    def empty(self) -> bool:
        """Whether no sequence lies in it."""
        return self.after >= self.upto

    def holds(self, sequence: str) -> bool:
        """Whether a sequence lies in it."""
        return self.after < sequence <= self.upto

    def clip(self, after: str, upto: str) -> Range:
        """What of it lies within `(after, upto]`; may be empty."""
        return replace(self, after=max(self.after, after), upto=min(self.upto, upto))

    def cut(self, ends: list[tuple[int, int]]) -> list[Range]:
        """The parts that end at these positions, which rise and come with how many rows each part may have.

        The last part ends with the range itself. Parts in which no sequence can lie are left out.
        """
        parts, after = [], self.after
        for i, (end, rows) in enumerate(ends):
            upto = self.upto if i == len(ends) - 1 else min(max(after, sequence(end)), self.upto)
            parts.append(replace(self, after=after, upto=upto, rows=rows))
            after = upto
        return [part for part in parts if not part.empty]
