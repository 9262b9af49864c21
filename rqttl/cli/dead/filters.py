"""The options that filter letters: --source, --reason, --older-than, --newer-than, --header."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import click
from click.shell_completion import CompletionItem

from rqttl import text, units
from rqttl.cli.common.params import PAIR, QUEUE_NAME, F, ValueType
from rqttl.cli.common.queue_names import complete_queues
from rqttl.errors import InvalidInput
from rqttl.inspector.letters import LetterFilter, When
from rqttl.options import REASONS


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
