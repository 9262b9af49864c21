"""The index of arrivals of dead-letter queues: marks of a log, each with the number of messages that had come by then.

A mark comes with about every 1,024th letter. The numbers count arrivals, not messages: letters that have left the queue
keep their numbers. So between two marks there are at most as many messages as their numbers differ, and exactly as many
if none of them has left. Queues without dead letters, and letters from before the index, have no marks.
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
#: Marks near a place: several lie in one millisecond if letters died fast.
_NEAR = 64
_MARK = re.compile(rb"[0-8]\d{12}-\d{6} \d{1,15}")


@dataclass(frozen=True, slots=True)
class Marks:
    """Marks of a log in order: numbers of sequences, and the numbers of arrivals up to each.

    `complete` is true if no mark is missing at the end.
    """

    sequences: Array
    counts: Array
    complete: bool = True

    @classmethod
    def parse(cls, members: Iterable[bytes], *, complete: bool = True) -> Marks:
        """Parse members of the index. A member that is no mark, or whose count does not rise, is left out."""
        sequences, counts = [0], [0]
        for member in members:
            if _MARK.fullmatch(member):
                sequence, count = sequence_number(member[:20]), int(member[21:])
                if sequence > sequences[-1] and count > counts[-1]:
                    sequences.append(sequence)
                    counts.append(count)
        return cls(np.array(sequences[1:], np.int64), np.array(counts[1:], np.int64), complete)

    def __len__(self) -> int:
        return len(self.sequences)

    def count_upto(self, sequence: int) -> int:
        """Return the number of arrivals up to the last mark that is not beyond a sequence; 0 before the first mark."""
        at = int(np.searchsorted(self.sequences, sequence, "right"))
        return int(self.counts[at - 1]) if at else 0

    def within(self, arrived: int) -> Marks:
        """Return the marks whose numbers are not beyond a number of arrivals."""
        end = int(np.searchsorted(self.counts, arrived, "right"))
        return Marks(self.sequences[:end], self.counts[:end], self.complete)

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
        return Marks(self.sequences[begin:end], self.counts[begin:end], self.complete or bool(end < len(self)))


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
            _log.warning("limits, partitions and counts do without the index of arrivals, and read more: %s", error)
            return None

    def _commands(self, request: MarkRequest) -> list[tuple[str | int, ...]]:
        """Two commands: scores are milliseconds, so marks of the first one may still lie before the range."""
        key, first, last = self._keys.key(request.queue, ARRIVALS), request.after[:13], request.upto[:13]
        return [
            ("ZRANGE", key, f"({first}", "-inf", "BYSCORE", "REV", "LIMIT", 0, 1),
            ("ZRANGE", key, first, last, "BYSCORE", "LIMIT", 0, request.most),
        ]
