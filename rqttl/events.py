"""The hook of the library: an observer sees each command to Redis and each call about messages.

Without an observer or listener a call makes one comparison with `None`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from operator import attrgetter
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, overload

from rqttl.errors import InvalidInput, QueueFull
from rqttl.text import format_value
from rqttl.types import Receipt, SweepResult

logger = logging.getLogger("rqttl.observer")

S = TypeVar("S")
T = TypeVar("T")


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
#: The name of a command, and its queue if it is of one.
Place = tuple[str, str | None]


class Operation:
    """A call about messages, for an observer.

    `name` is `enqueue`, `receive`, `process` (the handler of one message), `ack`, `nack`, `reject`, `release` or
    `redrive`. `messages` are those to send, or the deliveries; a redrive has none. An observer of an `enqueue` may
    replace them when it begins, one for each, in their order. At the end of an `enqueue` `results` has the receipt or
    the refusal of each. A consumer and a worker collect acks: for them the call is that of the handler, and Redis gets
    the ack later. A `receive` is seen at its end, and only if it has received something.
    """

    __slots__ = ("began", "messages", "name", "queue", "results")

    def __init__(self, name: str, queue: str, messages: Sequence[Any], began: float | None = None) -> None:
        self.name, self.queue, self.messages = name, queue, messages
        self.results: Sequence[Receipt | QueueFull] = ()
        #: A time of `perf_counter`.
        self.began = perf_counter() if began is None else began

    def seconds(self) -> float:
        """Return the time since the begin of the call."""
        return perf_counter() - self.began


class Observer:
    """Sees the work of a broker. A subclass overrides the methods that it needs; their exceptions are logged."""

    def command(self, event: Event) -> None:
        """See a command, the begin of a wait, a renewal of leases, or a sweep of a reaper, in its thread."""

    def message(self, operation: Operation) -> AbstractContextManager[object]:  # noqa: ARG002  # for subclasses
        """Return a context manager around a call, in its thread or task. It sees the exception, and cannot stop it."""
        return nullcontext()


class Observers(Observer):
    """Several observers in the place of one. Each sees the messages as those before it have changed them."""

    def __init__(self, *observers: Observer) -> None:
        for observer in observers:
            if checked(observer) is None:
                raise InvalidInput("observer: expected an Observer, got None")
        #: The observers, in the order of their calls.
        self.members = observers

    def command(self, event: Event) -> None:
        """See `Observer`."""
        for observer in self.members:
            _guarded(observer.command, event)

    @contextmanager
    def message(self, operation: Operation) -> Iterator[None]:
        """See `Observer`."""
        with ExitStack() as stack:
            for observer in self.members:
                stack.enter_context(watching(observer, operation))
            yield


class Events:
    """The observer of one broker, and functions that listen to its events. Safe to share between threads.

    A function is called in the thread in which the event happens. An exception that it raises reaches the caller of the
    operation.
    """

    def __init__(self) -> None:
        self._changing = threading.Lock()
        self._listeners: tuple[tuple[Callable[[Any], object], type | None], ...] = ()
        self._observer: Observer | None = None
        #: For the library: a function that tells an event. `None` if nobody wants events.
        self.notify: Callable[[Event], None] | None = None

    def _observe(self, observer: Observer | None) -> None:
        with self._changing:
            self._observer = checked(observer)
            self._choose()

    if TYPE_CHECKING:
        observer: Observer | None
    else:  # each call about messages reads it, and this getter runs no Python
        observer = property(attrgetter("_observer"), _observe, doc="The observer of the broker; `None` without one.")

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
            self._choose()

    def unsubscribe(self, listener: Callable[[Any], object]) -> None:
        """Stop calling a listener. A listener may unsubscribe while it is called. Unknown listeners are ignored."""
        with self._changing:
            self._listeners = tuple(entry for entry in self._listeners if entry[0] != listener)
            self._choose()

    def _choose(self) -> None:
        sees = any(type(one).command is not Observer.command for one in members(self._observer))
        self.notify = self._notify if self._listeners or sees else None

    def _notify(self, event: Event) -> None:
        for listener, kind in self._listeners:
            if kind is None or type(event) is kind:
                listener(event)
        if self._observer is not None:
            _guarded(self._observer.command, event)


def checked(observer: object) -> Observer | None:
    """Return an observer or `None`. Raises `InvalidInput` for anything else."""
    if observer is None or isinstance(observer, Observer):
        return observer
    raise InvalidInput(f"observer: expected an Observer or None, got {format_value(observer)}")


def members(observer: Observer | None) -> tuple[Observer, ...]:
    """Return the observers in the place of one."""
    return observer.members if isinstance(observer, Observers) else () if observer is None else (observer,)


def joined(observers: Sequence[Observer]) -> Observer | None:
    """Return one observer for several, or `None` for none."""
    return Observers(*observers) if len(observers) > 1 else observers[0] if observers else None


# New brokers

_make: Callable[[Any], Observer | None] | None = None


def observe_new(make: Callable[[Any], Observer | None] | None) -> None:
    """Give each broker that is made from now on the observer `make(broker)`; with `None`, none.

    A child of a worker has no broker: the observer of its handlers is `make(None)`.
    """
    global _make  # noqa: PLW0603  # one for the process
    _make = make


def observer_of_new(broker: object | None) -> Observer | None:
    """Return the observer of a new broker, or with `None` that of the handlers in a child of a worker."""
    make = _make
    return None if make is None else _guarded(lambda: checked(make(broker)))


# For the library: commands


@contextmanager
def timed(notify: Callable[[Event], None], places: Sequence[Place]) -> Iterator[list[str]]:
    """Tell `notify` the commands of one round trip at its end. The block appends the outcome of each."""
    began, outcomes = perf_counter(), list[str]()
    try:
        yield outcomes
    except Exception as error:  # any other one leaves no outcome
        outcomes = [type(error).__name__] * len(places)
        raise
    finally:
        seconds = perf_counter() - began
        for place, outcome in zip(places, outcomes, strict=False):
            notify(CommandEvent(*place, seconds, outcome))


# For the library: calls about messages. An exception of an observer is logged, and the call goes on as without it.


def _guarded(call: Callable[..., T], *arguments: object) -> T | None:
    try:
        return call(*arguments)
    except Exception as error:  # an observer may raise anything, and must not break a call
        logger.error("an observer failed; the call goes on", exc_info=error)
        return None


@contextmanager
def watching(observer: Observer, operation: Operation) -> Iterator[Operation]:
    """A call under the eyes of its observer, which sees its exception and cannot suppress it."""
    messages, stack = operation.messages, ExitStack()

    def leave(error: BaseException | None) -> None:
        try:
            stack.__exit__(None if error is None else type(error), error, error.__traceback__ if error else None)
        except Exception as failure:
            if failure is not error:
                raise

    _guarded(lambda: stack.enter_context(observer.message(operation)))
    if operation.messages is not messages and len(operation.messages) != len(messages):
        logger.error("an observer changed the number of messages, %d; they are sent unchanged", len(messages))
        operation.messages = messages
    try:
        yield operation
    except BaseException as error:
        _guarded(leave, error)
        raise
    _guarded(leave, None)


#: The delivery whose handler works in this thread or task.
_handled: ContextVar[object] = ContextVar("rqttl_handled", default=None)


@contextmanager
def handling(observer: Observer, delivery: Any) -> Iterator[None]:
    """The handler of one message. `with delivery:` within a handler begins no second one."""
    before = _handled.get()
    _handled.set(delivery)
    operation = Operation("process", delivery.queue, [delivery])
    try:
        with nullcontext() if before is delivery else watching(observer, operation):
            yield
    finally:
        _handled.set(before)


def settled(
    observer: Observer, queue: str, how: str, deliveries: Sequence[Any], flow: Generator[S, Any, T]
) -> Generator[S, Any, T]:
    """Return a flow that settles, with its observer around it."""
    with watching(observer, Operation(how, queue, deliveries)):
        return (yield from flow)


def received(observer: Observer | None, queue: str, deliveries: Sequence[Any], since: float) -> None:
    """Show an observer the messages of a call that began at `since`, a time of `perf_counter`."""
    if observer is not None and deliveries:
        with watching(observer, Operation("receive", queue, deliveries, since)):
            pass
