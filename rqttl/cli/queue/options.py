"""The options of a queue as flags, made from the one table that declares them."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from rqttl.cli.common.option_text import flag, shown
from rqttl.cli.common.queue_names import complete_queues
from rqttl.cli.common.settings import read_duration
from rqttl.options import OPTIONS, Option

F = TypeVar("F", bound=Callable[..., Any])

_READ: dict[str, dict[str, Any]] = {
    "duration": {"callback": read_duration},
    "count": {"type": int},
    "number": {"type": float},
}
_METAVARS = {"duration": "TIME", "count": "N", "number": "NUMBER", "target": "QUEUE"}
_COMPLETED: dict[str, dict[str, Any]] = {"target": {"shell_complete": complete_queues}}


def queue_options(command: F) -> F:
    """Give a command a flag for every option of a queue. What is not given is `None`."""
    for option in reversed(tuple(OPTIONS.values())):
        command = _flag(option)(command)
    return command


def _flag(option: Option) -> Callable[[F], F]:
    name = flag(option.name)
    meaning = option.meaning[:1].upper() + option.meaning[1:]
    if option.kind == "flag":
        return click.option(f"{name}/--no-{name[2:]}", default=None, help=f"{meaning}.")
    default = f"  [default: {shown(option, option.default)}]" if option.default is not None else ""
    reading = {"type": click.Choice(option.choices)} if option.kind == "choice" else _READ.get(option.kind, {})
    completing = _COMPLETED.get(option.kind, {})
    return click.option(name, metavar=_METAVARS.get(option.kind), help=f"{meaning}.{default}", **reading, **completing)


def read_names(context: click.Context, option: click.Parameter, values: Sequence[str]) -> list[str]:
    """The names of queue options, written as in Python or as flags (`max_length`, `max-length`). For `callback`."""
    names = [value.removeprefix("--").replace("-", "_") for value in values]
    for name, value in zip(names, values, strict=True):
        if name not in OPTIONS:
            near = difflib.get_close_matches(name, OPTIONS, n=1)
            hint = f"; did you mean --unset {flag(near[0])[2:]}?" if near else ""
            raise click.BadParameter(f"no queue option is called {value!r}{hint}", context, option)
    return list(dict.fromkeys(names))


def complete_names(_context: click.Context, _option: click.Parameter, begun: str) -> list[str]:
    """The names of queue options that begin so. For `shell_complete`."""
    return [name for name in (flag(option)[2:] for option in OPTIONS) if name.startswith(begun)]
