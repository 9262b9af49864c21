"""The options of a worker, and their checks. No I/O."""

from __future__ import annotations

import inspect
import os
import re
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict

from rqttl import checks, units
from rqttl.checks import MOST_WEIGHT, check_name_or_pattern
from rqttl.consuming.handling import RetryPolicy
from rqttl.errors import InvalidInput
from rqttl.text import did_you_mean, format_value, plain_number, plain_text
from rqttl.types import Duration

#: The largest number of processes, and of threads and coroutines.
MOST_PROCESSES, MOST_SLOTS = 1024, 10_000
_HANDLER = re.compile(r"[A-Za-z_][\w.]*:[\w.]*")


class WorkerOptions(TypedDict, total=False):
    """The options of `rqttl.Worker`. `rqttl worker --help` explains them."""

    call: str | Callable[..., object] | None
    exec: str | Sequence[str] | None
    delivery: bool
    processes: int | None
    threads: int | None
    asyncio: int | None
    lease: Duration | None
    timeout: Duration | None
    max_messages: int | None
    max_memory: int | str | None
    grace: Duration
    retry_delay: Duration | None
    retry_max: Duration | None
    retry_jitter: float
    burst: bool
    idle_exit: Duration | None
    reaper: bool
    health: str | None


#: The delays after failures where neither is given. The longest one is the first one if that is longer.
RETRY_DELAY, RETRY_MAX = "1s", "10m"
#: Options that have no effect beside another one, and the reason.
_EXCLUDING = (
    ("delivery", "exec", "a command gets no delivery"),
    ("asyncio", "exec", "commands are not coroutines, and `threads` is their number"),
    ("asyncio", "threads", "handlers are coroutines or run in threads"),
    ("idle_exit", "burst", "the worker ends earlier"),
)


def _number(least: int, most: int) -> Callable[[object, str], int]:
    return lambda value, name: checks.whole(value, name, least, most)


def _ms(value: Any, name: str) -> int:
    return int(units.duration(value, name, least=1))


def _size(value: object, name: str) -> int:
    number = units.size(value)
    if not number or number < 0:
        raise InvalidInput(f"{name}: expected bytes such as 500MB or 2GiB, got {format_value(value, int)}")
    return number


def _command(command: object, _: str) -> list[str]:
    """Return the words of a command. No shell is involved."""
    if isinstance(command, bytes | bytearray) or not isinstance(command, str | Sequence):
        raise InvalidInput(f"exec: expected a command, got {format_value(command)}")
    try:
        words = shlex.split(command) if isinstance(command, str) else [str(word) for word in command]
    except ValueError as error:
        raise InvalidInput(f"exec: {error}") from None
    if not words:
        raise InvalidInput("exec: expected a command, got nothing")
    if shutil.which(words[0]) is None:
        raise InvalidInput(f"exec: there is no program {words[0]!r}")
    return words


def address(value: object, name: str) -> tuple[str, int]:
    """Return the host and the port of `HOST:PORT`. Raises `InvalidInput` with `name`."""
    text = plain_text(value) or ""
    host, colon, port = text.rpartition(":")
    if not colon or not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > 65_535:
        raise InvalidInput(f"{name}: expected HOST:PORT, got {format_value(value)}")
    return host.strip("[]"), int(port)


#: The default of each option, and the function that checks and reads a value. `handler` and `retries` check the others.
_OPTIONS: dict[str, tuple[Any, Callable[[Any, str], Any] | None]] = {
    "call": (None, None),
    "exec": (None, _command),
    "delivery": (False, checks.boolean),
    "processes": (None, _number(0, MOST_PROCESSES)),
    "threads": (None, _number(1, MOST_SLOTS)),
    "asyncio": (None, _number(1, MOST_SLOTS)),
    "lease": (None, _ms),
    "timeout": (None, _ms),
    "max_messages": (None, _number(1, 2**53)),
    "max_memory": (None, _size),
    "grace": (25_000, units.duration),
    "retry_delay": (None, None),
    "retry_max": (None, None),
    "retry_jitter": (0.2, None),
    "burst": (False, checks.boolean),
    "idle_exit": (None, _ms),
    "reaper": (False, checks.boolean),
    "health": (None, address),
}


def read(options: WorkerOptions) -> dict[str, Any]:
    """Return the values of all options. Raises `InvalidInput`, also for those that are wrong together."""
    for name in options:
        if name not in _OPTIONS:
            raise InvalidInput(f"unknown worker option {format_value(name)}{did_you_mean(name, _OPTIONS)}")
    given: Mapping[str, Any] = options
    values: dict[str, Any] = {}
    for name, (default, check) in _OPTIONS.items():
        value = given.get(name, default)
        values[name] = value if check is None or value is default else check(value, name)
    for name, other, reason in _EXCLUDING:
        if all(values[each] is not None and values[each] is not False for each in (name, other)):
            raise InvalidInput(f"{name}: it has no effect beside `{other}`: {reason}")
    for name in ("timeout", "max_messages", "max_memory") if values["processes"] == 0 else ():
        if values[name]:
            raise InvalidInput(f"{name}: it needs child processes, and `processes` is 0")
    if values["processes"] is None:
        # macOS cannot tell which cores this process may use
        values["processes"] = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return values


def handler(call: object, command: object, number: int) -> str | None:
    """Return the name of a handler for children; `None` for a command, or a function if the `number` of them is 0."""
    if (call is None) == (command is None):
        raise InvalidInput(f"call: use either `call` or `exec`{'' if call is None else ', not both'}")
    name = plain_text(call)
    if call is None or (name is None and number == 0):
        return None
    if name is None:
        return name_of(call)
    if not _HANDLER.fullmatch(name):
        raise InvalidInput(f"call: expected package.module:name, got {format_value(call)}")
    return name


def name_of(function: object) -> str:
    """Return the name by which a child process can import a function. Raises `InvalidInput`."""
    module = getattr(function, "__module__", None)
    name = getattr(function, "__qualname__", None)
    importable = inspect.isroutine(function) or inspect.isclass(function)
    if not importable or not module or module == "__main__" or not name or "<" in name:
        raise InvalidInput(
            "call: expected package.module:name, or a function that child processes can import by its name; "
            f"got {format_value(function)} (if `processes` is 0, any function is possible)"
        )
    return f"{module}:{name}"


def queues(names: object) -> dict[str, int | None]:
    """Return queues and patterns with their weights; without weights in strict order."""
    items: Any = [(names, None)]
    if isinstance(names, Mapping):
        items = names.items()
    elif not isinstance(names, str):
        items = [(name, None) for name in checks.items(names, "queues", "names of queues")]
    weights = dict[str, int | None]()
    for name, weight in items:
        text = check_name_or_pattern(name, "queues")
        weights[text] = None if weight is None else checks.whole(weight, "queues: weight", 1, MOST_WEIGHT)
    if not weights:
        raise InvalidInput("queues: expected at least one name or pattern")
    without = [name for name, weight in weights.items() if weight is None]
    if 0 < len(without) < len(weights):
        raise InvalidInput(f"queues: expected a weight for each queue or for none, got none for {without[0]!r}")
    return weights


def retries(first: Duration | None, longest: Duration | None, jitter: object) -> RetryPolicy:
    """Return the delays after failures."""
    part = plain_number(jitter)
    if part is None or not 0 <= part <= 1:
        raise InvalidInput(f"retry_jitter: expected a number from 0 to 1, got {format_value(jitter)}")
    pause = int(units.duration(RETRY_DELAY if first is None else first, "retry_delay"))
    most = int(units.duration(RETRY_MAX if longest is None else longest, "retry_max"))
    if longest is None:
        most = max(most, pause)
    elif first is not None and pause > most:
        most_text, text = units.as_text(most), units.as_text(pause)
        raise InvalidInput(f"retry_delay: expected {most_text} at most, which is `retry_max`, got {text}")
    return RetryPolicy(pause, most, float(part))
