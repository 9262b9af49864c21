"""Several observers in the place of one, and the observers of new brokers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

from rqttl.errors import InvalidInput, QueueFull
from rqttl.observing.observer import Observer, Received, Sending
from rqttl.observing.watching import Watch, notify, sending
from rqttl.text import format_value
from rqttl.types import Message, Receipt, SweepResult

logger = logging.getLogger("rqttl.observer")


class Observers(Observer):
    """Several observers in the place of one. Each sees the messages as those before it have changed them.

    Raises `InvalidInput` for anything but observers.
    """

    def __init__(self, *observers: Observer) -> None:
        for observer in observers:
            if checked(observer) is None:
                raise InvalidInput("observer: expected an Observer, got None")
        #: The observers, in the order of their calls.
        self.members = observers

    def sending(self, queue: str, messages: Sequence[Message | object]) -> Sending:
        """See `Observer`."""
        return _SendingOfAll(self.members, queue, messages)

    def received(self, queue: str, deliveries: Sequence[Received], seconds: float) -> None:
        """See `Observer`."""
        for observer in self.members:
            notify(observer.received, queue, deliveries, seconds)

    def handling(self, delivery: Received) -> AbstractContextManager[object]:
        """See `Observer`."""
        return _All([(observer.handling, (delivery,)) for observer in self.members])

    def settling(self, queue: str, how: str, deliveries: Sequence[Received]) -> AbstractContextManager[object]:
        """See `Observer`."""
        return _All([(observer.settling, (queue, how, deliveries)) for observer in self.members])

    def swept(self, queue: str, swept: SweepResult) -> None:
        """See `Observer`."""
        for observer in self.members:
            notify(observer.swept, queue, swept)


class _SendingOfAll(Sending):
    def __init__(self, observers: Sequence[Observer], queue: str, messages: Sequence[Message | object]) -> None:
        super().__init__(messages)
        self._observers, self._queue = observers, queue
        self._watches: list[sending] = []

    def __enter__(self) -> Sequence[Message | object]:
        for observer in self._observers:
            self._watches.append(sending(observer, self._queue, self.messages))
            self.messages = self._watches[-1].messages
        return self.messages

    def stored(self, results: Sequence[Receipt | QueueFull]) -> None:
        for watch in self._watches:
            watch.stored(results)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for watch in reversed(self._watches):
            watch.end(error)


class _All(AbstractContextManager[None]):
    """Context managers of several observers, around one call."""

    def __init__(self, calls: Sequence[tuple[Callable[..., AbstractContextManager[Any]], tuple[object, ...]]]) -> None:
        self._calls = calls
        self._watches: list[Watch] = []

    def __enter__(self) -> None:
        self._watches = [Watch(begin, *arguments) for begin, arguments in self._calls]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for watch in reversed(self._watches):
            watch.end(error)


def checked(observer: object) -> Observer | None:
    """Return an observer or `None`. Raises `InvalidInput` for anything else."""
    if observer is None or isinstance(observer, Observer):
        return observer
    raise InvalidInput(f"observer: expected an Observer or None, got {format_value(observer)}")


def members(observer: Observer | None) -> tuple[Observer, ...]:
    """Return the observers in the place of one."""
    if observer is None:
        return ()
    return observer.members if isinstance(observer, Observers) else (observer,)


def joined(observers: Sequence[Observer]) -> Observer | None:
    """Return one observer for several, or `None` for none."""
    return Observers(*observers) if len(observers) > 1 else observers[0] if observers else None


# New brokers


class _Start:
    """The function that makes the observer of each new broker."""

    make: Callable[[Any], Observer | None] | None = None


def observe_new(make: Callable[[Any], Observer | None] | None) -> None:
    """Give each broker that is made from now on the observer `make(broker)`; with `None`, none.

    A child of a worker has no broker: the observer of its handlers is `make(None)`.
    """
    _Start.make = make


def observer_of_new(broker: object | None) -> Observer | None:
    """Return the observer of a new broker, or with `None` that of the handlers in a child of a worker."""
    if _Start.make is None:
        return None
    try:
        return checked(_Start.make(broker))
    except Exception:
        logger.exception("an observer failed; the broker has none")
        return None
