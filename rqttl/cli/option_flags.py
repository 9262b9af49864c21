"""The options of a queue as flags, made from the one table of options."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click
from click.shell_completion import CompletionItem

from rqttl.cli.common.option_text import flag, format_value
from rqttl.cli.common.params import DURATION, F, SectionedCommand, ValueType
from rqttl.cli.common.queue_names import complete_queues
from rqttl.options import OPTIONS, Option
from rqttl.text import nearest

_TYPES: dict[str, Any] = {"duration": DURATION, "count": int, "number": float}
_METAVARS = {"duration": "TIME", "count": "N", "size": "SIZE", "number": "NUMBER", "target": "QUEUE"}
_COMPLETIONS: dict[str, Any] = {"target": complete_queues}


#: The sections of a help with options of queues.
SECTIONS: Mapping[str, Sequence[str]] = {
    "Lifetime of messages": ("message_ttl", "default_ttl", "min_ttl", "max_ttl", "never_expire"),
    "Limits": ("max_length", "max_length_bytes", "overflow", "max_message_bytes"),
    "Dead letters": tuple(name for name in OPTIONS if name.startswith("dead_letter")),
    "Retries": ("lease", "max_deliveries", *(name for name in OPTIONS if name.startswith("redelivery"))),
    "End of the queue": ("expires", "auto_delete_on_idle", "on_expire"),
    "Other options of a queue": ("duplicate_window",),
}


class QueueOptionsCommand(SectionedCommand):
    """A command with the options of queues."""

    sections = {title: tuple(map(flag, names)) for title, names in SECTIONS.items()}  # noqa: RUF012  # never changed


def queue_options(command: F) -> F:
    """Give a command a flag for every option of a queue. An absent flag is `None`."""
    for option in reversed(tuple(OPTIONS.values())):
        command = _flag(option)(command)
    return command


def _flag(option: Option) -> Callable[[F], F]:
    name = flag(option.name)
    meaning = option.meaning[:1].upper() + option.meaning[1:]
    if option.kind == "flag":
        return click.option(f"{name}/--no-{name[2:]}", default=None, help=f"{meaning}.")
    default = f"  [default: {format_value(option, option.default)}]" if option.default is not None else ""
    return click.option(
        name,
        type=click.Choice(option.choices) if option.kind == "choice" else _TYPES.get(option.kind),
        metavar=_METAVARS.get(option.kind),
        shell_complete=_COMPLETIONS.get(option.kind),
        help=f"{meaning}.{default}",
    )


class OptionNameType(ValueType):
    """The name of a queue option, as in Python or as a flag: `max_length`, `max-length`, `--max-length`."""

    name = "option"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Read a name."""
        name = value.removeprefix("--").replace("-", "_")
        if name not in OPTIONS:
            near = nearest(name, OPTIONS)
            hint = f"; did you mean --unset {flag(near)[2:]}?" if near else ""
            self.fail(f"no queue option is called {value!r}{hint}", param, ctx)
        return name

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG002  # click gives them
        """The names that begin with a half-typed word."""
        names = [flag(option)[2:] for option in OPTIONS]
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def unique(context: click.Context, option: click.Parameter, values: Sequence[str]) -> list[str]:  # noqa: ARG001  # click gives them
    """Values, each once. For `callback`."""
    return list(dict.fromkeys(values))
