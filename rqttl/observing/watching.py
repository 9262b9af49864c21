"""Calls of observers. An exception of an observer is logged (`rqttl.observer`), and the call goes on as without it."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from time import perf_counter
from types import TracebackType
from typing import Any, TypeVar

from rqttl.errors import QueueFull
from rqttl.observing.observer import Observer, Received, Sending
from rqttl.types import Message, Receipt, SweepResult

logger = logging.getLogger("rqttl.observer")

D = TypeVar("D", bound=Received)
S = TypeVar("S")
T = TypeVar("T")


def notify(call: Callable[..., object], *arguments: object) -> None:
    """Call a method of an observer."""
    try:
        call(*arguments)
    except Exception as error:  # noqa: BLE001  # an observer may raise anything, and must not break a call
        log_failure(error)


def log_failure(error: Exception) -> None:
    """Log the exception of an observer."""
    logger.error("an observer failed; the call goes on", exc_info=error)


class Watch:
    """A context manager of an observer, whose exceptions are logged. It begins when it is made."""

    __slots__ = ("_context", "value")

    def __init__(self, begin: Callable[..., AbstractContextManager[Any]], *arguments: object) -> None:
        self._context: AbstractContextManager[Any] | None = None
        #: The value of the context manager; `None` after an exception.
        self.value: Any = None
        try:
            context = begin(*arguments)
            self.value = context.__enter__()
            self._context = context
        except Exception as error:  # noqa: BLE001  # see `notify`
            log_failure(error)

    def end(self, error: BaseException | None) -> None:
        """End the context manager, once. It sees the exception of the call and cannot suppress it."""
        context, self._context = self._context, None
        if context is None:
            return
        try:
            context.__exit__(None if error is None else type(error), error, error.__traceback__ if error else None)
        except Exception as failure:  # noqa: BLE001  # see `notify`
            if failure is not error:
                log_failure(failure)

    def __enter__(self) -> Watch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end(error)


class sending(Watch):  # noqa: N801  # it is used as a function: `with sending(…) as sent:`
    """A call that sends messages, as a context manager. `messages` are those to send."""

    __slots__ = ("messages",)

    def __init__(self, observer: Observer, queue: str, messages: Sequence[Message | object]) -> None:
        super().__init__(observer.sending, queue, messages)
        self.messages = messages
        if self.value is not None:
            if isinstance(self.value, Sequence) and len(self.value) == len(messages):
                self.messages = self.value
            else:
                logger.error(
                    "an observer gave no message for each of %d messages; they are sent as they are", len(messages)
                )

    def __enter__(self) -> sending:
        return self

    def stored(self, results: Sequence[Receipt | QueueFull]) -> None:
        """Show the observer the result of each message."""
        if isinstance(self._context, Sending):
            notify(self._context.stored, results)


#: The delivery whose handler works in this thread or task.
_handled: ContextVar[object] = ContextVar("rqttl_handled", default=None)


class handling(Watch):  # noqa: N801  # it is used as a function: `with handling(…):`
    """The handler of one message, as a context manager. `with delivery:` within a handler begins no second one."""

    __slots__ = ("_before", "_is_inner")

    def __init__(self, observer: Observer, delivery: Received) -> None:
        self._before = _handled.get()
        self._is_inner = self._before is delivery
        if self._is_inner:
            self._context = None
            return
        super().__init__(observer.handling, delivery)
        _handled.set(delivery)

    def end(self, error: BaseException | None) -> None:
        """See `Watch`."""
        if not self._is_inner:
            _handled.set(self._before)
            super().end(error)


def observed(observer: Observer, handler: Callable[[D], Any]) -> Callable[[D], Any]:
    """Return a handler that the observer sees."""

    def call(delivery: D) -> Any:
        with handling(observer, delivery):
            return handler(delivery)

    return call


def observed_async(observer: Observer, handler: Callable[[D], Any]) -> Callable[[D], Any]:
    """Return a coroutine function, or a function among such, that the observer sees."""

    async def call(delivery: D) -> Any:
        with handling(observer, delivery):
            result = handler(delivery)
            return await result if inspect.isawaitable(result) else result

    return call


def settling(observer: Observer, queue: str, how: str, deliveries: Sequence[Received]) -> Watch:
    """A call that settles deliveries, as a context manager."""
    return Watch(observer.settling, queue, how, deliveries)


def settled(
    observer: Observer, queue: str, how: str, deliveries: Sequence[Received], flow: Generator[S, Any, T]
) -> Generator[S, Any, T]:
    """Return a flow that settles, with its observer around it."""
    with settling(observer, queue, how, deliveries):
        return (yield from flow)


def received(observer: Observer | None, queue: str, deliveries: Sequence[Received], since: float) -> None:
    """Show an observer the messages of a call that began at `since`, a time of `perf_counter`."""
    if observer is not None and deliveries:
        notify(observer.received, queue, deliveries, perf_counter() - since)


def swept(observer: Observer, queue: str, result: SweepResult) -> None:
    """Show an observer the result of a sweep."""
    notify(observer.swept, queue, result)
