"""`rqttl dead report`: letters of one queue or several counted by source, reason and hour, with bars."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from rqttl import text
from rqttl.checks import is_pattern
from rqttl.cli.common import output
from rqttl.cli.common.output import Progress
from rqttl.cli.common.params import json_flag, limit_option, queues_argument, utc_flag
from rqttl.cli.common.settings import Settings, connecting
from rqttl.cli.dead.letters import format_not_ready, letter_filters, note_targets
from rqttl.errors import QueueNotFound
from rqttl.inspector.dead_letters import ASPECTS, DeadLetterCounts, DeadLetterFilter, pages
from rqttl.inspector.queues import existing_names
from rqttl.units import as_size

if TYPE_CHECKING:
    from rich.table import Table

    from rqttl.broker import Broker

#: The tables of a report without `--by`.
DEFAULT = ("source", "reason", "hour")
#: The units by which deaths are counted, and the most rows of a table. Many deaths have a longer unit.
UNITS = {"hour": "%Y-%m-%d %H:00", "day": "%Y-%m-%d", "month": "%Y-%m", "year": "%Y"}
MOST = 49
#: Cells of all columns without a terminal, of a bar at least, and of all but the name and the bar.
WIDTH, LEAST, TAKEN = 80, 10, 25
#: The characters of bars.
BLOCKS = "█▉▊▋▌▍▎▏"
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
    letter_filter: DeadLetterFilter,
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
        names = list(dict.fromkeys(queues))
        if any(map(is_pattern, queues)):
            names = existing_names(broker, queues)
        else:
            for name in names:
                broker.queue(name).options()  # raises if it does not exist, before anything is read
        counts, never_died = _count(broker, names, letter_filter, may_vanish=set(names) - set(queues))
        now = broker.server_time()
        for name in names:
            if name in queues:
                note_targets(broker.queue(name))
    if as_json:
        output.answer_json(_to_json(counts, names, aspects, never_died))
    elif counts.total():
        _print_report(counts, names, aspects, limit, now, utc=utc)
    _print_notes(counts, names, queues, never_died if letter_filter.is_empty else None)


def _count(
    broker: Broker, names: Sequence[str], letter_filter: DeadLetterFilter, may_vanish: set[str]
) -> tuple[DeadLetterCounts, int]:
    """Count the dead letters that match, and all messages that never died."""
    counts, never_died, now = DeadLetterCounts(), 0, broker.server_time()
    matches, since = letter_filter.at(now), letter_filter.since(now)
    with Progress() as progress:
        for name in names:
            with suppress(QueueNotFound) if name in may_vanish else nullcontext():
                for page in pages(broker.queue(name), since):
                    progress.advance(0, len(page))
                    for message in page:
                        never_died += not message.deaths
                        if message.deaths and matches(message):
                            counts.add(message)
    return counts, never_died


def _to_json(counts: DeadLetterCounts, names: Sequence[str], aspects: Sequence[str], never_died: int) -> dict[str, Any]:
    oldest, newest = counts.span
    tables = {aspect: counts.hours.items() if aspect == "hour" else counts.by(aspect) for aspect in aspects}
    return {
        "queues": names,
        "count": counts.total(),
        "leased": counts.total("leased"),
        "delayed": counts.total("delayed"),
        "bytes": counts.total("size"),
        "oldest_at": oldest,
        "newest_at": newest,
        "never_died": never_died,
        "by": {aspect: [{aspect: key, "count": n} for key, n in rows] for aspect, rows in tables.items()},
    }


def _print_notes(
    counts: DeadLetterCounts, names: Sequence[str], patterns: Sequence[str], never_died: int | None
) -> None:
    """Print what is left out. `never_died` is `None` where a filter leaves out more."""
    if not names:
        output.note_no_queue(patterns)
    elif not counts.total():
        queues = names[0] if len(names) == 1 else text.plural(len(names), "queue")
        output.note(f"no {'such ' if never_died is None else ''}dead letters in {queues}")
    if not_ready := format_not_ready(counts.total("leased"), counts.total("delayed")):
        output.note(f"of these, {not_ready}")
    if never_died:
        output.note(f"{text.plural(never_died, 'message')} never died: not counted")


def _print_report(
    counts: DeadLetterCounts, names: Sequence[str], aspects: Iterable[str], limit: int, now: datetime, *, utc: bool
) -> None:
    oldest, newest = (text.format_time(at, now, utc=utc) for at in counts.span)
    others = f" and {text.plural(len(names) - NAMED, 'other queue')}" if len(names) > NAMED else ""
    output.print_pairs(
        [
            ("letters", f"{counts.total():,} ({as_size(counts.total('size'))}) in {', '.join(names[:NAMED])}{others}"),
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
    longest = max(len(label) for title, rows in tables for label in (title, *(name for name, _ in rows)))
    for title, rows in tables:
        output.answer("")
        output.print_rich(bar_chart(title, rows, counts.total(), longest))
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


def first_rows(rows: list[Row], limit: int) -> list[Row]:
    """The first `limit` rows, and one row for all others together."""
    others = rows[limit:]
    first = [(text.escape(name), n) for name, n in rows[:limit]]
    return [*first, (f"({text.plural(len(others), 'other')})", sum(n for _, n in others))] if others else first


def bar_chart(title: str, rows: Sequence[Row], total: int, longest: int) -> Table:
    """Names of up to `longest` characters, with counts, shares of `total`, and bars if there is room for them."""
    from rich.bar import Bar

    width = output.console().width if sys.stdout.isatty() else max(WIDTH, longest + TAKEN + LEAST)
    name = min(longest, max(width - TAKEN - LEAST, 8))
    cells = width - name - TAKEN
    table = output.new_table()
    table.add_column(title, min_width=name, overflow="fold")
    table.add_column("count", justify="right", no_wrap=True)
    table.add_column("share", justify="right", no_wrap=True)
    if cells >= LEAST and output.can_encode(BLOCKS):
        table.add_column("", width=cells)
    most = max(n for _, n in rows)
    for label, n in rows:
        least = most / (8 * max(cells, 1))  # a count above 0 has a bar that people can see
        bar = Bar(most, 0, max(n, least), width=cells) if n else ""
        share = "" if not n else f"{n / total:.1%}" if n * 2000 >= total else "<0.1%"
        table.add_row(label, text.format_count(n), share, *([bar] if len(table.columns) > 3 else []))
    return table
