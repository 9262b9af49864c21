"""Types of parameters, and the arguments, flags and questions that several commands have."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import click

from rqttl import units
from rqttl.checks import check_queue_name
from rqttl.cli.common.exits import Refused
from rqttl.cli.common.queue_names import complete_queues
from rqttl.errors import InvalidInput, InvalidName

F = TypeVar("F", bound=Callable[..., Any])


class SectionedCommand(click.Command):
    """A command whose help has its options in `sections`, and all others at the end."""

    sections: Mapping[str, Sequence[str]] = {}

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the sections."""
        named = {flag: title for title, flags in self.sections.items() for flag in flags}
        rows: dict[str, list[tuple[str, str]]] = {title: [] for title in (*self.sections, "Options")}
        for param in self.get_params(ctx):
            title = next((named[flag] for flag in param.opts if flag in named), "Options")
            if isinstance(param, click.Option) and (record := param.get_help_record(ctx)):
                rows[title].append(record)
        for title, records in rows.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


class ValueType(click.ParamType):  # type: ignore[type-arg]  # generic in new versions of click only
    """A parameter that is read from text. Its error names the parameter, the value and the rule."""


class DurationType(ValueType):
    """A duration such as 30s, 5m, 1500ms, of `least` ms or more; a `timedelta` for the command."""

    name = "duration"

    def __init__(self, least: int = 0) -> None:
        self._least = least

    def convert(self, value: str | timedelta, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        """Read a duration. A `timedelta` is one already."""
        if isinstance(value, timedelta):
            return value
        try:
            return units.as_timedelta(units.duration(value, "duration", least=self._least))
        except InvalidInput as error:
            self.fail(str(error).removeprefix("duration: "), param, ctx)


class InstantType(ValueType):
    """A time such as 2026-11-21T10:00:00Z, or ms since 1970; ms since 1970 for the command."""

    name = "time"

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Read a time."""
        try:
            return units.instant(value, "time")
        except InvalidInput as error:
            self.fail(str(error).removeprefix("time: "), param, ctx)


class PairType(ValueType):
    """KEY=VALUE; a pair of texts for the command."""

    name = "pair"

    def convert(
        self, value: str | tuple[str, str], param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        """Split at the first equals sign."""
        if isinstance(value, tuple):
            return value
        key, equals, content = value.partition("=")
        if not key or not equals:
            self.fail(f"expected KEY=VALUE, got {value!r}", param, ctx)
        return key, content


class QueueNameType(ValueType):
    """The name of a queue. A search for an impossible name could find nothing."""

    name = "queue"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Check a name."""
        try:
            return check_queue_name(value)
        except InvalidName as error:
            self.fail(str(error).partition(": ")[2], param, ctx)


class MessageIdType(ValueType):
    """The id of a message. A search for an impossible id could find nothing."""

    name = "id"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Check an id."""
        from rqttl.protocol import codec  # slow to load, and few commands need it

        try:
            codec.check_id(value)
        except InvalidName as error:
            self.fail(str(error).partition(": ")[2], param, ctx)
        return value


DURATION, INSTANT, PAIR = DurationType(), InstantType(), PairType()
QUEUE_NAME, MESSAGE_ID = QueueNameType(), MessageIdType()

queue_argument = click.argument("queue", shell_complete=complete_queues)
#: The same argument for functions in a module that has a command `queue`.
queue_name_argument = click.argument("name", metavar="QUEUE", shell_complete=complete_queues)
queues_argument = click.argument("queues", metavar="QUEUE...", nargs=-1, required=True, shell_complete=complete_queues)
#: Without a value the command is about all queues.
any_queues_argument = click.argument("queues", metavar="[QUEUE]...", nargs=-1, shell_complete=complete_queues)


def limit_option(default: int, meaning: str) -> Callable[[F], F]:
    """An option `--limit` of at least 1."""
    kind = click.IntRange(min=1)
    return click.option("--limit", type=kind, default=default, show_default=True, metavar="N", help=meaning)


json_flag = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
verbose_flag = click.option("--verbose", "-v", is_flag=True, help="Log more.")
log_format_option = click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Format of the log on stderr.",
)
utc_flag = click.option("--utc", is_flag=True, help="Show times exactly, not as ages.")
#: `Program.main` looks for the flag among the arguments.
debug_flag = click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of a bug.")


yes_flag = click.option("--yes", "-y", is_flag=True, help="Do not ask.")
dry_run_flag = click.option("--dry-run", is_flag=True, help="Show the changes without making them.")


def confirm(question: str, *, yes: bool) -> None:
    """Ask, unless `yes`. Raises `Refused` if the answer is no, `UsageError` if there is no terminal to ask."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError("no terminal for the question: use --yes to go on, or --dry-run to see the changes")
    try:
        agreed = click.confirm(question, err=True)
    except click.Abort as aborted:
        click.echo(err=True)  # ends the line of the question
        if not isinstance(aborted.__context__, EOFError):
            raise
        agreed = False
    if not agreed:
        raise Refused("nothing was done")
