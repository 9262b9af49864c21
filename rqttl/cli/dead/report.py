"""`rqttl dead report`: letters of one queue or several counted by source, reason and hour, with bars."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import nullcontext, suppress
from datetime import datetime, timezone
from typing import TYPE_CHECKING

import click

from rqttl import text
from rqttl.cli.common import output
from rqttl.cli.common.params import json_flag, limit_option, queues_argument
from rqttl.cli.common.progress import Progress
from rqttl.cli.common.settings import Settings, connecting
from rqttl.cli.dead.calendar import count_times
from rqttl.cli.dead.filters import letter_filters
from rqttl.cli.dead.render import format_not_ready, note_targets
from rqttl.cli.dead.table import first_rows, layout_for, print_counts
from rqttl.errors import QueueNotFound
from rqttl.inspector.letter_counts import ASPECTS, LetterCounts
from rqttl.inspector.letters import LetterFilter, pages
from rqttl.inspector.select import existing_names
from rqttl.names import is_pattern
from rqttl.units import as_size

if TYPE_CHECKING:
    from rqttl.broker import Broker

#: The tables of a report without `--by`.
DEFAULT = ("source", "reason", "hour")
#: Queues that the head of a report names.
NAMED = 3


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
@click.option("--utc", is_flag=True, help="Count hours of UTC, not of the time zone of this machine.")
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
    """Count letters by source, reason and hour, with bars.

    The report has the letters of all QUEUEs that are named or matched (with *,
    ? and [...]), by their latest deaths. If these are more than two days
    apart, they are counted by 6 hours, by day, week, month or year instead.

    The command leases and changes nothing. --json has every source and queue,
    and every hour of UTC in which letters died.
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
    tables, longer = [], ""
    for aspect in aspects:
        if aspect == "hour":
            unit, zone, rows = count_times(counts.quarters, timezone.utc if utc else None)
            tables.append((f"{unit} ({zone})", rows))
            longer = unit.removesuffix(" from") if unit != aspect else ""
        else:
            tables.append((aspect, first_rows(counts.by(aspect), limit)))
    layout = layout_for(tables)
    for title, rows in tables:
        output.answer("")
        print_counts(title, rows, counts.letters, layout)
    if longer:
        output.note(f"too many hours for a table, so by {longer}: --newer-than 2d or --json shows hours")


def _listed(names: Sequence[str]) -> str:
    first = ", ".join(names[:NAMED])
    return first if len(names) <= NAMED else f"{first} and {text.plural(len(names) - NAMED, 'other queue')}"
