"""The options that filter dead letters, and dead letters as text: groups, and notes on letters that are not ready."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from rqttl import text, units
from rqttl.cli.common import output
from rqttl.cli.common.exits import Refused
from rqttl.cli.common.params import PAIR, QUEUE_NAME, F, ValueType
from rqttl.cli.common.queue_names import complete_queues
from rqttl.errors import InvalidInput
from rqttl.inspector.letters import LetterFilter, LetterGroups, When
from rqttl.options import REASONS
from rqttl.units import as_size

if TYPE_CHECKING:
    from rqttl.queue import Queue


class ReasonType(ValueType):
    """A reason of deaths, also with hyphens and in capitals."""

    name = "reason"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Read the name of a reason."""
        reason = _reason_name(value)
        if reason not in REASONS:
            hint = text.did_you_mean(reason, REASONS, f"expected one of {', '.join(REASONS)}")
            self.fail(f"no such reason {value!r}{hint}", param, ctx)
        return reason

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG002  # click gives them
        """The reasons that begin with a half-typed word."""
        return [CompletionItem(reason) for reason in REASONS if reason.startswith(_reason_name(incomplete))]


def _reason_name(value: str) -> str:
    return value.lower().replace("-", "_")


class WhenType(ValueType):
    """An age such as 7d, or a time; a `timedelta` or a `datetime` for the command."""

    name = "when"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> When:
        """Read an age, else a time."""
        try:
            return units.as_timedelta(units.duration(value, "age"))
        except InvalidInput:
            pass
        try:
            return units.as_datetime(units.instant(value, "time"))
        except InvalidInput as error:
            reason = str(error).removeprefix("time: ")
            self.fail(reason.replace("expected a time", "expected an age such as 7d, or a time", 1), param, ctx)


_OPTIONS = (
    click.option(
        "--header",
        "headers",
        multiple=True,
        type=PAIR,
        metavar="KEY=VALUE",
        help="Only letters with this header; if repeated, with all of them.",
    ),
    click.option("--newer-than", type=WhenType(), metavar="WHEN", help="Only letters that died since that time."),
    click.option(
        "--older-than",
        type=WhenType(),
        metavar="WHEN",
        help="Only letters that died before that time: 7d (ago), 2026-11-21T10:00Z.",
    ),
    click.option(
        "--reason",
        "reasons",
        multiple=True,
        type=ReasonType(),
        metavar="REASON",
        help=f"Only letters that died for this reason: {', '.join(REASONS)}; may be repeated.",
    ),
    click.option(
        "--source",
        "sources",
        multiple=True,
        type=QUEUE_NAME,
        metavar="QUEUE",
        shell_complete=complete_queues,
        help="Only letters that died in this queue; may be repeated.",
    ),
)


def letter_filters(command: F) -> F:
    """Give a command the options that filter letters, and pass it `letter_filter`."""

    @functools.wraps(command)
    def filtered(
        *args: Any,
        sources: Sequence[str],
        reasons: Sequence[str],
        older_than: When | None,
        newer_than: When | None,
        headers: tuple[tuple[str, str], ...],
        **options: Any,
    ) -> Any:
        letter_filter = LetterFilter(frozenset(sources), frozenset(reasons), older_than, newer_than, headers)
        return command(*args, letter_filter=letter_filter, **options)

    decorated: Any = filtered
    for add_option in _OPTIONS:
        decorated = add_option(decorated)
    return decorated  # type: ignore[no-any-return]  # for click, the caller, it is the same


def print_groups(groups: LetterGroups, now: datetime, *, utc: bool) -> None:
    """Print a table of groups, with totals if there are several."""
    ordered = groups.ordered()
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
        total = ["total", "", text.format_count(groups.total()), "", "", as_size(groups.total("size"))]
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
