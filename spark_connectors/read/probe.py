"""Looking into a log at some places, for `split`: what lies around them is asked for, the bodies are thrown away."""

from __future__ import annotations

from collections.abc import Sequence

from rqttl.keys import Keyspace
from spark_connectors.ranges import Range, position, sequence
from spark_connectors.read import split
from spark_connectors.read.split import View
from spark_connectors.redis.bulk_reader import Wire
from spark_connectors.redis.pages import Entry

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
        #: The first and the last entry; `None` if there is none.
        self.bounds: tuple[int, int] | None = None
        first: list[Entry] = wire.ask("XRANGE", self._key, f"({found.after}", found.upto, "COUNT", self._seen)
        if first:
            self._measure([first])
            last = wire.ask("XREVRANGE", self._key, found.upto, first[0][0], "COUNT", 1)
            self.bounds = position(first[0][0]), position(last[0][0]) if last else position(first[0][0])

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
        """What lies around these places, which rise.

        There is nothing before the first entry, and that is not asked for: Redis would walk through the whole log.
        """
        first = self.bounds[0] if self.bounds else 0
        views: list[View] = []
        for start in range(0, len(places), _ROUND):
            some = places[start : start + _ROUND]
            behind = [place for place in some if place > first]
            calls = [self._words("XREVRANGE", f"({sequence(place)}", f"({self._range.after}") for place in behind]
            calls += [self._words("XRANGE", sequence(place), self._range.upto) for place in some]
            pages = self._wire.ask_all(calls)
            self._measure(pages)
            lefts = [()] * (len(some) - len(behind)) + [page[::-1] for page in pages[: len(behind)]]
            for place, left, right in zip(some, lefts, pages[len(behind) :], strict=True):
                views.append(View(place, [position(one[0]) for one in left], [position(one[0]) for one in right]))
        return views

    def _words(self, command: str, begin: str, end: str) -> tuple[str | int, ...]:
        return command, self._key, begin, end, "COUNT", self._seen

    def _measure(self, pages: Sequence[Sequence[Entry]]) -> None:
        entries = [entry for page in pages for entry in page]
        if entries:
            size = sum(len(entry[1][0]) + len(entry[1][-1]) for entry in entries) / len(entries) + _OVERHEAD
            self._seen = max(1, min(_MOST_SEEN, int(_LOOK_BYTES / size / 2)))
