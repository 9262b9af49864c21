"""What dead letters there are: the options that select them, groups of them, and `rqttl dead report`."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable, Sequence
from contextlib import nullcontext, suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from rqttl import text, units
from rqttl.checks import is_pattern
from rqttl.cli.common import output, params
from rqttl.cli.common.errors import Refused
from rqttl.cli.common.params import F, Read
from rqttl.cli.common.settings import Settings, connecting
from rqttl.errors import QueueNotFound
from rqttl.inspector.dead_letters import (
    ASPECTS,
    DeadLetterCounts,
    DeadLetterFilter,
    count_times,
    pages,
    read_error,
    read_reason,
    read_when,
)
from rqttl.inspector.queues import existing_names
from rqttl.options import REASONS

if TYPE_CHECKING:
    from rich.table import Table

    from rqttl.broker import Broker
    from rqttl.queue import Queue

#: The tables of a report without `--by`.
DEFAULT = ("source", "reason", "hour")
#: Cells of all columns without a terminal, of a bar at least, and of all but the name and the bar.
WIDTH, LEAST, TAKEN = 80, 10, 25
#: The characters of bars.
BLOCKS = "█▉▊▋▌▍▎▏"
#: Queues that the head of a report names.
NAMED = 3

Row = tuple[str, int]


# What several commands have


_WHEN = Read("when", read_when)
_OPTIONS = (
    click.option(
        "--error",
        type=Read("error", read_error),
        metavar="TEXT",
        help="Only dead letters with this error, as `dead report --by error` has it; * stands for any characters.",
    ),
    click.option(
        "--header",
        "headers",
        multiple=True,
        type=params.PAIR,
        metavar="KEY=VALUE",
        help="Only dead letters with this header; if repeated, with all of them.",
    ),
    click.option("--newer-than", type=_WHEN, metavar="WHEN", help="Only dead letters that died since that time."),
    click.option(
        "--older-than",
        type=_WHEN,
        metavar="WHEN",
        help="Only dead letters that died before that time: 7d (ago), 2026-11-21T10:00Z.",
    ),
    click.option(
        "--reason",
        "reasons",
        multiple=True,
        type=Read("reason", read_reason, REASONS),
        metavar="REASON",
        help=f"Only dead letters that died for this reason: {', '.join(REASONS)}; may be repeated.",
    ),
    click.option(
        "--source",
        "sources",
        multiple=True,
        type=params.QUEUE_NAME,
        metavar="QUEUE",
        shell_complete=params.complete_queues,
        help="Only dead letters that died in this queue; may be repeated.",
    ),
)


def filters(command: F) -> F:
    """Give a command the options that filter dead letters, and pass it `wanted`; its `ids` become a part of that."""

    @functools.wraps(command)
    def filtered(*args: Any, **options: Any) -> Any:
        fields: dict[str, Any] = {name: frozenset(options.pop(name, ())) for name in ("sources", "reasons", "ids")}
        fields |= {name: options.pop(name) for name in ("error", "older_than", "newer_than", "headers")}
        return command(*args, wanted=DeadLetterFilter(**fields), **options)

    return params.with_options(*reversed(_OPTIONS))(filtered)  # type: ignore[return-value]  # for click it is the same


def print_groups(counts: DeadLetterCounts, now: datetime, *, utc: bool) -> None:
    """Print a table of groups, with totals if there are several."""
    ordered = counts.ordered()
    rows = []
    for group in ordered:
        names = text.escape(group.source or "-"), text.escape(group.reason or "(never died)")
        times = (text.format_time(at, now, utc=utc) for at in (group.oldest, group.newest))
        rows.append([*names, text.format_count(group.count), *times, units.as_size(group.size)])
    total = None
    if len(ordered) > 1:
        total = ["total", "", text.format_count(counts.total()), "", "", units.as_size(counts.total("size"))]
    output.print_table(["source", "reason", ">count", ">oldest", ">newest", ">bytes"], rows, total)


def format_not_ready(leased: int, delayed: int) -> str:
    """The numbers of dead letters that are not ready, in words; empty if all are ready."""
    states = ((leased, "leased"), (delayed, "delayed"))
    return " and ".join(f"{text.format_count(n)} {state}" for n, state in states if n)


def note_targets(queue: Queue) -> None:
    """Print a note with the queues that get the dead letters of `queue`: the user may have meant one of them."""
    options = queue.options()
    targets: dict[str, list[str]] = {}
    for reason in REASONS:
        target = options.target(reason)
        if target and target != queue.name:
            targets.setdefault(target, []).append(reason)
    if targets:
        names = (f"{target} ({', '.join(why)})" if len(targets) > 1 else target for target, why in targets.items())
        output.note(f"dead letters of {queue.name} go to {' and '.join(names)}")


def refuse_missing(queue: str, ids: Iterable[str]) -> None:
    """Raise `Refused` if a queue lacks dead letters with these ids."""
    if missing := sorted(ids):
        raise Refused(f"no such dead letter in {queue}: {', '.join(id or repr(id) for id in missing)}", "not_found")


# The report


@click.command(epilog="\b\nExample: rqttl dead report 'orders.*' --newer-than 1d --by reason --by hour")
@params.queues_argument
@click.option(
    "--by",
    "aspects",
    type=click.Choice(ASPECTS),
    multiple=True,
    default=DEFAULT,
    help="Print a table of this; may be repeated.  [default: source, reason and hour]",
)
@params.limit_option(20, "Sources, queues and errors that a table names at most.")
@filters
@params.utc_flag
@params.json_flag
@connecting
def report(
    queues: tuple[str, ...],
    aspects: tuple[str, ...],
    limit: int,
    wanted: DeadLetterFilter,
    utc: bool,
    as_json: bool,
    settings: Settings,
) -> None:
    """Count dead letters by source, reason and hour, with bars.

    The report has the dead letters of all QUEUEs that are named or matched
    (with *, ? and [...]), by their latest deaths. Hours are those of UTC; if
    there are many, they are counted by day, month or year instead.

    The command leases and changes nothing. --json has every source, queue and
    error, and every hour in which messages died.
    """
    aspects = tuple(dict.fromkeys(aspects))
    with settings.looking() as broker:
        names = list(dict.fromkeys(queues))
        if any(map(is_pattern, queues)):
            names = existing_names(broker, queues)
        else:
            for name in names:
                broker.queue(name).options()  # raises if it does not exist, before anything is read
        counts, never_died = _count(broker, names, wanted, set(names) - set(queues), errors="error" in aspects)
        now = broker.server_time()
        for name in names:
            if name in queues:
                note_targets(broker.queue(name))
    if as_json:
        output.answer_json(_to_json(counts, names, aspects, never_died))
    elif counts.total():
        _print_report(counts, names, aspects, limit, now, utc=utc)
    _print_notes(counts, names, queues, never_died if wanted.is_empty else None)


def _count(
    broker: Broker, names: Sequence[str], wanted: DeadLetterFilter, may_vanish: set[str], *, errors: bool
) -> tuple[DeadLetterCounts, int]:
    """Count the dead letters that match, and all messages that never died."""
    counts, never_died, now = DeadLetterCounts(errors=errors), 0, broker.server_time()
    matches, since = wanted.at(now), wanted.since(now)
    with output.Progress() as progress:
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
    place, size = f"{', '.join(names[:NAMED])}{others}", units.as_size(counts.total("size"))
    died = oldest if oldest == newest else f"{oldest} to {newest}"
    output.print_pairs([("dead letters", f"{counts.total():,} ({size}) in {place}"), ("died", died)])
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


def first_rows(rows: list[Row], limit: int) -> list[Row]:
    """The first `limit` rows, and one row for all others together."""
    others = rows[limit:]
    first = [(text.escape(name) or "(none)", n) for name, n in rows[:limit]]
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
