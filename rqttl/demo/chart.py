"""The picture of the Spark report: how many boarding calls of each carrier died in which hour. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rqttl.demo.report import Hours

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_INK, _MUTED, _BAR, _NONE = "#222222", "#666666", "#5b7ea8", "#f6f6f6"


def draw(path: Path, carriers: Mapping[str, Hours], names: Mapping[str, str]) -> None:
    """Draw the counts of at least one carrier as a PNG, in their order. Raises `ImportError` or `OSError`."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    all_hours = sorted({hour for hours in carriers.values() for hour in hours})
    hours = range(all_hours[0], all_hours[-1] + 1)
    rows = [[counts.get(hour, 0) for hour in hours] for counts in carriers.values()]
    figure = Figure(figsize=(2.6 + 0.52 * len(hours), 2.4 + 0.34 * len(rows)), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[1.1, max(1.0, 0.34 * len(rows))])
    _bars(above, [sum(column) for column in zip(*rows, strict=True)])
    _cells(below, rows, [f"{names.get(carrier, carrier)}  {carrier}" for carrier in carriers])
    below.set_xticks(range(len(hours)), [f"{hour:02}" for hour in hours])
    below.set_xlabel("hour of the scheduled departure", color=_MUTED)
    total = sum(map(sum, rows))
    figure.suptitle(f"Boarding calls that died, by carrier and hour: {total:,}", color=_INK)
    figure.savefig(path, format="png", bbox_inches="tight", pad_inches=0.2)


def _bars(axes: Axes, totals: Sequence[int]) -> None:
    """Draw a bar for the sum of each hour."""
    bars = axes.bar(range(len(totals)), totals, width=0.82, color=_BAR)
    axes.bar_label(bars, [f"{total:,}" for total in totals], fontsize=7, color=_MUTED, padding=2)
    axes.set_yticks([])
    axes.margins(y=0.2)
    axes.tick_params(bottom=False)
    axes.spines[:].set_visible(False)
    axes.set_ylabel("all", rotation=0, ha="right", va="center", color=_MUTED)


def _cells(axes: Axes, rows: Sequence[Sequence[int]], labels: Sequence[str]) -> None:
    """Draw a cell for each carrier and hour, with its number: the darker the more."""
    from matplotlib import colormaps

    most = max(map(max, rows))
    axes.imshow(rows, cmap=colormaps["YlOrRd"].with_extremes(under=_NONE), vmin=0.5, vmax=most, aspect="auto")
    for y, row in enumerate(rows):
        for x, number in enumerate(row):
            if number:
                color = "white" if number > most * 0.6 else _INK
                axes.text(x, y, f"{number:,}", ha="center", va="center", fontsize=7, color=color)
    axes.set_yticks(range(len(rows)), labels)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
