"""The settings of a worker, checked. No I/O."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from rqttl import checks, units
from rqttl.errors import InvalidInput
from rqttl.names import check_name_or_pattern, is_pattern
from rqttl.text import did_you_mean, format_value, plain_number, plain_text
from rqttl.units import Duration
from rqttl.worker import commands
from rqttl.worker.outcomes import RetryPolicy

#: The largest number of processes, of threads and coroutines, and of a weight.
MOST_PROCESSES, MOST_SLOTS, MOST_WEIGHT = 1024, 10_000, 1_000_000
_HANDLER = re.compile(r"[A-Za-z_][\w.]*:[\w.]*")


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of a worker. Times are seconds; `idle_exit` and `lease` are ms."""

    queues: Mapping[str, int | None]
    call: str | None
    function: Callable[..., Any] | None
    exec: list[str] | None
    delivery: bool
    processes: int
    threads: int | None
    asyncio: int | None
    lease: int | None
    timeout: float | None
    max_messages: int | None
    max_memory: int | None
    grace: float
    retries: RetryPolicy
    burst: bool
    idle_exit: int | None
    reaper: bool
    health: tuple[str, int] | None
    health_file: str | None

    @property
    def patterns(self) -> list[str]:
        """The patterns among the names of queues."""
        return [name for name in self.queues if is_pattern(name)]


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
    health_file: str | None


#: The pauses after failures where neither is given. The longest one is the first one if that is longer.
RETRY_DELAY, RETRY_MAX = "1s", "10m"
_SWITCHES = ("delivery", "burst", "reaper")
#: The options whose default is not `None`.
DEFAULTS = {"grace": "25s", "retry_jitter": 0.2, **dict.fromkeys(_SWITCHES, False)}
#: The options that need child processes.
_OF_CHILDREN = ("timeout", "max_messages", "max_memory")
#: Options that have no effect beside another one, and the reason.
_EXCLUDING = (
    ("delivery", "exec", "a command gets no delivery"),
    ("asyncio", "exec", "commands are not coroutines, and `threads` is their number"),
    ("asyncio", "threads", "handlers are coroutines or run in threads"),
    ("idle_exit", "burst", "the worker ends earlier"),
)


def read(queues: object, options: Mapping[str, Any]) -> Settings:
    """Check the arguments of a worker and return its settings. Raises `InvalidInput`."""
    names = WorkerOptions.__annotations__
    for name in options:
        if name not in names:
            raise InvalidInput(f"{format_value(name)} is no option of a worker{did_you_mean(name, names)}")
    values: dict[str, Any] = {**dict.fromkeys(names), **DEFAULTS, **options}
    handler = _handler(values["call"], values["exec"], values["processes"])
    for name in _SWITCHES:
        if not isinstance(values[name], bool):
            raise InvalidInput(f"{name}: expected true or false, got {format_value(values[name])}")
    for name, other, reason in _EXCLUDING:
        if all(values[each] is not None and values[each] is not False for each in (name, other)):
            raise InvalidInput(f"{name}: it has no effect beside `{other}`: {reason}")
    processes, idle, lease = values["processes"], values["idle_exit"], values["lease"]
    number = default_processes() if processes is None else checks.whole(processes, "processes", 0, MOST_PROCESSES)
    for name in _OF_CHILDREN if number == 0 else ():
        if values[name]:
            raise InvalidInput(f"{name}: it needs child processes, and `processes` is 0")
    return Settings(
        queues=_queues(queues),
        **handler,
        **{name: values[name] for name in _SWITCHES},
        processes=number,
        threads=_whole_or_none(values["threads"], "threads", MOST_SLOTS),
        asyncio=_whole_or_none(values["asyncio"], "asyncio", MOST_SLOTS),
        lease=None if lease is None else int(units.duration(lease, "lease", least=1)),
        timeout=_seconds(values["timeout"], "timeout"),
        max_messages=_whole_or_none(values["max_messages"], "max_messages", 2**53),
        max_memory=_size(values["max_memory"]),
        grace=units.duration(values["grace"], "grace") / 1000,
        retries=_retries(values["retry_delay"], values["retry_max"], values["retry_jitter"]),
        idle_exit=None if idle is None else int(units.duration(idle, "idle_exit", least=1)),
        health=None if values["health"] is None else address(values["health"], "health"),
        health_file=_file(values["health_file"]),
    )


def default_processes() -> int:
    """Return the number of cores that this process may use."""
    try:
        return max(1, len(os.sched_getaffinity(0)))
    except AttributeError:  # there is no such call on macOS
        return max(1, os.cpu_count() or 1)


def _handler(call: object, execute: object, processes: object) -> dict[str, Any]:
    if call is None and execute is None:
        raise InvalidInput("call: use either `call` or `exec`")
    if call is not None and execute is not None:
        raise InvalidInput("call: use either `call` or `exec`, not both")
    if execute is not None:
        if isinstance(execute, bytes | bytearray) or not isinstance(execute, str | Sequence):
            raise InvalidInput(f"exec: expected a command, got {format_value(execute)}")
        return {"call": None, "function": None, "exec": commands.split(execute)}
    name = plain_text(call)
    if name is not None:
        if not _HANDLER.fullmatch(name):
            raise InvalidInput(f"call: expected package.module:name, got {format_value(call)}")
        return {"call": name, "function": None, "exec": None}
    if processes == 0:
        return {"call": None, "function": call, "exec": None}
    return {"call": name_of(call), "function": None, "exec": None}


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


def _queues(queues: object) -> dict[str, int | None]:
    weights: dict[str, int | None] = {}
    if isinstance(queues, Mapping):
        items: Iterable[tuple[Any, Any]] = queues.items()
    elif isinstance(queues, str):
        items = [(queues, None)]
    else:
        items = [(name, None) for name in checks.items(queues, "queues", "names of queues")]
    for name, weight in items:
        text = check_name_or_pattern(name, "queues")
        weights[text] = None if weight is None else checks.whole(weight, "queues: weight", 1, MOST_WEIGHT)
    if not weights:
        raise InvalidInput("queues: expected at least one name or pattern")
    without = [name for name, weight in weights.items() if weight is None]
    if 0 < len(without) < len(weights):
        raise InvalidInput(f"queues: expected a weight for each queue or for none, got none for {without[0]!r}")
    return weights


def _whole_or_none(value: object, name: str, most: int) -> int | None:
    return None if value is None else checks.whole(value, name, 1, most)


def _seconds(value: Duration | None, name: str) -> float | None:
    return None if value is None else units.duration(value, name, least=1) / 1000


def _size(value: object) -> int | None:
    """Return bytes: a whole number, or text such as `100MB`."""
    if value is None:
        return None
    size = units.size(value)
    if not size or size < 0:
        raise InvalidInput(f"max_memory: expected bytes such as 500MB or 2GiB, got {format_value(value, int)}")
    return size


def _file(value: object) -> str | None:
    """Return the name of a file: text or a path."""
    text = plain_text(str(value) if isinstance(value, Path) else value)
    if value is not None and not text:
        raise InvalidInput(f"health_file: expected the name of a file, got {format_value(value)}")
    return text


def _retries(first: Duration | None, longest: Duration | None, jitter: object) -> RetryPolicy:
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


def address(value: object, name: str) -> tuple[str, int]:
    """Return the host and the port of `HOST:PORT`. Raises `InvalidInput` with `name`."""
    text = plain_text(value) or ""
    host, colon, port = text.rpartition(":")
    if not colon or not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > 65_535:
        raise InvalidInput(f"{name}: expected HOST:PORT, got {format_value(value)}")
    return host.strip("[]"), int(port)
