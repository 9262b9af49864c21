"""Hooks: functions that are told what the library does. Inert unless somebody listens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class CommandEvent:
    """One command that a broker sent to Redis, after its reply.

    `name` is a script of rqttl in lower case (`enqueue`) or a command of Redis in upper case (`HMGET`, `BLPOP`).
    `queue` is the queue of a script or of a wait, `None` for a command of Redis. `seconds` holds all attempts; commands
    that travel together share the time of their round trip. `outcome` is `ok`, the code of a refusal (`stale`), or the
    class of an exception (`ConnectionError`); of a wait also `timeout` or `interrupted`.
    """

    name: str
    queue: str | None
    seconds: float
    outcome: str


@dataclass(slots=True)
class Events:
    """Listeners of one broker: functions in lists, each called in the thread in which the event happens.

    `on_command(event)` is called after every command that is sent to Redis, also for each one of a pipeline and for
    each wait. `on_waiting(queue)` is called when a consumer is about to wait. `on_renewed(queue, count)` is called when
    `consume` has renewed leases. An exception that a listener raises reaches the caller of the operation.
    """

    on_command: list[Callable[[CommandEvent], None]] = field(default_factory=list)
    on_waiting: list[Callable[[str], None]] = field(default_factory=list)
    on_renewed: list[Callable[[str, int], None]] = field(default_factory=list)
