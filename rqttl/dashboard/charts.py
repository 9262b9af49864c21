"""Charts as numbers: points of lines, bars, labels of axes, and the table of the same. `charts.html` draws them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from itertools import pairwise
from math import isnan
from statistics import fmean, median
from typing import TYPE_CHECKING, NamedTuple

from rqttl import text

if TYPE_CHECKING:
    from rqttl.dashboard.sampler import Points

#: The size of a chart and of a sparkline in units of SVG, and the rows of a table at most.
WIDTH, HEIGHT, ROWS = 600, 150, 30
SPARK_WIDTH, SPARK_HEIGHT = 100, 20


class Label(NamedTuple):
    """A text at a place of an axis."""

    at: float
    text: str


class Chart(NamedTuple):
    """Lines by the name of their series, each in pieces: a piece ends where numbers are missing.

    `x` and `y` label the axes. `rows` are the table: a time, and the mean of each series, `None` where it has none.
    """

    lines: Mapping[str, Sequence[str]]
    x: Sequence[Label]
    y: Sequence[Label]
    rows: Sequence[tuple[str, Sequence[float | None]]]
    width: int = WIDTH
    height: int = HEIGHT


class Bar(NamedTuple):
    """One bar, and what it stands for."""

    x: float
    y: float
    width: float
    height: float
    label: str
    number: int


def chart(points: Points, *names: str) -> Chart:
    """The chart of some series of a history, on one scale."""
    chosen = {name: points.series[name] for name in names}
    top = _round_up(max((n for numbers in chosen.values() for n in numbers if not isnan(n)), default=0))
    size = len(points.series[names[0]])
    step = WIDTH / max(1, size - 1)
    lines = {name: [_piece(piece, step, top) for piece in _pieces(numbers)] for name, numbers in chosen.items()}
    x = [Label(WIDTH * part / 4, _ago(points.seconds * size * (4 - part) / 4)) for part in range(5)]
    y = [Label(HEIGHT - HEIGHT * part / 2, format_number(top * part / 2)) for part in range(3)]
    together = -(-size // ROWS)
    rows = []
    for start in range(0, size, together):
        means = [_mean(numbers[start : start + together]) for numbers in chosen.values()]
        if any(mean is not None for mean in means):
            rows.append((_ago(points.seconds * (size - start)), means))
    return Chart(lines, x, y, rows)


def spark(depths: Sequence[float]) -> str:
    """The points of a small line without axes; empty without two numbers."""
    if len(depths) < 2:
        return ""
    top, step = max(*depths, 1), SPARK_WIDTH / (len(depths) - 1)
    return " ".join(f"{i * step:.0f},{SPARK_HEIGHT - SPARK_HEIGHT * n / top:.1f}" for i, n in enumerate(depths))


def bars(numbers: Mapping[str, int]) -> list[Bar]:
    """A bar for each number, on one scale. Few bars do not fill the width."""
    top, room = _round_up(max(numbers.values(), default=0)), WIDTH / max(12, len(numbers))
    found = []
    for i, (label, number) in enumerate(numbers.items()):
        height = round(HEIGHT * number / top, 1)
        found.append(Bar(round(i * room, 1), HEIGHT - height, round(room * 0.8, 1), height, label, number))
    return found


def format_number(n: float | None) -> str:
    """A depth or a rate: as on the command line only 0 is shown as 0."""
    if n is None or not n:
        return "-" if n is None else "0"
    return f"{n:,.0f}" if n >= 9.95 or n == round(n) else f"{n:.1f}" if n >= 0.05 else "<0.1"


def _pieces(numbers: Sequence[float]) -> Iterator[list[tuple[int, float]]]:
    """The known numbers with their slots, parted where they are missing for longer than they usually are."""
    known = [(slot, n) for slot, n in enumerate(numbers) if not isnan(n)]
    usual = median([b[0] - a[0] for a, b in pairwise(known)] or [1])
    piece: list[tuple[int, float]] = []
    for slot, n in known:
        if piece and slot - piece[-1][0] > max(3, 2 * usual):
            yield piece
            piece = []
        piece.append((slot, n))
    if piece:
        yield piece


def _piece(piece: list[tuple[int, float]], step: float, top: float) -> str:
    points = [f"{slot * step:.0f},{HEIGHT - HEIGHT * n / top:.1f}" for slot, n in piece]
    return " ".join(points * 2 if len(points) == 1 else points)  # a line of no length is a dot


def _round_up(n: float) -> float:
    """The next number of 1, 2 or 5 and zeros, at least 1."""
    power = 1.0
    while power * 10 < n:
        power *= 10
    return next(power * digit for digit in (1, 2, 5, 10) if power * digit >= n)


def _mean(numbers: Sequence[float]) -> float | None:
    known = [n for n in numbers if not isnan(n)]
    return fmean(known) if known else None


def _ago(seconds: float) -> str:
    return f"{text.format_age(timedelta(seconds=seconds))} ago" if seconds else "now"
