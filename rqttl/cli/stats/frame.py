"""One frame of `rqttl stats --watch`, as lines that fit a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timezone
from typing import Literal, NamedTuple

from rqttl.cli.common import text
from rqttl.cli.stats.table import RATES, Column, Glyphs, sparkline, table
from rqttl.cli.stats.trend import Row, Trend, depth

#: Columns of text that bars take, at least and at most.
BARS = (8, 24)


class Line(NamedTuple):
    """A line of a frame, and how it is to be shown."""

    text: str
    style: Literal["", "bold", "alarm"] = ""


def _rate_of(row: Row) -> float:
    return row.rates["in"] + row.rates["out"] if row.rates else 0.0


def _age(row: Row) -> float:
    age = row.stats.oldest_ready_age
    return -1.0 if age is None else age.total_seconds()


#: What to sort by, the largest first; equal ones stay in the order of their names.
SORTS: dict[str, Callable[[Row], float]] = {
    "name": lambda _: 0,
    "depth": lambda row: depth(row.stats),
    "age": _age,
    "rate": _rate_of,
    "dead": lambda row: row.rates["dead"] if row.rates else sum(row.stats.deaths.values()),
    "overdue": lambda row: row.stats.overdue.total_seconds(),
}


def ordered(rows: list[Row], sort: str) -> list[Row]:
    """The rows, the largest first."""
    return sorted(rows, key=lambda row: -SORTS[sort](row))


@dataclass(frozen=True, slots=True)
class Setting:
    """How a frame is drawn. `width` and `height` are `None` where there is no terminal."""

    interval: str
    sort: str
    glyphs: Glyphs
    width: int | None = None
    height: int | None = None

    def sized(self, width: int, height: int) -> Setting:
        """The same on a terminal of this size."""
        return replace(self, width=width, height=height)


def frame(trend: Trend, setting: Setting, troubles: Sequence[str] = ()) -> list[Line]:
    """What a watch shows: a title, what is wrong (`troubles`, and what the looks tell), the queues and their sum.

    Queues for which there is no line are counted in one.
    """
    rows = ordered(trend.rows(), setting.sort)
    lines = [Line(_title(trend, setting, len(rows)), "bold"), *_alarms(trend, setting, troubles)]
    room = None if setting.height is None else max(1, setting.height - len(lines) - 1 - (len(rows) > 1))
    hidden = 0
    if room is not None and len(rows) > room:
        hidden = len(rows) - max(1, room - 1)
    if rows:
        shown = rows[: len(rows) - hidden]
        lines += _table(trend, setting, shown, text.plural(len(rows), "queue"))
        if hidden:
            rest = sum(depth(row.stats) for row in rows[len(shown) :])
            lines.insert(-1, Line(_within(_not_shown(hidden, rest, setting), setting)))
        if len(rows) == 1:
            lines.pop()
    return lines if setting.height is None else lines[: setting.height]


def _not_shown(hidden: int, rest: int, setting: Setting) -> str:
    return f"({text.plural(hidden, 'queue')} not shown, {text.plural(rest, 'message')}; sorted by {setting.sort})"


def _title(trend: Trend, setting: Setting, queues: int) -> str:
    """As much of the title as there is room for."""
    at = trend.look.at.astimezone(timezone.utc)
    reapers = trend.look.reapers
    parts = [
        f"{at:%Y-%m-%d %H:%M:%S}Z",
        text.plural(queues, "queue") if queues else "no queue",
        f"every {setting.interval}",
        "" if reapers is None else text.plural(reapers, "reaper") if reapers else "no reaper",
    ]
    between = f" {setting.glyphs.dot} "
    said = parts[0]
    for part in filter(None, parts[1:]):
        if setting.width is None or len(said) + len(between) + len(part) <= setting.width:
            said += between + part
    return _within(said, setting)


def _alarms(trend: Trend, setting: Setting, troubles: Sequence[str]) -> list[Line]:
    damaged = [str(error) for _, error in sorted(trend.look.damaged.items())]
    found = [text.visible(said) for said in (*troubles, *damaged, trend.warning()) if said]
    width = setting.width or 10_000
    return [Line(line, "alarm") for said in found for line in textwrap.wrap(said, width)[:3]]


def _within(said: str, setting: Setting) -> str:
    return said if setting.width is None else said[: setting.width]


def _table(trend: Trend, setting: Setting, rows: list[Row], name: str) -> list[Line]:
    """The head, the rows, and the sum of all queues, also of those that are not among the rows."""
    total = trend.total(name)
    widest = max(len(row.name) for row in (*rows, total))
    free = 10_000 if setting.width is None else setting.width - widest - sum(one.least + 1 for one in RATES) - 1
    width = max(BARS[0], min(BARS[1], free))

    def bars(row: Row) -> str:
        return sparkline(row.depths, width, setting.glyphs.bars)

    columns = (*RATES, Column("depth", 4, bars, width))
    shown = table(columns, rows, total, setting.width, gap=1, cut=setting.glyphs.cut)
    cut = [Line(_within(line, setting)) for line in shown.body]
    return [Line(_within(shown.head, setting), "bold"), *cut, Line(_within(shown.foot, setting), "bold")]
