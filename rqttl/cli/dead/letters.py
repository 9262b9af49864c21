"""The options that select dead letters, and what several commands print about them."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from rqttl import text, units
from rqttl.cli.common import output
from rqttl.cli.common.errors import Refused
from rqttl.cli.common.params import PAIR, QUEUE_NAME, F, Read, complete_queues, with_options
from rqttl.errors import InvalidInput
from rqttl.inspector.dead_letters import DeadLetterCounts, DeadLetterFilter, When
from rqttl.options import REASONS
from rqttl.units import as_size

if TYPE_CHECKING:
    from rqttl.queue import Queue


def _read_reason(value: str) -> str:
    reason = value.lower().replace("-", "_")
    if reason not in REASONS:
        hint = text.did_you_mean(reason, REASONS, f"expected one of {', '.join(REASONS)}")
        raise InvalidInput(f"reason: no such reason {value!r}{hint}")
    return reason


def _read_when(value: str) -> When:
    try:
        return units.as_timedelta(units.duration(value, "age"))
    except InvalidInput:
        pass
    try:
        return units.as_datetime(units.instant(value, "time"))
    except InvalidInput as error:
        line = str(error).replace("expected a time", "expected an age such as 7d, or a time", 1)
        raise InvalidInput(line) from None


_WHEN = Read("when", _read_when)
_OPTIONS = (
    click.option(
        "--header",
        "headers",
        multiple=True,
        type=PAIR,
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
        type=Read("reason", _read_reason, REASONS),
        metavar="REASON",
        help=f"Only dead letters that died for this reason: {', '.join(REASONS)}; may be repeated.",
    ),
    click.option(
        "--source",
        "sources",
        multiple=True,
        type=QUEUE_NAME,
        metavar="QUEUE",
        shell_complete=complete_queues,
        help="Only dead letters that died in this queue; may be repeated.",
    ),
)


def letter_filters(command: F) -> F:
    """Give a command the options that filter letters, and pass it `letter_filter`; its `ids` become a part of that."""

    @functools.wraps(command)
    def filtered(*args: Any, **options: Any) -> Any:
        fields: dict[str, Any] = {name: frozenset(options.pop(name, ())) for name in ("sources", "reasons", "ids")}
        fields |= {name: options.pop(name) for name in ("older_than", "newer_than", "headers")}
        return command(*args, letter_filter=DeadLetterFilter(**fields), **options)

    return with_options(*reversed(_OPTIONS))(filtered)  # type: ignore[return-value]  # for click it is the same


def print_groups(counts: DeadLetterCounts, now: datetime, *, utc: bool) -> None:
    """Print a table of groups, with totals if there are several."""
    ordered = counts.ordered()
    rows = [
        [
            text.escape(g.source or "-"),
            text.escape(g.reason or "(never died)"),
            text.format_count(g.count),
            text.format_time(g.oldest, now, utc=utc),
            text.format_time(g.newest, now, utc=utc),
            as_size(g.size),
        ]
        for g in ordered
    ]
    total = None
    if len(ordered) > 1:
        total = ["total", "", text.format_count(counts.total()), "", "", as_size(counts.total("size"))]
    output.print_table(["source", "reason", ">count", ">oldest", ">newest", ">bytes"], rows, total)


def format_not_ready(leased: int, delayed: int) -> str:
    """The numbers of letters that are not ready, in words; empty if all are ready."""
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
    """Raise `Refused` if a queue lacks letters with these ids."""
    if missing := sorted(ids):
        raise Refused(f"no such letter in {queue}: {', '.join(id or repr(id) for id in missing)}", "not_found")
