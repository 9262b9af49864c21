"""Charts as numbers: points of lines, bars, labels of axes, and the table of the same. `charts.html` draws them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from itertools import pairwise
from math import isnan
from statistics import fmean, median
from typing import NamedTuple

from rqttl import text
from rqttl.dashboard.sampler import Points

#: The size of a chart and of a sparkline in units of SVG, and the rows of a table at most.
WIDTH, HEIGHT, SPARK_WIDTH, SPARK_HEIGHT, ROWS = 600, 150, 100, 20, 30


class Chart(NamedTuple):
    """Lines by the name of their series, each in pieces: a piece ends where numbers are missing.

    `x` and `y` are the labels of the axes, each a place and a text. `rows` are the table: a time, and the mean of each
    series, `None` where it has none.
    """

    lines: Mapping[str, Sequence[str]]
    x: Sequence[tuple[float, str]]
    y: Sequence[tuple[float, str]]
    rows: Sequence[tuple[str, Sequence[float | None]]]


def chart(points: Points, *names: str) -> Chart:
    """The chart of some series of a history, on one scale."""
    series = {name: points.series[name] for name in names}
    known = {name: [(i, n) for i, n in enumerate(numbers) if not isnan(n)] for name, numbers in series.items()}
    top = _round_up(max((n for pairs in known.values() for _, n in pairs), default=0))
    size = len(points.series[names[0]])
    lines = {name: [_points(piece, size, top) for piece in _pieces(pairs)] for name, pairs in known.items()}
    x = [(WIDTH * part / 4, _ago(points.seconds * size * (4 - part) / 4)) for part in range(5)]
    y = [(HEIGHT * (1 - part / 2), text.format_rate(top * part / 2).removesuffix(".0")) for part in range(3)]
    rows, together = [], -(-size // ROWS)
    for start in range(0, size, together):
        means = [_mean(numbers[start : start + together]) for numbers in series.values()]
        if any(mean is not None for mean in means):
            rows.append((_ago(points.seconds * (size - start)), means))
    return Chart(lines, x, y, rows)


def spark(depths: Sequence[float]) -> str:
    """The points of a small line without axes; empty without two numbers."""
    top = max(*depths, 1) if depths else 1
    return _points([*enumerate(depths)], len(depths), top, SPARK_WIDTH, SPARK_HEIGHT) if len(depths) > 1 else ""


def bars(numbers: Mapping[str, int]) -> list[tuple[str, int, float, float, float, float]]:
    """A bar for each number, on one scale: label, number, x, y, width, height. Few bars do not fill the width."""
    top, room = _round_up(max(numbers.values(), default=0)), round(WIDTH / max(12, len(numbers)), 1)
    heights = [round(HEIGHT * number / top, 1) for number in numbers.values()]
    pairs = zip(numbers.items(), heights, strict=True)
    return [(*pair, i * room, HEIGHT - high, room * 0.8, high) for i, (pair, high) in enumerate(pairs)]


def _pieces(known: Sequence[tuple[int, float]]) -> Iterator[list[tuple[int, float]]]:
    """Numbers with their slots, parted where they are missing for longer than they usually are."""
    usual, piece = median([b[0] - a[0] for a, b in pairwise(known)] or [1]), list(known[:1])
    for before, after in pairwise(known):
        if after[0] - before[0] > max(3, 2 * usual):
            yield piece
            piece = []
        piece.append(after)
    if piece:
        yield piece


def _points(piece: Sequence[tuple[int, float]], size: int, top: float, width: int = WIDTH, height: int = HEIGHT) -> str:
    step = width / max(1, size - 1)
    points = [f"{slot * step:.0f},{height * (1 - n / top):.1f}" for slot, n in piece]
    return " ".join(points * 2 if len(points) == 1 else points)  # a line of no length is a dot


def _round_up(n: float) -> float:
    """The next number of 1, 2 or 5 and zeros, at least 1."""
    power = 10.0 ** max(0, len(str(int(n))) - 1)
    return next(power * digit for digit in (1, 2, 5, 10) if power * digit >= n)


def _mean(numbers: Sequence[float]) -> float | None:
    known = [n for n in numbers if not isnan(n)]
    return fmean(known) if known else None


def _ago(seconds: float) -> str:
    return f"{text.format_age(timedelta(seconds=seconds))} ago" if seconds else "now"
