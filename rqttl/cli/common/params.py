"""Parameters: their types, what several commands have, and the options of a queue as flags and as values."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from rqttl import units
from rqttl.checks import check_id, check_queue_name, key_and_value
from rqttl.errors import InvalidInput
from rqttl.options import CONTROLS, DECLARED_ONLY, OPTIONS, Option, QueueOptions
from rqttl.text import nearest

F = TypeVar("F", bound=Callable[..., Any])


def with_options(*options: Callable[[Any], Any]) -> Callable[[F], F]:
    """A decorator that gives a command these options, in the order of the help."""

    def add(command: F) -> F:
        decorated: Any = command
        for option in reversed(options):
            decorated = option(decorated)
        return decorated  # type: ignore[no-any-return]  # for click, the caller, it is the same

    return add


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


class Read(click.ParamType):  # type: ignore[type-arg]  # generic in new versions of click only
    """A parameter that `read` makes of text. An `InvalidInput` of it is wrong usage, with the rule after its colon.

    A half-typed word is completed from `words`.
    """

    def __init__(self, name: str, read: Callable[[str], Any], words: Sequence[str] = ()) -> None:
        self.name = name
        self._read = read
        self._words = words

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Read a text; any other value has been read already."""
        try:
            return self._read(value) if isinstance(value, str) else value
        except InvalidInput as error:
            self.fail(str(error).partition(": ")[2], param, ctx)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG002  # click gives them
        """The words that begin with a half-typed one."""
        return [CompletionItem(word) for word in self._words if word.startswith(incomplete)]


def duration(least: int = 0) -> Read:
    """A duration such as 30s, 5m, 1500ms, of `least` ms or more; a `timedelta` for the command."""
    return Read("duration", lambda text: units.as_timedelta(units.duration(text, "duration", least=least)))


def _read_text(text: str) -> str:
    if not text.isprintable():  # no half of a pair is printable
        raise InvalidInput(f"text: expected printable text, got {text!r}")
    return text


DURATION = duration()
#: A time such as 2026-11-21T10:00:00Z, or ms since 1970; ms since 1970 for the command.
INSTANT = Read("time", lambda text: units.instant(text, "time"))
PAIR = Read("pair", key_and_value)
#: The name of a queue, and the id of a message. A search for an impossible one could find nothing.
QUEUE_NAME, MESSAGE_ID = Read("queue", check_queue_name), Read("id", lambda text: check_id(text).decode())
TEXT = Read("text", _read_text)


# Completion with the names of queues

#: Seconds that the person at the keyboard waits for the names at most.
PATIENCE = 1.0


def complete_queues(context: click.Context, param: click.Parameter, prefix: str) -> list[str]:
    """The queues whose names begin with `prefix`, without those on the line. For `shell_complete`.

    The list is empty if no Redis answers in time. No embedded server is started for it.
    """
    names: list[str] = []

    def fetch() -> None:
        try:
            import rqttl
            from rqttl.embedded.folder import SCHEME, folder_of
            from rqttl.embedded.server import find

            running = find(folder_of(url)) if url.startswith(SCHEME) else url
            if running is not None:
                with rqttl.connect(running, namespace=namespace) as broker:
                    names.extend(broker.queues())
        except Exception:  # noqa: BLE001, S110  # any word about it would be written into the line that is being typed
            pass

    # a thread, since nothing else bounds the time that looking up a host may take; the process ends without it
    url = _option_value(context, "url") or os.environ.get("RQTTL_URL") or "embedded://"
    namespace = _option_value(context, "namespace") or "rqttl"
    request = threading.Thread(target=fetch, daemon=True)
    request.start()
    request.join(PATIENCE)
    taken = context.params.get(param.name or "") or ()
    return [name for name in tuple(names) if name.startswith(prefix) and (isinstance(taken, str) or name not in taken)]


def _option_value(context: click.Context, option: str) -> str | None:
    """The value of an option of this command, or of the same option before its name. No command has run yet."""
    inner: click.Context | None = context
    while inner is not None:
        if value := inner.params.get(option):
            return str(value)
        inner = inner.parent
    return None


# What several commands have

queue_argument = click.argument("queue", shell_complete=complete_queues)
#: The same argument for functions in a module that has a command `queue`.
queue_name_argument = click.argument("name", metavar="QUEUE", shell_complete=complete_queues)
queues_argument = click.argument("queues", metavar="QUEUE...", nargs=-1, required=True, shell_complete=complete_queues)
#: Without a value the command is about all queues.
any_queues_argument = click.argument("queues", metavar="[QUEUE]...", nargs=-1, shell_complete=complete_queues)


#: When messages are due; `deliver_at` is ms since 1970.
due_options = with_options(
    click.option("--delay", type=DURATION, metavar="TIME", help="Time from now until they are due."),
    click.option(
        "--at",
        "deliver_at",
        type=INSTANT,
        metavar="WHEN",
        help="Time at which they are due: 2026-12-01T10:00:00Z, or ms since 1970.",
    ),
)


def limit_option(default: int, meaning: str) -> Callable[[F], F]:
    """An option `--limit` of at least 1."""
    kind = click.IntRange(min=1)
    return click.option("--limit", type=kind, default=default, show_default=True, metavar="N", help=meaning)


json_flag = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
utc_flag = click.option("--utc", is_flag=True, help="Show times exactly, not as ages.")
#: `Program.main` looks for the flag among the arguments.
debug_flag = click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of a bug.")
yes_flag = click.option("--yes", "-y", is_flag=True, help="Do not ask.")
dry_run_flag = click.option("--dry-run", is_flag=True, help="Show the changes without making them.")


# Queue options: flags, and values as text and as JSON. All of it follows the table of options.

#: Names of options with an underscore, which no English word has; not within a longer name or a quoted value.
_NAMES = re.compile(
    rf"(?<![\w'\"./:{{-])({'|'.join(sorted((name for name in OPTIONS if '_' in name), key=len, reverse=True))})"
    r"(?![\w'\"/}-]|\.\w)"
)


def flag(option: str) -> str:
    """The flag of an option."""
    return f"--{option.replace('_', '-')}"


#: Arguments of the library that are no queue options, and those whose flags have other names.
_ARGUMENTS = ("id", "ttl", "expires_at", "content_type", "subject", "scan_period", "namespace", "after", "delay")
_FLAGS = {"deliver_at": "--at", "headers": "--header", "queues": "QUEUE"}


def with_flags(message: str) -> str:
    """A message of the library in which options have the names of their flags: `max_length` is `--max-length`."""
    return _NAMES.sub(lambda name: flag(name[0]), message)


def naming_flag(message: str) -> str:
    """`with_flags`; a message that begins with an argument, `id: expected …`, then begins with its flag.

    If its rule names another argument in backquotes, this becomes a flag, too.
    """
    from rqttl.worker.settings import WorkerOptions  # slow to load, and errors are few

    flags = {name: flag(name) for name in (*OPTIONS, *WorkerOptions.__annotations__, *_ARGUMENTS)} | _FLAGS
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
_METAVARS = {"duration": "TIME", "count": "N", "size": "SIZE", "number": "NUMBER", "target": "QUEUE", "rate": "N/TIME"}

#: The sections of a help with options of queues.
_SECTIONS: dict[str, Sequence[str]] = {
    "Lifetime of messages": ("message_ttl", "default_ttl", "min_ttl", "max_ttl", "never_expire"),
    "Limits": ("max_length", "max_length_bytes", "overflow", "max_message_bytes"),
    "Dead letters": tuple(name for name in OPTIONS if name.startswith("dead_letter")),
    "Retries": ("lease", "max_deliveries", *(name for name in OPTIONS if name.startswith("redelivery"))),
    "Control of consumers": CONTROLS,
    "End of the queue": ("expires", "auto_delete_on_idle", "on_expire"),
}
_SECTIONS["Other options of a queue"] = [name for name in OPTIONS if name not in chain(*_SECTIONS.values())]


class QueueOptionsCommand(SectionedCommand):
    """A command with the options of queues."""

    sections = {title: tuple(map(flag, names)) for title, names in _SECTIONS.items()}  # noqa: RUF012  # never changed


def _flag(option: Option) -> Callable[[F], F]:
    name = flag(option.name)
    meaning = with_flags(option.meaning[:1].upper() + option.meaning[1:])
    if option.kind == "flag":
        return click.option(f"{name}/--no-{name[2:]}", default=None, help=f"{meaning}.")
    default = f"  [default: {option.format(option.default)}]" if option.default is not None else ""
    return click.option(
        name,
        type=click.Choice(option.choices) if option.kind == "choice" else _TYPES.get(option.kind),
        metavar=_METAVARS.get(option.kind),
        shell_complete=complete_queues if option.kind == "target" else None,
        help=f"{meaning}.{default}",
    )


#: Gives a command a flag for every option of a queue. An absent flag is `None`.
queue_options = with_options(*map(_flag, OPTIONS.values()))
policy_options = with_options(*(_flag(option) for name, option in OPTIONS.items() if name not in DECLARED_ONLY))


def _read_name(text: str) -> str:
    """The name of a queue option, as in Python or as a flag: `max_length`, `max-length`, `--max-length`."""
    name = text.removeprefix("--").replace("-", "_")
    if name not in OPTIONS:
        near = nearest(name, OPTIONS)
        hint = f"; did you mean --unset {flag(near)[2:]}?" if near else ""
        raise InvalidInput(f"option: no queue option is called {text!r}{hint}")
    return name


OPTION_NAME = Read("option", _read_name, [flag(option)[2:] for option in OPTIONS])
