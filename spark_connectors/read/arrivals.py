"""The index of arrivals of dead-letter queues: marks of a log, each with the messages and bytes that had come by then.

A mark comes with about every 1,024th dead letter. The numbers count arrivals, not messages: those that have left keep
their numbers. So between two marks there are at most as many messages as their numbers differ, and exactly as many
if none of them has left. The same holds for bytes where no sender has enqueued: bytes count dead letters only. Queues
without dead letters have no marks.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rqttl.protocol.keys import ARRIVALS, Keyspace
from spark_connectors.errors import NoPermission, RefusedByRedis
from spark_connectors.ranges import Range, sequence_number
from spark_connectors.read.watch import execute_many
from spark_connectors.redis.bulk_reader import BulkReader
from spark_connectors.redis.digits import Array

_log = logging.getLogger("spark_connectors")

#: About one in so many arrivals has a mark.
STEP = 1_024
#: Marks near a place: several lie in one millisecond if messages died fast.
_NEAR = 64
_MARK = re.compile(rb"[0-8]\d{12}-\d{6}( \d{1,15}){3}")
#: More messages, and more bytes, than any queue has.
UNKNOWN = 2**60


@dataclass(frozen=True, slots=True)
class Tally:
    """The arrivals of a queue up to a moment: their number, how many of them senders enqueued, bytes of the others."""

    count: int = 0
    sent: int = 0
    letter_bytes: int = 0

    @classmethod
    def parse(cls, enqueued: bytes | None, letters: bytes | None, letter_bytes: bytes | None) -> Tally:
        """Parse the fields of a record or of a mark."""
        count = int(enqueued or 0)
        return cls(count, count - int(letters or 0), int(letter_bytes or 0))

    @property
    def row(self) -> tuple[int, int, int]:
        """The three numbers."""
        return self.count, self.sent, self.letter_bytes

    def has_reached(self, other: Tally) -> bool:
        """True if this tally can be a later one."""
        return self.count > other.count and self.sent >= other.sent and self.letter_bytes >= other.letter_bytes


@dataclass(frozen=True, slots=True)
class Marks:
    """Marks of a log in order: numbers of sequences, and a row of numbers for each, as in `Tally`.

    `complete` is true if no mark is missing at the end.
    """

    sequences: Array
    tallies: Array
    complete: bool = True

    @classmethod
    def of(cls, marks: Iterable[tuple[int, Tally]], *, complete: bool = True) -> Marks:
        """Make marks of sequences and tallies in order, without marks that do not rise."""
        sequences, rows, last = [0], [(0, 0, 0)], Tally()
        for sequence, tally in marks:
            if sequence > sequences[-1] and tally.has_reached(last):
                sequences.append(sequence)
                rows.append(tally.row)
                last = tally
        return cls(np.array(sequences[1:], np.int64), np.array(rows, np.int64)[1:], complete)

    @classmethod
    def parse(cls, members: Iterable[bytes], *, complete: bool = True) -> Marks:
        """Parse members of the index. A member that is no mark, or whose numbers do not rise, is left out."""
        words = (member.split(b" ") for member in members if _MARK.fullmatch(member))
        return cls.of(((sequence_number(word[0]), Tally.parse(*word[1:])) for word in words), complete=complete)

    def __len__(self) -> int:
        return len(self.sequences)

    @property
    def counts(self) -> Array:
        """The numbers of arrivals up to each mark."""
        counts: Array = self.tallies[:, 0]
        return counts

    def tally_upto(self, sequence: int) -> Tally:
        """Return the arrivals up to the last mark that is not beyond a sequence; none before the first mark."""
        at = int(np.searchsorted(self.sequences, sequence, "right"))
        return Tally(*self.tallies[at - 1].tolist()) if at else Tally()

    def bytes_between(self, begin: Tally, end: Tally | None) -> Array:
        """Return the most bytes of header and body from `begin` to the first mark, from mark to mark, and to `end`.

        It is `UNKNOWN` where a sender has enqueued, where numbers fall, and behind the last mark without an end.
        """
        rows = [begin.row, *self.tallies.tolist(), *(() if end is None else (end.row,))]
        steps = np.diff(np.array(rows, np.int64), axis=0)
        rises = (steps[:, 0] >= 0) & (steps[:, 1] == 0) & (steps[:, 2] >= 0)
        known = np.where(rises, steps[:, 2], UNKNOWN)
        return known if end is not None else np.append(known, UNKNOWN)

    def count_upto(self, sequence: int) -> int:
        """Return the number of arrivals up to the last mark that is not beyond a sequence; 0 before the first mark."""
        return self.tally_upto(sequence).count

    def within(self, arrived: int) -> Marks:
        """Return the marks whose numbers are not beyond a number of arrivals."""
        end = int(np.searchsorted(self.counts, arrived, "right"))
        return Marks(self.sequences[:end], self.tallies[:end], self.complete)

    def split(self, after: int, upto: int, rows: int, parts: int) -> list[tuple[int, int]] | None:
        """Split `(after, upto]` into parts of equal numbers of messages, given the number of `rows` in it.

        Returns the end of each part and its rows, as `split.by_density` does. Returns `None` if the marks are too few
        for that, or if many of the arrivals have no message any more.
        """
        inside = self.between(after, upto)
        if not inside.complete or len(inside) < 4 * parts:
            return None
        share, known = rows / parts, int(inside.counts[-1] - inside.counts[0])
        if abs(rows - known) > share / 2 or int(np.diff(inside.counts).max()) > share / 2:
            return None
        # of the messages outside the first and the last mark, those before the first one
        lead = min(max(0, rows - known), int(inside.counts[0]) - self.count_upto(after))
        begin = int(inside.counts[0]) - lead
        shares = begin + rows * np.arange(1, parts) / parts
        nearest = np.searchsorted((inside.counts[1:] + inside.counts[:-1]) / 2, shares)
        ends: list[tuple[int, int]] = []
        for i in nearest.tolist():
            ends.append((int(inside.sequences[i]), int(inside.counts[i]) - begin))
            begin = int(inside.counts[i])
        return [*ends, (upto, max(1, rows - sum(part for _, part in ends)))]

    def between(self, after: int, upto: int) -> Marks:
        """Return the marks in `(after, upto]`. All marks up to the last one given are known."""
        begin, end = np.searchsorted(self.sequences, [after, upto], "right")
        return Marks(self.sequences[begin:end], self.tallies[begin:end], self.complete or bool(end < len(self)))


@dataclass(frozen=True, slots=True)
class MarkRequest:
    """Marks of a queue in `(after, upto]`, as texts: at most the first `most`; and the newest mark before `after`."""

    queue: str
    after: str
    upto: str
    most: int

    @classmethod
    def all_in(cls, part: Range) -> MarkRequest:
        """Request all marks of a range, unless most of the arrivals in it have left the queue."""
        return cls(part.queue, part.after, part.upto, 2 * part.rows // STEP + 8)


class ArrivalIndex:
    """Reads the indexes of queues. A user without the right to do so gets no marks, and the log says so once."""

    def __init__(self, keys: Keyspace) -> None:
        self._keys = keys
        self._readable = True

    def read(self, reader: BulkReader, requests: Sequence[MarkRequest]) -> Mapping[str, Marks]:
        """Return the marks of each queue. The first of them may lie before the range."""
        replies = self._run(reader, [command for request in requests for command in self._commands(request)])
        marks: dict[str, Marks] = {}
        if replies is None:
            return marks
        for request, before, members in zip(requests, replies[::2], replies[1::2], strict=True):
            marks[request.queue] = Marks.parse([*before, *members], complete=len(members) < request.most)
        return marks

    def around(self, reader: BulkReader, queue: str, begin: str, places: Sequence[str]) -> Marks:
        """Return marks near some sequences: the first ones from `begin` on, and the last ones up to each of `places`.

        Marks between them may be missing.
        """
        key = self._keys.key(queue, ARRIVALS)
        commands: list[tuple[str | int, ...]] = [
            ("ZRANGE", key, place[:13], "-inf", "BYSCORE", "REV", "LIMIT", 0, _NEAR) for place in places
        ]
        replies = self._run(reader, [("ZRANGE", key, begin[:13], "+inf", "BYSCORE", "LIMIT", 0, _NEAR), *commands])
        return Marks.parse(sorted({member for reply in replies or () for member in reply}), complete=False)

    def _run(self, reader: BulkReader, commands: Sequence[tuple[str | int, ...]]) -> list[list[bytes]] | None:
        if not self._readable or not commands:
            return None
        try:
            return execute_many(reader, commands)
        except (NoPermission, RefusedByRedis) as error:
            self._readable = False
            _log.warning("cannot read the index of arrivals, so limits, partitions and counts read more: %s", error)
            return None

    def _commands(self, request: MarkRequest) -> list[tuple[str | int, ...]]:
        """Two commands: scores are milliseconds, so marks of the first one may still lie before the range."""
        key, first, last = self._keys.key(request.queue, ARRIVALS), request.after[:13], request.upto[:13]
        return [
            ("ZRANGE", key, f"({first}", "-inf", "BYSCORE", "REV", "LIMIT", 0, 1),
            ("ZRANGE", key, first, last, "BYSCORE", "LIMIT", 0, request.most),
        ]
