"""Sequences and ranges of them, `(after, upto]`. A sequence is the place of a message in the log of its queue.

A sequence is the text `<13 digits of ms>-<6 digits of serial>`, so it sorts as text. As a number it is
`ms * 1,000,000 + serial`. The serials of one millisecond begin at 100,000 and have no gaps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

#: Bounds: no message has a sequence up to `FIRST` or beyond `LAST`.
FIRST = "0000000000000-000000"
LAST = "9999999999999-999999"
#: The count of serials of one millisecond, and the first serial in use.
SERIALS = 1_000_000
FIRST_SERIAL = 100_000


def sequence_number(sequence: str | bytes) -> int:
    """Convert a sequence to a number. Numbers sort as their sequences do."""
    return int(sequence[:13]) * SERIALS + int(sequence[14:])


def sequence_text(number: int) -> str:
    """Convert a number back to its sequence."""
    ms, serial = divmod(number, SERIALS)
    return f"{ms:013d}-{serial:06d}"


def sequence_before(ms: int) -> str:
    """Return the last sequence before a millisecond: all later sequences are of that millisecond or later."""
    return sequence_text(max(0, ms * SERIALS - 1))


def recorded_sequence(text: bytes | None) -> str:
    """Decode a sequence from the record of a queue. The record has `0-0`, or nothing, until there is a sequence."""
    return FIRST if text is None or len(text) != len(FIRST) else text.decode()


@dataclass(frozen=True, slots=True, order=True)
class Range:
    """The messages of a queue after the sequence `after`, up to and including `upto`. `rows` estimates their number.

    `detached` is true if some of them may lie outside the log, or may leave the log during the read.
    Neighbours `(a, b]` and `(b, c]` neither overlap nor leave a gap, and neither contains messages enqueued later.
    """

    queue: str
    after: str
    upto: str
    rows: int = 0
    detached: bool = True

    @property
    def empty(self) -> bool:
        """True if no sequence lies in the range."""
        return self.after >= self.upto

    def contains(self, sequence: str) -> bool:
        """True if the sequence lies in the range."""
        return self.after < sequence <= self.upto

    def clip(self, after: str, upto: str) -> Range:
        """Return the intersection with `(after, upto]`, which may be empty."""
        return replace(self, after=max(self.after, after), upto=min(self.upto, upto))

    def cut(self, ends: list[tuple[int, int]]) -> list[Range]:
        """Cut the range into parts. Each end is the number of a part's last sequence, and an estimate of its rows.

        The ends rise. The last part ends where the range ends. Empty parts are left out.
        """
        parts, after = [], self.after
        for i, (end, rows) in enumerate(ends):
            upto = self.upto if i == len(ends) - 1 else min(max(after, sequence_text(end)), self.upto)
            parts.append(replace(self, after=after, upto=upto, rows=rows))
            after = upto
        return [part for part in parts if not part.empty]
