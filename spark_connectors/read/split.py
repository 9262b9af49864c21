"""Cutting a log into parts of about equal size, without reading it.

Redis can tell neither the rank of an entry nor how many lie in a range. It can show what lies around a place, which
costs little: so places are looked at, evenly spread at first. What is seen there says how dense the log is around them,
that there is nothing between two of them, or, where the views overlap, exactly what is between them. Then more places
are looked at where most seems to be; and, while the sum falls short of what is known to be there, in the widest
stretches, where a burst may hide.

Pure: a place is a number (`ranges.position`), and `look` asks Redis.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from spark_connectors.ranges import FIRST_SERIAL, SERIALS


class View(NamedTuple):
    """What lies right before a place, and from it on. Both rise, and are short only where there is no more."""

    at: int
    left: Sequence[int]
    right: Sequence[int]


#: Looks at these places.
Look: TypeAlias = Callable[[Sequence[int]], list[View]]
#: Where a part ends (its last place), and how many rows it may have.
End: TypeAlias = tuple[int, int]

_MOST_LOOKS = 2048
_ROUND = 128
#: What a cut evenly in time may be off, as the views see it, to be taken for even.
_EVEN = 1.15
_ENOUGH = 0.9


def even_in_time(first: int, last: int, rows: int, parts: int) -> list[End]:
    """Cut `[first, last]` into parts of equal length."""
    return [(first + (last - first) * (i + 1) // parts, rows // parts) for i in range(parts)]


def estimate(look: Look, first: int, last: int, rows: int, after: int, upto: int) -> int:
    """About how many rows lie behind `after` and up to `upto`, of `rows` that lie in `[first, last]` in all."""
    survey = Survey(look, first, last, rows, 8)
    survey.run()
    _, inside = survey.sizes([after, upto])
    return min(rows, round(inside))


def by_density(look: Look, first: int, last: int, rows: int, parts: int, *, also_even: bool) -> list[End]:
    """Cut `[first, last]`, both of which are there, into parts that hold about as much. `rows` is how much is in all.

    With `also_even` a cut evenly in time is preferred where it seems as good.
    """
    survey = Survey(look, first, last, rows, parts)
    survey.run()
    if also_even:
        even = even_in_time(first, last, rows, parts)
        sizes = survey.sizes([end for end, _ in even])
        if max(sizes) * parts <= _EVEN * rows:
            return [(end, round(size)) for (end, _), size in zip(even, sizes, strict=True)]
    return survey.cut(parts)


@dataclass(slots=True)
class _Cell:
    """What lies from `low` to `high`, both of which are there. `rows` is an estimate unless `exact`."""

    low: int
    high: int
    rows: float
    exact: bool

    @property
    def width(self) -> int:
        return self.high - self.low


class Survey:
    """What is known of the log between two places."""

    def __init__(self, look: Look, first: int, last: int, rows: int, parts: int) -> None:
        self._look, self._known = look, rows
        self._first, self._last, self._parts = first, last, parts
        self._views: list[View] = []
        self._densities: dict[int, float] = {}
        self._cells: list[_Cell] = []
        self._budget = max(128, min(_MOST_LOOKS, rows // 100))

    @property
    def seen(self) -> float:
        """How many rows there seem to be."""
        return sum(cell.rows for cell in self._cells)

    def run(self) -> None:
        """Look as often as is worth it."""
        grid = min(self._budget // 2, max(16, 4 * self._parts))
        wanted = [self._first + (self._last - self._first) * i // grid for i in range(1, grid)]
        self._see([self._first, *wanted, self._last + 1])
        while wanted := self._worth():
            self._see(wanted)
        self._settle()

    def _see(self, places: Sequence[int]) -> None:
        self._budget -= len(places)
        new = self._look(sorted({place for place in places if place not in self._densities}))
        self._densities |= {view.at: _density(view) for view in new}
        self._views = sorted([*self._views, *new])
        cells = (
            _cell(a, b, self._densities[a.at], self._densities[b.at])
            for a, b in zip(self._views, self._views[1:], strict=False)
        )
        self._cells = [cell for cell in cells if cell is not None]

    def _worth(self) -> list[int]:
        """The places to look at next."""
        if self._budget <= 0:
            return []
        seen = self.seen
        share = max(seen, self._known) / (8 * self._parts)
        open_cells = [cell for cell in self._cells if not cell.exact and cell.width > 1]
        large = [cell for cell in open_cells if cell.rows > share]
        large.sort(key=lambda cell: -cell.rows)
        if seen < _ENOUGH * self._known:
            # a burst is hidden somewhere
            rest = [cell for cell in open_cells if cell.rows <= share]
            large += sorted(rest, key=lambda cell: -cell.width)[:_ROUND]
        return [_middle(cell) for cell in large[: min(self._budget, 2 * _ROUND)]]

    def _settle(self) -> None:
        """Make the estimates sum up to what is known."""
        exact = sum(cell.rows for cell in self._cells if cell.exact)
        guessed = sum(cell.rows for cell in self._cells if not cell.exact)
        rest, width = max(0, self._known - exact), sum(cell.width for cell in self._cells if not cell.exact)
        for cell in self._cells:
            if not cell.exact:
                if guessed > rest:
                    cell.rows *= rest / guessed
                else:
                    cell.rows += (rest - guessed) * cell.width / max(1, width)

    def sizes(self, ends: Sequence[int]) -> list[float]:
        """How many rows lie up to each of these ends, after the one before."""
        below = [self._below(end) for end in ends]
        return [upto - after for after, upto in zip([0.0, *below], below, strict=False)]

    def _below(self, place: int) -> float:
        total = 0.0
        for cell in self._cells:
            if cell.high <= place:
                total += cell.rows
            elif cell.low <= place:
                total += cell.rows * (place - cell.low + 1) / (cell.width + 1)
        return total

    def cut(self, parts: int) -> list[End]:
        """The ends of so many parts of equal size, or fewer."""
        total = self.seen
        ends: list[End] = []
        below, share = 0.0, total / parts
        for cell in self._cells:
            while len(ends) < parts - 1 and below + cell.rows >= share * (len(ends) + 1):
                inside = (share * (len(ends) + 1) - below) / max(cell.rows, 1e-9)
                end = cell.low + int((cell.width + 1) * inside) - 1
                ends.append((max(end, ends[-1][0] if ends else 0), round(share)))
            below += cell.rows
        return [*ends, (self._last, round(share))]


def _density(view: View) -> float:
    """Rows in each unit around a place: those of the whole milliseconds that the view covers.

    The serials of a millisecond run without gaps, so its last entry tells how many it has. The place was chosen without
    looking, so it lies in long gaps as often as they are long, and the mean over many places is right.
    """
    seen = [*view.left, *view.right]
    if not view.left or not view.right:
        return 0.0
    begin, end = seen[0] // SERIALS, seen[-1] // SERIALS
    if begin == end:
        return 1.0
    first_ms = [place for place in seen if place // SERIALS == begin]
    rows = first_ms[-1] % SERIALS - FIRST_SERIAL + 1
    rows += sum(1 for place in seen if begin < place // SERIALS < end)
    return rows / ((end - begin) * SERIALS)


def _cell(a: View, b: View, density_a: float, density_b: float) -> _Cell | None:
    """What is between two views; `None` if that is nothing."""
    if not a.right or not b.left or a.right[0] > b.left[-1]:
        return None
    low, high = a.right[0], b.left[-1]
    if a.right[-1] >= b.left[0] or a.right[-1] >= high:
        return _Cell(low, high, len({place for place in (*a.right, *b.left) if low <= place <= high}), exact=True)
    if low // SERIALS == high // SERIALS:
        return _Cell(low, high, high - low + 1, exact=True)
    some = [density for density in (density_a, density_b) if density]
    rows = (b.at - a.at) * sum(some) / max(1, len(some))
    at_least = len({*a.right, *b.left})
    block = high % SERIALS - FIRST_SERIAL + 1 if b.left[0] // SERIALS == high // SERIALS else 0
    return _Cell(low, high, max(rows, at_least, block), exact=False)


def _middle(cell: _Cell) -> int:
    """Where to look into a cell: the start of a millisecond, if there is one inside."""
    middle = (cell.low + cell.high) // 2
    start = middle // SERIALS * SERIALS
    return start if start > cell.low else (start + SERIALS if start + SERIALS <= cell.high else middle)
