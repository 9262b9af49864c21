"""Looking into a log at some places, for `split`: what lies around them is asked for, the bodies are thrown away."""

from __future__ import annotations

from collections.abc import Sequence

from rqttl.keys import Keyspace
from spark_connectors import split
from spark_connectors.ranges import Range, position, sequence
from spark_connectors.split import View
from spark_connectors.wire import Entry, Wire

#: Bytes that one look may transfer, and the most entries that it shows on either side.
_LOOK_BYTES = 8192
_MOST_SEEN = 14
_FIRST_SEEN = 2
_ROUND = 64
_OVERHEAD = 40


class Log:
    """The part of a log that lies in a range."""

    def __init__(self, wire: Wire, keys: Keyspace, found: Range) -> None:
        self._wire, self._range = wire, found
        self._key = keys.key(found.queue, "log")
        self._seen = _FIRST_SEEN
        after, upto = self._look([position(found.after) + 1, position(found.upto) + 1])
        #: The first and the last entry; `None` if there is none.
        self.bounds = (after.right[0], upto.left[-1]) if after.right and upto.left else None

    def estimate(self, part: Range) -> int:
        """About how many entries lie in a part of the range."""
        if self.bounds is None:
            return 0
        return split.estimate(self._look, *self.bounds, self._range.rows, position(part.after), position(part.upto))

    def cut(self, parts: int, method: str) -> list[Range]:
        """The range in parts that hold about as many entries each, by one of the values of `splitMethod`."""
        if self.bounds is None or method == "none":
            return [self._range]
        first, last = self.bounds
        if method == "time":
            return self._range.cut(split.even_in_time(first, last, self._range.rows, parts))
        also_even = method == "auto"
        return self._range.cut(split.by_density(self._look, first, last, self._range.rows, parts, also_even=also_even))

    def _look(self, places: Sequence[int]) -> list[View]:
        views: list[View] = []
        for start in range(0, len(places), _ROUND):
            some = places[start : start + _ROUND]
            pages = self._wire.ask_all([words for place in some for words in self._words(sequence(place))])
            self._measure(pages)
            for i, place in enumerate(some):
                left, right = pages[2 * i][::-1], pages[2 * i + 1]
                views.append(View(place, [position(one[0]) for one in left], [position(one[0]) for one in right]))
        return views

    def _words(self, place: str) -> tuple[tuple[str | int, ...], tuple[str | int, ...]]:
        after, upto = f"({self._range.after}", self._range.upto
        return (
            ("XREVRANGE", self._key, f"({place}", after, "COUNT", self._seen),
            ("XRANGE", self._key, place, upto, "COUNT", self._seen),
        )

    def _measure(self, pages: Sequence[Sequence[Entry]]) -> None:
        entries = [entry for page in pages for entry in page]
        if entries:
            size = sum(len(entry[1][0]) + len(entry[1][-1]) for entry in entries) / len(entries) + _OVERHEAD
            self._seen = max(1, min(_MOST_SEEN, int(_LOOK_BYTES / size / 2)))
