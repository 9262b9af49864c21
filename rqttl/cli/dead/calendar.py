"""Units of the calendar in which deaths are counted: hours, days, weeks, months, years, in a time zone."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import NamedTuple

#: Rows of the table at most: the hours of two days. For more days a longer unit is used.
MOST = 49


class Unit(NamedTuple):
    """A unit of time. `begin` gives its beginning for a time in it, `length` is its shortest length."""

    name: str
    length: timedelta
    begin: Callable[[datetime], datetime]
    form: str


def _day(at: datetime) -> datetime:
    return datetime(at.year, at.month, at.day)  # noqa: DTZ001  # a day of the calendar, of any length


#: Only hours keep their zone: when clocks are put back, the same hour comes twice.
UNITS = (
    Unit("hour", timedelta(hours=1), lambda at: at.replace(minute=0, second=0), "%Y-%m-%d %H:%M"),
    Unit("6 hours", timedelta(hours=6), lambda at: _day(at).replace(hour=at.hour // 6 * 6), "%Y-%m-%d %H:%M"),
    Unit("day", timedelta(days=1), _day, "%Y-%m-%d"),
    Unit("week from", timedelta(weeks=1), lambda at: _day(at) - timedelta(days=at.weekday()), "%Y-%m-%d"),
    Unit("month", timedelta(days=28), lambda at: _day(at).replace(day=1), "%Y-%m"),
    Unit("year", timedelta(days=365), lambda at: _day(at).replace(month=1, day=1), "%Y"),
)


class Times(NamedTuple):
    """Counts by the beginnings of units. `zone` names the time zone, `rows` are texts with their counts."""

    unit: str
    zone: str
    rows: list[tuple[str, int]]


def count_times(quarters: dict[datetime, int], zone: timezone | None) -> Times:
    """Counts of quarters of an hour, added up in the shortest unit with few rows. `None` is the zone of this machine.

    A unit without a death has its row, too, unless units are years.
    """
    first, last = min(quarters), max(quarters)
    unit = next((unit for unit in UNITS if last - first <= unit.length * (MOST - 1)), UNITS[-1])
    counts: dict[datetime, int] = {}
    if unit is not UNITS[-1]:
        step = unit.length / 2  # however clocks are put, no unit is stepped over
        steps = [first + i * step for i in range((last - first) // step + 1)]
        counts = dict.fromkeys((unit.begin(at.astimezone(zone)) for at in (*steps, last)), 0)
    offsets = set()
    for at, n in quarters.items():
        local = at.astimezone(zone)
        begin = unit.begin(local)
        counts[begin] = counts.get(begin, 0) + n
        offsets.add(_offset(local))
    if len(offsets) > 1:
        return Times(unit.name, "local time", [(at.strftime(unit.form) + _offset(at), n) for at, n in counts.items()])
    name = f"UTC{offsets.pop()}".replace("+00:00", "")
    return Times(unit.name, name, [(at.strftime(unit.form), n) for at, n in counts.items()])


def _offset(at: datetime) -> str:
    """`+05:30`; empty for a time without a zone."""
    return at.isoformat(timespec="minutes")[len("2026-11-21T10:00") :]
