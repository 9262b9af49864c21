"""Events: values that describe the work of the library, for metrics, traces and the like.

They and the observer of a broker are the hooks of the library. Without a listener they cost one comparison with `None`
for each call.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar, overload

from rqttl.errors import InvalidInput
from rqttl.observing import Observer
from rqttl.text import format_value
from rqttl.types import SweepResult


@dataclass(frozen=True, slots=True)
class CommandEvent:
    """The broker sent a command to Redis and got its reply, or an error.

    `name` is a script of rqttl in lower case (`enqueue`) or a command of Redis in upper case (`HMGET`, `BLPOP`).
    `queue` is the queue of a script or of a wait, `None` for a command of Redis. `seconds` is the time of all attempts;
    each command of a pipeline has the time of the whole round trip. `outcome` is `ok`, the code of a refusal (`stale`),
    or the class of an exception (`ConnectionError`); for a wait also `timeout` or `interrupted`.
    """

    name: str
    queue: str | None
    seconds: float
    outcome: str


@dataclass(frozen=True, slots=True)
class WaitEvent:
    """A call or a consumer begins to wait for a message. The `BLPOP` of the wait is a `CommandEvent`."""

    queue: str


@dataclass(frozen=True, slots=True)
class RenewalEvent:
    """A consumer has renewed the leases of `count` deliveries."""

    queue: str
    count: int


@dataclass(frozen=True, slots=True)
class SweepEvent:
    """A reaper has carried out one bounded sweep of a queue."""

    queue: str
    swept: SweepResult


Event: TypeAlias = CommandEvent | WaitEvent | RenewalEvent | SweepEvent
E = TypeVar("E", CommandEvent, WaitEvent, RenewalEvent, SweepEvent)
_KINDS = (CommandEvent, WaitEvent, RenewalEvent, SweepEvent)


class Events:
    """The listeners of one broker. Safe to share between threads.

    A listener is called in the thread in which the event happens. An exception that it raises reaches the caller of the
    operation.
    """

    def __init__(self) -> None:
        self._changing = threading.Lock()
        self._listeners: tuple[tuple[Callable[[Any], object], type | None], ...] = ()
        #: For the library: a function that calls all listeners with an event. `None` without listeners.
        self.notify: Callable[[Event], None] | None = None
        #: For the library: the observer of the broker; `None` without one.
        self.observer: Observer | None = None

    @overload
    def subscribe(self, listener: Callable[[Event], object]) -> None: ...

    @overload
    def subscribe(self, listener: Callable[[E], object], kind: type[E]) -> None: ...

    def subscribe(self, listener: Callable[[Any], object], kind: type | None = None) -> None:
        """Call `listener(event)` for each event, or for each event of class `kind`. Raises `InvalidInput`."""
        if not callable(listener):
            raise InvalidInput(f"listener: expected a function of an event, got {format_value(listener)}")
        if kind is not None and not any(kind is event for event in _KINDS):
            expected = ", ".join(event.__name__ for event in _KINDS)
            raise InvalidInput(f"kind: expected one of the classes {expected}, got {format_value(kind)}")
        with self._changing:
            self._listeners += ((listener, kind),)
            self.notify = self._notify

    def unsubscribe(self, listener: Callable[[Any], object]) -> None:
        """Stop calling a listener. A listener may unsubscribe while it is called. Unknown listeners are ignored."""
        with self._changing:
            self._listeners = tuple(entry for entry in self._listeners if entry[0] != listener)
            if not self._listeners:
                self.notify = None

    def _notify(self, event: Event) -> None:
        for listener, kind in self._listeners:
            if kind is None or type(event) is kind:
                listener(event)
