"""Splits of a log into parts of about equal size, without a read of the whole log.

Redis knows neither the rank of an entry nor the number of entries in a range. But it can cheaply show the entries
around a point. The first probes are spread evenly. Each view shows the density of the log around its point. Two views
with nothing between them show a gap. Two overlapping views show all entries between their points. Further probes go to
the largest cells; while the sum is below the known number of rows, also to the widest cells, which may hide a burst.

Pure: a point is a sequence as a number (`ranges.sequence_number`), and a function reads the views from Redis.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from spark_connectors.ranges import FIRST_SERIAL, SERIALS


class View(NamedTuple):
    """The entries right before a point, and from it on. Both rise, and are short only at an end of the range."""

    point: int
    left: Sequence[int]
    right: Sequence[int]


#: Reads the views at these points.
Probe: TypeAlias = Callable[[Sequence[int]], list[View]]
#: The end of a part: its last sequence as a number, and an estimate of its rows.
PartEnd: TypeAlias = tuple[int, int]

_MAX_PROBES = 2048
_ROUND = 128
_ENOUGH = 0.9


def estimate_rows(probe: Probe, first: int, last: int, rows: int, after: int, upto: int) -> int:
    """Estimate the rows in `(after, upto]`, given the number of `rows` in `[first, last]`."""
    survey = Survey(probe, first, last, rows, 8)
    survey.run()
    _, inside = survey.sizes([after, upto])
    return min(rows, round(inside))


def by_density(probe: Probe, first: int, last: int, rows: int, parts: int) -> list[PartEnd]:
    """Split `[first, last]` into parts of about equal size. Both are entries, and `rows` is the total."""
    survey = Survey(probe, first, last, rows, parts)
    survey.run()
    return survey.split(parts)


@dataclass(slots=True)
class _Cell:
    """The entries from `low` to `high`, both of which exist. `rows` is an estimate unless `exact`."""

    low: int
    high: int
    rows: float
    exact: bool

    @property
    def width(self) -> int:
        return self.high - self.low


class Survey:
    """Estimates of the entries between two points, which improve with each probe."""

    def __init__(self, probe: Probe, first: int, last: int, rows: int, parts: int) -> None:
        self._probe, self._total = probe, rows
        self._first, self._last, self._parts = first, last, parts
        self._views: list[View] = []
        self._densities: dict[int, float] = {}
        self._cells: list[_Cell] = []
        self._budget = max(128, min(_MAX_PROBES, rows // 100))

    @property
    def estimated_rows(self) -> float:
        """The sum of the rows of all cells."""
        return sum(cell.rows for cell in self._cells)

    def run(self) -> None:
        """Probe until further probes are not worth their cost."""
        grid = min(self._budget // 2, max(16, 4 * self._parts))
        points = [self._first + (self._last - self._first) * i // grid for i in range(1, grid)]
        self._add_views([self._first, *points, self._last + 1])
        while points := self._next_points():
            self._add_views(points)
        self._scale_to_total()

    def _add_views(self, points: Sequence[int]) -> None:
        self._budget -= len(points)
        views = self._probe(sorted({point for point in points if point not in self._densities}))
        self._densities |= {view.point: _density(view) for view in views}
        self._views = sorted([*self._views, *views])
        cells = (
            _cell(a, b, self._densities[a.point], self._densities[b.point])
            for a, b in zip(self._views, self._views[1:], strict=False)
        )
        self._cells = [cell for cell in cells if cell is not None]

    def _next_points(self) -> list[int]:
        """Choose the points of the next probes."""
        if self._budget <= 0:
            return []
        estimated = self.estimated_rows
        share = max(estimated, self._total) / (8 * self._parts)
        open_cells = [cell for cell in self._cells if not cell.exact and cell.width > 1]
        cells = [cell for cell in open_cells if cell.rows > share]
        cells.sort(key=lambda cell: -cell.rows)
        if estimated < _ENOUGH * self._total:
            # some cell hides a burst
            small = [cell for cell in open_cells if cell.rows <= share]
            cells += sorted(small, key=lambda cell: -cell.width)[:_ROUND]
        return [_middle(cell) for cell in cells[: min(self._budget, 2 * _ROUND)]]

    def _scale_to_total(self) -> None:
        """Scale the estimates so that their sum is the known total."""
        exact = sum(cell.rows for cell in self._cells if cell.exact)
        estimated = sum(cell.rows for cell in self._cells if not cell.exact)
        left, width = max(0, self._total - exact), sum(cell.width for cell in self._cells if not cell.exact)
        for cell in self._cells:
            if not cell.exact:
                if estimated > left:
                    cell.rows *= left / estimated
                else:
                    cell.rows += (left - estimated) * cell.width / max(1, width)

    def sizes(self, ends: Sequence[int]) -> list[float]:
        """Estimate the rows of each part, given the ends of the parts."""
        below = [self._rows_upto(end) for end in ends]
        return [upto - after for after, upto in zip([0.0, *below], below, strict=False)]

    def _rows_upto(self, point: int) -> float:
        total = 0.0
        for cell in self._cells:
            if cell.high <= point:
                total += cell.rows
            elif cell.low <= point:
                total += cell.rows * (point - cell.low + 1) / (cell.width + 1)
        return total

    def split(self, parts: int) -> list[PartEnd]:
        """Return the ends of this number of parts of equal size, or of fewer."""
        total = self.estimated_rows
        ends: list[PartEnd] = []
        below, share = 0.0, total / parts
        for cell in self._cells:
            while len(ends) < parts - 1 and below + cell.rows >= share * (len(ends) + 1):
                inside = (share * (len(ends) + 1) - below) / max(cell.rows, 1e-9)
                end = cell.low + int((cell.width + 1) * inside) - 1
                ends.append((max(end, ends[-1][0] if ends else 0), round(share)))
            below += cell.rows
        return [*ends, (self._last, round(share))]


def _density(view: View) -> float:
    """Return the rows in each unit around a point, from the whole milliseconds that the view covers.

    The serials of a millisecond have no gaps, so its last entry tells its number of entries. The points are chosen
    without regard to the entries. So they fall into a gap in proportion to its length, and the mean over many points is
    right.
    """
    numbers = [*view.left, *view.right]
    if not view.left or not view.right:
        return 0.0
    begin, end = numbers[0] // SERIALS, numbers[-1] // SERIALS
    if begin == end:
        return 1.0
    first_ms = [number for number in numbers if number // SERIALS == begin]
    rows = first_ms[-1] % SERIALS - FIRST_SERIAL + 1
    rows += sum(1 for number in numbers if begin < number // SERIALS < end)
    return rows / ((end - begin) * SERIALS)


def _cell(a: View, b: View, density_a: float, density_b: float) -> _Cell | None:
    """Return the cell between two views; `None` for no entries between them."""
    if not a.right or not b.left or a.right[0] > b.left[-1]:
        return None
    low, high = a.right[0], b.left[-1]
    if a.right[-1] >= b.left[0] or a.right[-1] >= high:
        return _Cell(low, high, len({number for number in (*a.right, *b.left) if low <= number <= high}), exact=True)
    if low // SERIALS == high // SERIALS:
        return _Cell(low, high, high - low + 1, exact=True)
    densities = [density for density in (density_a, density_b) if density]
    rows = (b.point - a.point) * sum(densities) / max(1, len(densities))
    at_least = len({*a.right, *b.left})
    last_ms = high % SERIALS - FIRST_SERIAL + 1 if b.left[0] // SERIALS == high // SERIALS else 0
    return _Cell(low, high, max(rows, at_least, last_ms), exact=False)


def _middle(cell: _Cell) -> int:
    """Return the point of a probe into a cell: the start of a millisecond in it, if there is one."""
    middle = (cell.low + cell.high) // 2
    start = middle // SERIALS * SERIALS
    return start if start > cell.low else (start + SERIALS if start + SERIALS <= cell.high else middle)
