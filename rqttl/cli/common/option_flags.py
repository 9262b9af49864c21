"""Queue options on the command line: flags, and values as text and as JSON. All of it follows the table of options."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from rqttl.cli.common.params import DURATION, F, Read, SectionedCommand, complete_queues, with_options
from rqttl.errors import InvalidInput
from rqttl.options import OPTIONS, Option, QueueOptions, Value
from rqttl.text import nearest
from rqttl.units import as_text

#: Names of options with an underscore, which no English word has; not within a longer name or a quoted value.
_NAMES = re.compile(
    rf"(?<![\w'\"./:{{-])({'|'.join(sorted((name for name in OPTIONS if '_' in name), key=len, reverse=True))})"
    r"(?![\w'\"/}-]|\.\w)"
)


def flag(option: str) -> str:
    """The flag of an option."""
    return f"--{option.replace('_', '-')}"


#: Arguments of the library that are no queue options, and their flags.
_FLAGS = {
    **{name: flag(name) for name in ("id", "ttl", "expires_at", "content_type", "scan_period", "namespace", "after")},
    "headers": "--header",
    "queues": "QUEUE",
}


def format_value(option: Option, value: Value | None) -> str:
    """The value of an option as people write it on the command line."""
    if value is None:
        return "(none)"
    if option.kind == "duration":
        return as_text(int(value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    if option.kind in ("count", "size"):
        return f"{value:,}"
    return str(value) or "(drop)"


def with_flags(message: str) -> str:
    """A message of the library in which options have the names of their flags: `max_length` is `--max-length`."""
    return _NAMES.sub(lambda name: flag(name[0]), message)


def naming_flag(message: str) -> str:
    """`with_flags`; a message that begins with an argument, `id: expected …`, then begins with its flag.

    If its rule names another argument in backquotes, this becomes a flag, too.
    """
    from rqttl.worker.settings import WorkerOptions  # slow to load, and errors are few

    flags = {name: flag(name) for name in (*OPTIONS, *WorkerOptions.__annotations__)} | _FLAGS
    name, colon, rule = message.partition(": ")
    if name not in flags or not colon:
        return with_flags(message)
    rule = re.sub(r"`(\w+)`", lambda other: flags.get(other[1], other[0]), with_flags(rule))
    return f"{flags[name]}: {rule}"


def json_name(option: str) -> str:
    """The name of an option in JSON, with the unit of a duration."""
    return f"{option}_ms" if OPTIONS[option].kind == "duration" else option


def to_json(options: QueueOptions) -> dict[str, Any]:
    """All options of a queue, for `text.dump_json`."""
    return {json_name(name): value for name, value in options.items()}


# Flags

_TYPES: dict[str, Any] = {"duration": DURATION, "count": int, "number": float}
_METAVARS = {"duration": "TIME", "count": "N", "size": "SIZE", "number": "NUMBER", "target": "QUEUE"}

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


def _flag(option: Option) -> Callable[[F], F]:
    name = flag(option.name)
    meaning = with_flags(option.meaning[:1].upper() + option.meaning[1:])
    if option.kind == "flag":
        return click.option(f"{name}/--no-{name[2:]}", default=None, help=f"{meaning}.")
    default = f"  [default: {format_value(option, option.default)}]" if option.default is not None else ""
    return click.option(
        name,
        type=click.Choice(option.choices) if option.kind == "choice" else _TYPES.get(option.kind),
        metavar=_METAVARS.get(option.kind),
        shell_complete=complete_queues if option.kind == "target" else None,
        help=f"{meaning}.{default}",
    )


#: Gives a command a flag for every option of a queue. An absent flag is `None`.
queue_options = with_options(*map(_flag, OPTIONS.values()))


def _read_name(text: str) -> str:
    """The name of a queue option, as in Python or as a flag: `max_length`, `max-length`, `--max-length`."""
    name = text.removeprefix("--").replace("-", "_")
    if name not in OPTIONS:
        near = nearest(name, OPTIONS)
        hint = f"; did you mean --unset {flag(near)[2:]}?" if near else ""
        raise InvalidInput(f"option: no queue option is called {text!r}{hint}")
    return name


OPTION_NAME = Read("option", _read_name, [flag(option)[2:] for option in OPTIONS])
