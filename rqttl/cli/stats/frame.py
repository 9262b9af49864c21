"""A frame of `rqttl stats --watch`, as lines that fit a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timezone
from typing import Literal, NamedTuple

from rqttl import text
from rqttl.cli.stats.table import RATES, Column, Glyphs, sparkline, table
from rqttl.inspector.queues import Row, Trend, deaths

#: The narrowest and the widest column of bars, in cells.
BARS = (8, 24)


class Line(NamedTuple):
    """A line of a frame, and its style."""

    text: str
    style: Literal["", "bold", "alarm"] = ""


def _rate_of(row: Row) -> float:
    return row.rates["in"] + row.rates["out"] if row.rates else 0.0


def _age(row: Row) -> float:
    age = row.stats.oldest_ready_age
    return -1.0 if age is None else age.total_seconds()


#: Sort keys, the largest first; equal queues stay in the order of their names.
SORTS: dict[str, Callable[[Row], float]] = {
    "name": lambda _: 0,
    "depth": lambda row: row.stats.depth,
    "age": _age,
    "rate": _rate_of,
    "dead": lambda row: row.rates["dead"] if row.rates else deaths(row.stats),
    "overdue": lambda row: row.stats.overdue.total_seconds(),
}


def sort_rows(rows: list[Row], sort: str) -> list[Row]:
    """The rows, the largest first."""
    return sorted(rows, key=lambda row: -SORTS[sort](row))


@dataclass(frozen=True, slots=True)
class FrameSettings:
    """The size, order and characters of a frame. `width` and `height` are `None` without a terminal."""

    interval: str
    sort: str
    glyphs: Glyphs
    width: int | None = None
    height: int | None = None

    def sized(self, width: int, height: int) -> FrameSettings:
        """The same settings for a terminal of this size."""
        return replace(self, width=width, height=height)


def frame(trend: Trend, settings: FrameSettings, troubles: Sequence[str] = ()) -> list[Line]:
    """The lines of a frame: a title, alarms (`troubles`, late work), the queues and their total.

    One line counts the queues for which there is no room.
    """
    rows = sort_rows(trend.rows(), settings.sort)
    lines = [*_title(trend, settings, len(rows)), *_alarms(trend, settings, troubles)]
    room = None if settings.height is None else max(1, settings.height - len(lines) - 1 - (len(rows) > 1))
    hidden = 0
    if room is not None and len(rows) > room:
        hidden = len(rows) - max(1, room - 1)
    if rows:
        visible = rows[: len(rows) - hidden]
        lines += _table(trend, settings, visible, text.plural(len(rows), "queue"))
        if hidden:
            messages = sum(row.stats.depth for row in rows[len(visible) :])
            lines.insert(-1, Line(_cut(_hidden_line(hidden, messages, settings), settings)))
        if len(rows) == 1:
            lines.pop()
    return lines if settings.height is None else lines[: settings.height]


def _hidden_line(queues: int, messages: int, settings: FrameSettings) -> str:
    return f"({text.plural(queues, 'queue')} not shown, {text.plural(messages, 'message')}; sorted by {settings.sort})"


def _title(trend: Trend, settings: FrameSettings, queues: int) -> list[Line]:
    """The title, on a narrow terminal in several lines."""
    at = trend.snapshot.at.astimezone(timezone.utc)
    reapers = trend.snapshot.reapers
    parts = [
        f"{at:%Y-%m-%d %H:%M:%S}Z",
        text.plural(queues, "queue") if queues else "no queue",
        f"every {settings.interval}",
        "" if reapers is None else text.plural(reapers, "reaper") if reapers else "no reaper",
    ]
    between = f" {settings.glyphs.dot} "
    titles = parts[:1]
    for part in filter(None, parts[1:]):
        if settings.width is None or len(titles[-1]) + len(between) + len(part) <= settings.width:
            titles[-1] += between + part
        else:
            titles.append(part)
    return [Line(_cut(title, settings), "bold") for title in titles]


def _alarms(trend: Trend, settings: FrameSettings, troubles: Sequence[str]) -> list[Line]:
    late = trend.late_work()
    alarms = [text.escape(alarm) for alarm in (*troubles, late.advice if late else "") if alarm]
    width = settings.width or 10_000
    return [Line(line, "alarm") for alarm in alarms for line in textwrap.wrap(alarm, width)[:3]]


def _cut(line: str, settings: FrameSettings) -> str:
    return line if settings.width is None else line[: settings.width]


def _table(trend: Trend, settings: FrameSettings, rows: list[Row], name: str) -> list[Line]:
    """The head, the rows, and the total of all queues, also of the hidden ones."""
    total = trend.total(name)
    widest = max(len(row.name) for row in (*rows, total))
    free = 10_000 if settings.width is None else settings.width - widest - sum(column.least + 1 for column in RATES) - 1
    width = max(BARS[0], min(BARS[1], free))

    def bars(row: Row) -> str:
        return sparkline(row.depths, width, settings.glyphs.bars)

    columns = (*RATES, Column("depth", 4, bars, width))
    lines = table(columns, rows, total, settings.width, gap=1, cut=settings.glyphs.cut)
    body = [Line(_cut(line, settings)) for line in lines.body]
    return [Line(_cut(lines.head, settings), "bold"), *body, Line(_cut(lines.foot, settings), "bold")]
