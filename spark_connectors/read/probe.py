"""Probes of a log for `split`: they read the entries around some sequences, and use only the sequences of these."""

from __future__ import annotations

from collections.abc import Sequence

from rqttl.protocol.keys import LOG, Keyspace
from spark_connectors.ranges import Range, sequence_number, sequence_text
from spark_connectors.read import split
from spark_connectors.read.split import View
from spark_connectors.redis.bulk_reader import BulkReader
from spark_connectors.redis.pages import Entry

#: Bytes that one probe may transfer, and the largest number of entries on either side of it.
_PROBE_BYTES = 8192
_MAX_ENTRIES = 14
_FIRST_ENTRIES = 2
_PROBES_AT_ONCE = 64
_ENTRY_OVERHEAD = 40


class LogProbe:
    """Probes the part of a log that lies in a range."""

    def __init__(self, reader: BulkReader, keys: Keyspace, whole: Range) -> None:
        self._reader, self._range = reader, whole
        self._key = keys.key(whole.queue, LOG)
        self._entries = _FIRST_ENTRIES
        #: The sequence numbers of the first and the last entry; `None` for no entries.
        self.bounds: tuple[int, int] | None = None
        first: list[Entry] = reader.execute("XRANGE", self._key, f"({whole.after}", whole.upto, "COUNT", self._entries)
        if first:
            self._measure([first])
            last = reader.execute("XREVRANGE", self._key, whole.upto, first[0][0], "COUNT", 1)
            begin = sequence_number(first[0][0])
            self.bounds = begin, sequence_number(last[0][0]) if last else begin

    def estimate_rows(self, part: Range) -> int:
        """Estimate the number of entries in a part of the range."""
        if self.bounds is None:
            return 0
        after, upto = sequence_number(part.after), sequence_number(part.upto)
        return split.estimate_rows(self._probe, *self.bounds, self._range.rows, after, upto)

    def split(self, parts: int) -> list[Range]:
        """Split the range into parts of about equal size."""
        if self.bounds is None:
            return [self._range]
        return self._range.cut(split.by_density(self._probe, *self.bounds, self._range.rows, parts))

    def _probe(self, points: Sequence[int]) -> list[View]:
        """Read the entries around these sequence numbers, which rise.

        A read before the first entry would make Redis walk through the whole log, so there is none.
        """
        first = self.bounds[0] if self.bounds else 0
        views: list[View] = []
        for start in range(0, len(points), _PROBES_AT_ONCE):
            chunk = points[start : start + _PROBES_AT_ONCE]
            inside = [point for point in chunk if point > first]
            commands = [
                self._command("XREVRANGE", f"({sequence_text(point)}", f"({self._range.after}") for point in inside
            ]
            commands += [self._command("XRANGE", sequence_text(point), self._range.upto) for point in chunk]
            replies = self._reader.execute_all(commands)
            self._measure(replies)
            lefts = [()] * (len(chunk) - len(inside)) + [reply[::-1] for reply in replies[: len(inside)]]
            for point, left, right in zip(chunk, lefts, replies[len(inside) :], strict=True):
                views.append(View(point, _numbers(left), _numbers(right)))
        return views

    def _command(self, name: str, begin: str, end: str) -> tuple[str | int, ...]:
        return name, self._key, begin, end, "COUNT", self._entries

    def _measure(self, replies: Sequence[Sequence[Entry]]) -> None:
        entries = [entry for reply in replies for entry in reply]
        if entries:
            size = sum(len(entry[1][0]) + len(entry[1][-1]) for entry in entries) / len(entries) + _ENTRY_OVERHEAD
            self._entries = max(1, min(_MAX_ENTRIES, int(_PROBE_BYTES / size / 2)))


def _numbers(entries: Sequence[Entry]) -> list[int]:
    return [sequence_number(entry[0]) for entry in entries]
