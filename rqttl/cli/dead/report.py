"""`rqttl dead report`: letters of one queue or several counted by source, reason and hour, with bars."""

from __future__ import annotations

import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext, suppress
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from rqttl.cli.common import output, text
from rqttl.cli.common.progress import Progress
from rqttl.cli.common.settings import Settings, connecting, json_flag, queues_argument
from rqttl.cli.dead.filters import Groups, Wanted, died_at, letter_filters, note_targets, out, pages
from rqttl.cli.queue.each import matching
from rqttl.errors import QueueNotFound
from rqttl.types import Peeked

if TYPE_CHECKING:
    from rqttl.broker import Broker

#: What letters are counted by if nothing is said, and by what else.
DEFAULT, ALL = ("source", "reason", "hour"), ("source", "reason", "hour", "queue")
#: Lines that the hours take at most, those of two days; of more days, longer times are counted together.
MOST = 49
#: Cells of all columns where no terminal says how many, and cells of a bar at least.
WIDTH, BAR = 80, 20
#: What a bar ends with, the whole block last.
BLOCKS = "▏▎▍▌▋▊▉█"
#: Times are counted by the quarter, since in some zones hours begin at a quarter of ours.
QUARTER = timedelta(minutes=15)
#: Later moments, which only a damaged letter has, are not there in every zone.
LATEST = datetime(9999, 12, 30, tzinfo=timezone.utc)
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)

Row = tuple[str, int]


@click.command(epilog="\b\nExample: rqttl dead report 'orders.*' --newer-than 1d --by reason --by hour")
@queues_argument
@click.option(
    "--by", "aspects", type=click.Choice(ALL), multiple=True, default=DEFAULT,
    help="A table of this; may be repeated.  [default: source, reason and hour]",
)  # fmt: skip
@click.option(
    "--limit", type=click.IntRange(min=1), metavar="N", default=20, show_default=True,
    help="Sources and queues that a table names at most.",
)  # fmt: skip
@letter_filters
@click.option("--utc", is_flag=True, help="Hours of UTC, not of the time zone of this machine.")
@json_flag
@connecting
def report(
    queues: tuple[str, ...], aspects: tuple[str, ...], limit: int, wanted: Wanted, utc: bool, as_json: bool,
    settings: Settings,
) -> None:  # fmt: skip
    """Count letters by source, reason and hour, with bars.

    All letters together of the QUEUEs that are named or matched (with *, ?
    and [...]), by their latest deaths. If these are more than two days apart,
    they are counted by 6 hours, by day, week, month or year instead.

    Nothing is leased or changed. --json has every source and queue, and every
    hour of UTC in which letters died.
    """
    aspects = tuple(dict.fromkeys(aspects))
    with settings.using() as broker:
        names = _chosen(broker, queues)
        counted = _count(broker, names, wanted, may_vanish=set(names) - set(queues))
        now = broker.time()
        for name in names:
            if name in queues:
                note_targets(broker.queue(name))
    if as_json:
        output.answer_json(counted.facts(names, aspects))
    elif counted.letters:
        _show(counted, names, aspects, limit, now, utc=utc)
    _note(counted, names, queues, everything=wanted.everything)


class Counted:
    """Letters, counted; and how many messages never died and are none."""

    def __init__(self) -> None:
        self._groups = Groups()
        self._quarters: Counter[int] = Counter()
        self._queues: Counter[str] = Counter()
        self.never_died = 0

    def add(self, letter: Peeked) -> None:
        """Count a letter."""
        self._groups.add(letter)
        self._quarters[(min(died_at(letter), LATEST) - _EPOCH) // QUARTER] += 1
        self._queues[letter.queue] += 1

    @property
    def letters(self) -> int:
        """How many there are."""
        return self._groups.total()

    @property
    def size(self) -> int:
        """Bytes of their bodies."""
        return self._groups.total("size")

    @property
    def out(self) -> tuple[int, int]:
        """How many are leased and delayed."""
        return self._groups.total("leased"), self._groups.total("delayed")

    @property
    def span(self) -> tuple[datetime, datetime]:
        """When the first and the last of them died."""
        groups = self._groups.ordered()
        return min(group.oldest for group in groups), max(group.newest for group in groups)

    @property
    def quarters(self) -> dict[datetime, int]:
        """How many died in the quarters of an hour that begin then; the earliest first."""
        return {_EPOCH + quarter * QUARTER: n for quarter, n in sorted(self._quarters.items())}

    def rows(self, aspect: str) -> list[Row]:
        """How many there are of each source, reason or queue, the most first."""
        found: Counter[str] = Counter()
        if aspect == "queue":
            found = self._queues
        else:
            for group in self._groups.ordered():
                found[str(getattr(group, aspect))] += group.count
        return sorted(found.items(), key=lambda row: (-row[1], row[0]))

    def facts(self, names: Sequence[str], aspects: Iterable[str]) -> dict[str, Any]:
        """For `text.as_json`."""
        (leased, delayed), (oldest, newest) = self.out, self.span if self.letters else (None, None)
        return {
            "queues": list(names), "count": self.letters, "leased": leased, "delayed": delayed, "bytes": self.size,
            "oldest_at": oldest, "newest_at": newest, "never_died": self.never_died,
            "by": {aspect: [{aspect: name, "count": n} for name, n in self._exactly(aspect)] for aspect in aspects},
        }  # fmt: skip

    def _exactly(self, aspect: str) -> Iterable[tuple[object, int]]:
        if aspect != "hour":
            return self.rows(aspect)
        hours: Counter[datetime] = Counter()
        for at, n in self.quarters.items():
            hours[at.replace(minute=0)] += n
        return hours.items()


def _chosen(broker: Broker, patterns: Sequence[str]) -> list[str]:
    """The names that are meant, each once. Raises `QueueNotFound` before anything is read."""
    if any(set(one) & set("*?[") for one in patterns):
        return matching(broker, patterns)
    names = list(dict.fromkeys(patterns))
    for name in names:
        broker.queue(name).options()
    return names


def _count(broker: Broker, names: Sequence[str], wanted: Wanted, may_vanish: set[str]) -> Counted:
    counted, meant = Counted(), wanted.at(broker.time())
    with Progress(None, in_bytes=False) as progress:
        for name in names:
            with suppress(QueueNotFound) if name in may_vanish else nullcontext():
                for page in pages(broker.queue(name)):
                    progress.advance(0, len(page))
                    for message in page:
                        counted.never_died += not message.deaths
                        if message.deaths and meant(message):
                            counted.add(message)
    return counted


def _note(counted: Counted, names: Sequence[str], patterns: Sequence[str], *, everything: bool) -> None:
    if not names:
        output.note_no_queue(patterns)
    elif not counted.letters:
        where = names[0] if len(names) == 1 else text.plural(len(names), "queue")
        output.note(f"no {'' if everything else 'such '}dead letters in {where}")
    if taken := out(*counted.out):
        output.note(f"of these, {taken}")
    if everything and counted.never_died:
        output.note(f"{text.plural(counted.never_died, 'message')} never died: not counted")


# Times


class Unit(NamedTuple):
    """Letters that died in the same `begin` are counted together. `length` is how long that is at least."""

    name: str
    length: timedelta
    begin: Callable[[datetime], datetime]
    form: str


def _day(at: datetime) -> datetime:
    return datetime(at.year, at.month, at.day)  # noqa: DTZ001  # a day of the calendar, whatever its length


#: Only hours keep their zone: when clocks are put back, the same hour comes twice.
UNITS = (
    Unit("hour", timedelta(hours=1), lambda at: at.replace(minute=0, second=0), "%Y-%m-%d %H:%M"),
    Unit("6 hours", timedelta(hours=6), lambda at: _day(at).replace(hour=at.hour // 6 * 6), "%Y-%m-%d %H:%M"),
    Unit("day", timedelta(days=1), _day, "%Y-%m-%d"),
    Unit("week from", timedelta(weeks=1), lambda at: _day(at) - timedelta(days=at.weekday()), "%Y-%m-%d"),
    Unit("month", timedelta(days=28), lambda at: _day(at).replace(day=1), "%Y-%m"),
    Unit("year", timedelta(days=365), lambda at: _day(at).replace(month=1, day=1), "%Y"),
)


def _times(quarters: dict[datetime, int], zone: timezone | None) -> tuple[str, str, list[Row]]:
    """How many died when, in units of which there are few; the unit, and which time it is. `None`: of this machine.

    Units in which none died have their rows too, except years.
    """
    first, last = min(quarters), max(quarters)
    unit = next((one for one in UNITS if last - first <= one.length * (MOST - 1)), UNITS[-1])
    found: dict[datetime, int] = {}
    if unit is not UNITS[-1]:
        step = unit.length / 2  # however clocks are put, no unit is stepped over
        steps = [first + i * step for i in range((last - first) // step + 1)]
        found = dict.fromkeys((unit.begin(at.astimezone(zone)) for at in (*steps, last)), 0)
    offsets = set()
    for at, n in quarters.items():
        local = at.astimezone(zone)
        begin = unit.begin(local)
        found[begin] = found.get(begin, 0) + n
        offsets.add(_offset(local))
    if len(offsets) > 1:
        return unit.name, "local time", [(at.strftime(unit.form) + _offset(at), n) for at, n in found.items()]
    said = f"UTC{offsets.pop()}".replace("+00:00", "")
    return unit.name, said, [(at.strftime(unit.form), n) for at, n in found.items()]


def _offset(at: datetime) -> str:
    """+05:30; empty if no zone is known."""
    return at.isoformat(timespec="minutes")[len("2026-11-21T10:00") :]


# Text


def _show(
    counted: Counted, names: Sequence[str], aspects: Iterable[str], limit: int, now: datetime, *, utc: bool
) -> None:
    """What there is altogether, and a table for each aspect. Their columns stand below each other."""
    oldest, newest = (text.moment(at, now, utc=utc) for at in counted.span)
    output.facts([
        ("letters", f"{text.count(counted.letters)} ({text.size(counted.size)}) in {_listed(names)}"),
        ("died", oldest if oldest == newest else f"{oldest} to {newest}"),
    ])  # fmt: skip
    tables, wide = [], ""
    for aspect in aspects:
        if aspect == "hour":
            unit, zone, rows = _times(counted.quarters, timezone.utc if utc else None)
            tables.append((f"{unit} ({zone})", rows))
            wide = unit.removesuffix(" from") if unit != aspect else ""
        else:
            tables.append((aspect, _first(counted.rows(aspect), limit)))
    layout = _layout(tables)
    for title, rows in tables:
        output.answer("")
        _table(title, rows, counted.letters, layout)
    if wide:
        output.note(f"too many hours for a table, so by {wide}: --newer-than 2d or --json shows hours")


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else f"{shown} and {text.plural(len(names) - 3, 'other queue')}"


def _first(rows: list[Row], limit: int) -> list[Row]:
    """The first of them, and the others together."""
    rest = rows[limit:]
    shown = [(text.visible(name), n) for name, n in rows[:limit]]
    return [*shown, (f"({text.plural(len(rest), 'other')})", sum(n for _, n in rest))] if rest else shown


class Layout(NamedTuple):
    """Cells of the columns. Names are folded to `fold` cells, if that is said; without bars there are no shares."""

    name: int
    fold: int | None
    number: int
    bar: int


def _layout(tables: Iterable[tuple[str, list[Row]]]) -> Layout:
    every = [(title, 0) for title, _ in tables] + [row for _, rows in tables for row in rows]
    name = max(text.width(one) for one, _ in every)
    count = max(len("count"), *(len(text.count(n)) for _, n in every))
    taken = count + len("100.0%") + 3 * 3
    if not sys.stdout.isatty():
        return Layout(name, None, count, max(BAR, WIDTH - name - taken))
    columns = shutil.get_terminal_size().columns
    room = columns - taken
    if room < BAR:
        name = min(name, max(columns - count - 3, 1))
        return Layout(name, name, count, 0)
    name = min(name, room * 3 // 5)
    return Layout(name, name, count, room - name)


def _table(title: str, rows: Iterable[Row], total: int, layout: Layout) -> None:
    most, blocks = max(n for _, n in rows), _blocks(sys.stdout.encoding)
    cells = []
    for name, n in rows:
        first, *others = text.chopped(name, layout.fold)
        cells.append([first, text.count(n), _share(n, total), _bar(n, most, layout.bar, blocks)])
        cells += [[more, "", "", ""] for more in others]
    head = [title.ljust(layout.name), f">{'count':>{layout.number}}", "> share", " "]
    shown = len(head) if layout.bar else 2
    output.table(head[:shown], [row[:shown] for row in cells])


def _share(n: int, total: int) -> str:
    return "" if not n else f"{n / total:.1%}" if n * 2000 >= total else "<0.1%"


def _bar(n: int, most: int, cells: int, blocks: str) -> str:
    """As long as `n` is in comparison to `most`, and not empty if there is any."""
    whole, rest = divmod(-(-n * cells * len(blocks) // most), len(blocks))
    return blocks[-1] * whole + (blocks[rest - 1] if rest else "")


def _blocks(encoding: str | None) -> str:
    """What bars are made of where this is what can be written."""
    try:
        BLOCKS.encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return "#"
    return BLOCKS
