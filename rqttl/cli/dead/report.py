"""`rqttl dead report`: letters of one queue or several counted by source, reason and hour, with bars."""

from __future__ import annotations

import shutil
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

import click

from rqttl import text
from rqttl.checks import is_pattern
from rqttl.cli.common import output, terminal
from rqttl.cli.common.params import json_flag, limit_option, queues_argument, utc_flag
from rqttl.cli.common.progress import Progress
from rqttl.cli.common.settings import Settings, connecting
from rqttl.cli.dead.letters import format_not_ready, letter_filters, note_targets
from rqttl.errors import QueueNotFound
from rqttl.inspector.letters import ASPECTS, LetterCounts, LetterFilter, pages
from rqttl.inspector.queues import existing_names
from rqttl.units import as_size

if TYPE_CHECKING:
    from rqttl.broker import Broker

#: The tables of a report without `--by`.
DEFAULT = ("source", "reason", "hour")
#: The units by which deaths are counted, and the most rows of a table. Many deaths have a longer unit.
UNITS = {"hour": "%Y-%m-%d %H:00", "day": "%Y-%m-%d", "month": "%Y-%m", "year": "%Y"}
MOST = 49
#: Cells of all columns without a terminal, and cells of a bar at least.
WIDTH, BAR = 80, 20
#: The last characters of bars, by their lengths; the whole block is the last.
BLOCKS = "▏▎▍▌▋▊▉█"

#: Queues that the head of a report names.
NAMED = 3


Row = tuple[str, int]


@click.command(epilog="\b\nExample: rqttl dead report 'orders.*' --newer-than 1d --by reason --by hour")
@queues_argument
@click.option(
    "--by",
    "aspects",
    type=click.Choice(ASPECTS),
    multiple=True,
    default=DEFAULT,
    help="Print a table of this; may be repeated.  [default: source, reason and hour]",
)
@limit_option(20, "Sources and queues that a table names at most.")
@letter_filters
@utc_flag
@json_flag
@connecting
def report(
    queues: tuple[str, ...],
    aspects: tuple[str, ...],
    limit: int,
    letter_filter: LetterFilter,
    utc: bool,
    as_json: bool,
    settings: Settings,
) -> None:
    """Count dead letters by source, reason and hour, with bars.

    The report has the dead letters of all QUEUEs that are named or matched
    (with *, ? and [...]), by their latest deaths. Hours are those of UTC; if
    there are many, they are counted by day, month or year instead.

    The command leases and changes nothing. --json has every source and queue,
    and every hour in which messages died.
    """
    aspects = tuple(dict.fromkeys(aspects))
    with settings.using() as broker:
        names = _select(broker, queues)
        counts = _count(broker, names, letter_filter, may_vanish=set(names) - set(queues))
        now = broker.server_time()
        for name in names:
            if name in queues:
                note_targets(broker.queue(name))
    if as_json:
        output.answer_json(counts.to_json(names, aspects))
    elif counts.letters:
        _print_report(counts, names, aspects, limit, now, utc=utc)
    _print_notes(counts, names, queues, everything=letter_filter.is_empty)


def _select(broker: Broker, patterns: Sequence[str]) -> list[str]:
    """The names of the queues, each once. Raises `QueueNotFound` before anything is read."""
    if any(map(is_pattern, patterns)):
        return existing_names(broker, patterns)
    names = list(dict.fromkeys(patterns))
    for name in names:
        broker.queue(name).options()
    return names


def _count(broker: Broker, names: Sequence[str], letter_filter: LetterFilter, may_vanish: set[str]) -> LetterCounts:
    counts, now = LetterCounts(), broker.server_time()
    matches, since = letter_filter.at(now), letter_filter.since(now)
    with Progress(None, in_bytes=False) as progress:
        for name in names:
            with suppress(QueueNotFound) if name in may_vanish else nullcontext():
                for page in pages(broker.queue(name), since):
                    progress.advance(0, len(page))
                    for message in page:
                        counts.never_died += not message.deaths
                        if message.deaths and matches(message):
                            counts.add(message)
    return counts


def _print_notes(counts: LetterCounts, names: Sequence[str], patterns: Sequence[str], *, everything: bool) -> None:
    if not names:
        output.note_no_queue(patterns)
    elif not counts.letters:
        queues = names[0] if len(names) == 1 else text.plural(len(names), "queue")
        output.note(f"no {'' if everything else 'such '}dead letters in {queues}")
    if not_ready := format_not_ready(*counts.not_ready):
        output.note(f"of these, {not_ready}")
    if everything and counts.never_died:
        output.note(f"{text.plural(counts.never_died, 'message')} never died: not counted")


def _print_report(
    counts: LetterCounts, names: Sequence[str], aspects: Iterable[str], limit: int, now: datetime, *, utc: bool
) -> None:
    """Print the totals, and a table for each aspect."""
    oldest, newest = (text.format_time(at, now, utc=utc) for at in counts.span)
    output.print_pairs(
        [
            ("letters", f"{text.format_count(counts.letters)} ({as_size(counts.size)}) in {_listed(names)}"),
            ("died", oldest if oldest == newest else f"{oldest} to {newest}"),
        ]
    )
    tables, unit = [], "hour"
    for aspect in aspects:
        if aspect == "hour":
            unit, rows = count_times(counts.hours)
            tables.append((f"{unit} (UTC)", rows))
        else:
            tables.append((aspect, first_rows(counts.by(aspect), limit)))
    layout = layout_for(tables)
    for title, rows in tables:
        output.answer("")
        print_counts(title, rows, counts.letters, layout)
    if unit != "hour":
        output.note(f"too many hours for a table, so by {unit}: --newer-than 2d or --json shows hours")


def count_times(hours: Mapping[datetime, int]) -> tuple[str, list[Row]]:
    """The shortest unit that has few rows, and the counts of its times."""
    for unit, form in UNITS.items():
        counts: Counter[str] = Counter()
        for at, n in hours.items():
            counts[at.strftime(form)] += n
        if len(counts) <= MOST or unit == "year":
            return unit, list(counts.items())
    raise AssertionError  # a year is the longest unit


def _listed(names: Sequence[str]) -> str:
    first = ", ".join(names[:NAMED])
    return first if len(names) <= NAMED else f"{first} and {text.plural(len(names) - NAMED, 'other queue')}"


# Tables of counts with bars. The columns of several tables stand below each other.


class Layout(NamedTuple):
    """Cells of the columns. Names are folded to `fold` cells unless it is None. Without bars there are no shares."""

    name: int
    fold: int | None
    number: int
    bar: int


def layout_for(tables: Iterable[tuple[str, list[Row]]]) -> Layout:
    """A layout for tables with titles that fits the terminal."""
    every = [(title, 0) for title, _ in tables] + [row for _, rows in tables for row in rows]
    name = max(terminal.width(label) for label, _ in every)
    count = max(len("count"), *(len(text.format_count(n)) for _, n in every))
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


def print_counts(title: str, rows: Iterable[Row], total: int, layout: Layout) -> None:
    """Print names and counts, with their shares of `total` and with bars."""
    most, blocks = max(n for _, n in rows), blocks_for(sys.stdout.encoding)
    cells = []
    for name, n in rows:
        first, *others = terminal.chunk(name, layout.fold)
        cells.append([first, text.format_count(n), share(n, total), bar(n, most, layout.bar, blocks)])
        cells += [[other, "", "", ""] for other in others]
    head = [title.ljust(layout.name), f">{'count':>{layout.number}}", "> share", " "]
    columns = len(head) if layout.bar else 2
    output.print_table(head[:columns], [row[:columns] for row in cells])


def first_rows(rows: list[Row], limit: int) -> list[Row]:
    """The first `limit` rows, and one row for all others together."""
    others = rows[limit:]
    first = [(text.escape(name), n) for name, n in rows[:limit]]
    return [*first, (f"({text.plural(len(others), 'other')})", sum(n for _, n in others))] if others else first


def share(n: int, total: int) -> str:
    """`n` in percent of `total`; empty for 0."""
    return "" if not n else f"{n / total:.1%}" if n * 2000 >= total else "<0.1%"


def bar(n: int, most: int, cells: int, blocks: str) -> str:
    """A bar for `n` where `most` has all `cells`. A count above 0 has a bar that people can see."""
    whole, part = divmod(-(-n * cells * len(blocks) // most), len(blocks))
    return blocks[-1] * whole + (blocks[part - 1] if part else "")


def blocks_for(encoding: str | None) -> str:
    """The characters of bars that an encoding has."""
    return BLOCKS if terminal.can_encode(BLOCKS, encoding) else "#"
