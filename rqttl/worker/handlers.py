"""Handlers by name: `package.module:name`, and routing by the header `type`."""

from __future__ import annotations

import asyncio
import importlib
import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from rqttl import events as hook
from rqttl.consuming.handling import NoHandler, trace_of
from rqttl.delivery import Delivery
from rqttl.events import Observer
from rqttl.text import format_value

#: The name of the mapping of a module whose handlers are chosen by the header `type`.
HANDLERS = "HANDLERS"
#: The handler in it for messages of all other types. Without one they fail, and come again.
DEFAULT = "default"


class HandlerNotLoaded(Exception):
    """The handler cannot be loaded. The text says why, in one line; `trace` is the traceback of the user's code."""

    def __init__(self, text: str, trace: str = "") -> None:
        super().__init__(text)
        self.trace = trace


@dataclass(frozen=True, slots=True)
class Handler:
    """A loaded handler: the call with a delivery, its kind, and its end.

    `end` lets the work for one delivery end, within `end_grace` seconds; without it that is impossible.
    """

    call: Callable[[Delivery], Any]
    is_async: bool
    close: Callable[[], object] = lambda: None
    end: Callable[[Delivery], object] | None = None
    end_grace: float | None = None


def load(name: str, *, with_delivery: bool) -> Handler:
    """Load a handler. With `with_delivery` it gets the delivery, else the decoded value. Raises `HandlerNotLoaded`."""
    module_name, _, attribute = name.partition(":")
    try:
        module = importlib.import_module(module_name)
        function: Any = module
        for part in (attribute or HANDLERS).split("."):
            function = getattr(function, part)
    except (Exception, SystemExit) as error:
        raise _not_loaded(name, error) from error
    return of_function(function, name, with_delivery=with_delivery)


def of_function(function: Any, name: str, *, with_delivery: bool) -> Handler:
    """Return a function, an object that can be called, or a mapping of them by type, as a handler.

    A class is made once. Raises `HandlerNotLoaded`.
    """
    if inspect.isclass(function):
        try:
            function = function()
        except (Exception, SystemExit) as error:
            raise _not_loaded(name, error) from error
    close = getattr(function, "close", None)
    if isinstance(function, Mapping):
        functions = dict(function)
        for kind, target in functions.items():
            _check_callable(target, f"{name}[{kind!r}]")

        def call(delivery: Delivery) -> Any:
            kind = delivery.headers.get("type")
            target = functions.get(kind) or functions.get(DEFAULT)
            if target is None:
                raise NoHandler(f"no handler for messages with the header type {format_value(kind)}")
            return target(delivery if with_delivery else delivery.decode())

        is_async = any(map(_is_async, functions.values()))
        if is_async:
            functions = {
                kind: target if _is_async(target) else partial(_in_thread, target) for kind, target in functions.items()
            }
    else:
        _check_callable(function, name)
        is_async = _is_async(function)
        if inspect.iscoroutinefunction(close) and not is_async:
            raise HandlerNotLoaded(f"call: {name}: `close` is a coroutine function, and the handler is none")
        call = function if with_delivery else lambda delivery: function(delivery.decode())
    return Handler(call, is_async, close if callable(close) else lambda: None)


def watched(handler: Handler, observer: Observer | None) -> Handler:
    """Return a handler that an observer sees; without one, the handler itself."""
    if observer is None:
        return handler

    def call(delivery: Delivery) -> Any:
        with hook.handling(observer, delivery):
            return handler.call(delivery)

    async def call_async(delivery: Delivery) -> Any:
        with hook.handling(observer, delivery):
            return await handler.call(delivery)

    return replace(handler, call=call_async if handler.is_async else call)


async def _in_thread(function: Callable[[Any], Any], value: Any) -> Any:
    """Call a plain function beside coroutines. A thread cannot be cancelled, so neither can this."""
    work = asyncio.get_running_loop().run_in_executor(None, copy_context().run, function, value)
    while not work.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait([work])
    return work.result()


def _not_loaded(name: str, error: BaseException) -> HandlerNotLoaded:
    trace = trace_of(error, "<frozen importlib", importlib.__file__)
    text = f"call: {name}: {type(error).__name__}: {error}".replace("\n", " ")
    return HandlerNotLoaded(text, trace if "  File " in trace else "")


def _check_callable(function: Any, name: str) -> None:
    if not callable(function):
        raise HandlerNotLoaded(f"call: {name}: expected a function, got {type(function).__name__}")
    for kind in (function, getattr(function, "__call__", None)):  # noqa: B004  # asks for its kind
        if inspect.isgeneratorfunction(kind) or inspect.isasyncgenfunction(kind):
            raise HandlerNotLoaded(
                f"call: {name}: expected a function, got one that yields: its work would not be done"
            )


def _is_async(function: Any) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004  # asks for its kind
