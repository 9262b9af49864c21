"""The flags of `rqttl worker`, and its QUEUE arguments with weights."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from rqttl.cli.common.params import DURATION, DurationType, F, log_format_option, verbose_flag
from rqttl.text import format_value
from rqttl.worker.settings import MOST_PROCESSES, MOST_SLOTS, MOST_WEIGHT

#: A decorator that gives a command an option.
_Option = Callable[[Any], Any]
_POSITIVE = DurationType(least=1)
_WEIGHT = re.compile(r"[1-9][0-9]{0,6}")


def _number(flag: str, most: int, meaning: str, least: int = 1) -> _Option:
    kind = click.IntRange(least, most)
    return click.option(flag, type=kind, metavar="N", help=meaning)


def _time(flag: str, meaning: str) -> _Option:
    return click.option(flag, type=_POSITIVE, metavar="TIME", help=meaning)


def _delay(flag: str, meaning: str) -> _Option:
    return click.option(flag, type=DURATION, metavar="TIME", help=meaning)


def _flag(flag: str, meaning: str) -> _Option:
    return click.option(flag, is_flag=True, help=meaning)


#: The flags in the order of the help.
_FLAGS: tuple[_Option, ...] = (
    click.option(
        "--call",
        metavar="MODULE:NAME",
        help="Function to call with each message; MODULE: takes one of its HANDLERS, by the header type.",
    ),
    click.option("--exec", "execute", metavar="COMMAND", help="Command to run for each message, without a shell."),
    click.option("--delivery", is_flag=True, help="Call the function with the delivery, not with the value."),
    click.option(
        "--queues-file", type=click.Path(path_type=Path), metavar="FILE", help="File with further queues, one a line."
    ),
    _number("--processes", MOST_PROCESSES, "Child processes; 0 = run handlers here.  [default: one a core]", 0),
    _number("--threads", MOST_SLOTS, "Messages that a process handles at a time.  [default: 1]"),
    _number("--asyncio", MOST_SLOTS, "Coroutines of a process.  [default for coroutine functions: 100]"),
    _time("--lease", "Lease of each delivery, instead of the queue's own."),
    _time("--timeout", "End a handler after this time; its message fails."),
    _number("--max-messages", 2**53, "Replace a child after so many messages."),
    click.option("--max-memory", metavar="SIZE", help="Replace a child above so much memory, such as 500M."),
    click.option(
        "--grace",
        type=DURATION,
        metavar="TIME",
        default="25s",
        show_default=True,
        help="Time that handlers get to end when the worker stops.",
    ),
    _delay("--retry-delay", "Delay after a failure, doubled by each one.  [default: 1s]"),
    _delay("--retry-max", "Longest delay after a failure.  [default: 10m, or a longer --retry-delay]"),
    click.option(
        "--retry-jitter",
        type=click.FloatRange(0, 1),
        default=0.2,
        show_default=True,
        metavar="X",
        help="Random part of the delay.",
    ),
    _flag("--burst", "End when no message is ready or at work."),
    _time("--idle-exit", "End when no message has come for this time."),
    _flag("--reaper", "Run a reaper as well."),
    click.option("--health", metavar="HOST:PORT", help="Serve /livez, /readyz and /metrics here."),
    log_format_option,
    verbose_flag,
)


#: The sections of the help.
SECTIONS: Mapping[str, Sequence[str]] = {
    "What to run": ("--call", "--exec", "--delivery", "--queues-file"),
    "How many": ("--processes", "--threads", "--asyncio"),
    "Time and retries": ("--lease", "--timeout", "--retry-delay", "--retry-max", "--retry-jitter"),
    "When to stop": ("--burst", "--idle-exit", "--grace", "--max-messages", "--max-memory"),
    "Observe": ("--health", "--log-format", "--verbose", "--reaper"),
}


def worker_flags(command: F) -> F:
    """Give a command the flags of a worker."""
    for option in reversed(_FLAGS):
        command = option(command)
    return command


def read_queues(arguments: Sequence[str], file: Path | None) -> dict[str, int | None]:
    """Read queues with their weights, such as `orders=3`, of arguments and of a file. Raises `click.UsageError`.

    Without weights the order counts. A file has one queue on each line; lines that begin with # are comments.
    """
    words = [*arguments, *(_lines(file) if file is not None else ())]
    queues: dict[str, int | None] = {}
    for word in words:
        name, weight = _split(word)
        if queues.setdefault(name, weight) != weight:
            raise click.BadParameter(f"{name} has two weights", param_hint="QUEUE")
    weights = list(queues.values())
    if None in weights and any(weight is not None for weight in weights):
        raise click.UsageError("give each QUEUE a weight, or none of them")
    return queues


def _split(word: str) -> tuple[str, int | None]:
    """Return the name and the weight of a QUEUE argument. No name has a =."""
    name, sign, weight = word.rpartition("=")
    if not sign:
        return word, None
    if not _WEIGHT.fullmatch(weight) or int(weight) > MOST_WEIGHT:
        rule = f"expected a weight from 1 to {MOST_WEIGHT} after ="
        raise click.BadParameter(f"{rule}, got {format_value(word)}", param_hint="QUEUE")
    return name, int(weight)


def _lines(file: Path) -> list[str]:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error  # without the name of the file once more
        raise click.BadParameter(f"{file}: {reason}", param_hint="'--queues-file'") from None
    return [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
