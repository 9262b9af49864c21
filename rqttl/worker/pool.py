"""The handlers of one process: how they are loaded by name, and the threads or coroutines that call them.

They report by frames: arrays as msgpack, one after the other, in both directions between a worker and its children.
"""

from __future__ import annotations

import asyncio
import enum
import importlib
import inspect
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext, suppress
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any

import msgpack

from rqttl import delivery, units
from rqttl.consuming.handling import ACK, NoHandler, Outcome, of_error, trace_of
from rqttl.delivery import Delivery
from rqttl.protocol import codec
from rqttl.protocol.commands import QueueConfig
from rqttl.text import format_value
from rqttl.types import Duration

#: The name of the mapping of a module whose handlers are chosen by the header `type`.
HANDLERS = "HANDLERS"
#: The handler in it for messages of all other types. Without one they fail, and come again.
DEFAULT = "default"
#: The number of coroutines of a handler that is a coroutine function, if the user gives none.
COROUTINES = 100
#: Seconds that a cancelled coroutine has to end before its child gets SIGTERM.
CANCEL_GRACE = 0.5
#: A message for a handler: its key, the options of its queue, and its content.
Order = tuple[int, QueueConfig, delivery.DeliveryFields]
#: Sends a frame with its contents to the worker. Any thread may call it.
Send = Callable[..., None]
#: The most bytes of one read.
CHUNK = 1 << 18


class HandlerNotLoaded(Exception):
    """The handler cannot be loaded. Arguments: the reason, in one line, and the traceback of the user's code or ""."""


@dataclass(frozen=True, slots=True)
class Handler:
    """A loaded handler: the call with a delivery, its kind, and its end.

    Each call is within `watch(delivery)`. One call alone can end within `end_grace` seconds, if at all: a coroutine by
    its cancellation, any other one by `end(delivery)`.
    """

    call: Callable[[Delivery], Any]
    is_async: bool
    close: Callable[[], object] = lambda: None
    watch: Callable[[Delivery], AbstractContextManager[object]] = nullcontext
    end: Callable[[Delivery], object] | None = None
    end_grace: float | None = None


def load(name: str, function: Any, *, with_delivery: bool) -> Handler:
    """Load a handler by its name, unless `function` is one. Raises `HandlerNotLoaded`.

    It is a function, an object that can be called, a class, which is made once, or a mapping of handlers by type. With
    `with_delivery` it gets the delivery, else the decoded value.
    """
    try:
        if function is None:
            module, _, attribute = name.partition(":")
            function = attrgetter(attribute or HANDLERS)(importlib.import_module(module))
        if inspect.isclass(function):
            function = function()
    except (Exception, SystemExit) as error:
        trace = trace_of(error, "<frozen importlib", importlib.__file__)
        text = f"call: {name}: {type(error).__name__}: {error}".replace("\n", " ")
        raise HandlerNotLoaded(text, trace if "  File " in trace else "") from error
    return _of_function(function, name, with_delivery=with_delivery)


def _of_function(function: Any, name: str, *, with_delivery: bool) -> Handler:
    close = getattr(function, "close", None)
    is_mapping = isinstance(function, Mapping)
    functions = dict(function) if is_mapping else {DEFAULT: function}
    for kind, target in functions.items():
        _check_callable(target, f"{name}[{kind!r}]" if is_mapping else name)
    is_async = any(map(_is_async, functions.values()))
    if inspect.iscoroutinefunction(close) and not is_async:
        raise HandlerNotLoaded(f"call: {name}: `close` is a coroutine function, but the handler is not", "")
    if is_async:
        functions = {kind: each if _is_async(each) else partial(_in_thread, each) for kind, each in functions.items()}

    def call(item: Delivery) -> Any:
        target = functions.get(item.headers.get("type")) if is_mapping else None
        target = target or functions.get(DEFAULT)
        if target is None:
            kind = format_value(item.headers.get("type"))
            raise NoHandler(f"no handler for messages with the header type {kind}")
        return target(item if with_delivery else item.decode())

    grace = CANCEL_GRACE if is_async else None
    return Handler(call, is_async, close if callable(close) else lambda: None, end_grace=grace)


async def _in_thread(function: Callable[[Any], Any], value: Any) -> Any:
    """Call a plain function beside coroutines. A thread cannot be cancelled, so neither can this."""
    work = asyncio.get_running_loop().run_in_executor(None, copy_context().run, function, value)
    while not work.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait([work])
    return work.result()


def _check_callable(function: Any, name: str) -> None:
    if not callable(function):
        raise HandlerNotLoaded(f"call: {name}: expected a function, got {type(function).__name__}", "")
    for kind in (function, getattr(function, "__call__", None)):  # noqa: B004  # asks for its kind
        if inspect.isgeneratorfunction(kind) or inspect.isasyncgenfunction(kind):
            raise HandlerNotLoaded(
                f"call: {name}: expected a function, got one that yields: its work would not be done", ""
            )


def _is_async(function: Any) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004  # asks for its kind


class Frame(enum.IntEnum):
    """The kinds of frames, with their contents."""

    # From the worker to a child
    SETUP = 0  #: the first frame: the settings of the child, as a mapping
    RUN = 1  #: the queue, the JSON of its options, and the key and the fields of each message
    CANCEL = 2  #: cancel the coroutine of a key, or end its command
    STOP = 3  #: begin nothing more, give back what waits, and end when the handlers have ended
    TERMINATE = 4  #: the next SIGTERM is from the worker
    # From a child to the worker
    READY = 10  #: slots, and the seconds in which it can end one handler alone or none
    BROKEN = 11  #: the handler cannot be loaded: one line for people, and a traceback
    ENDED = 12  #: a handler has ended: its key, the seconds, and the outcome or none if it has settled the message
    SETTLED = 13  #: a handler has settled its message and goes on: its key and the outcome
    RENEW = 14  #: a handler renews its lease: its key and the length in ms
    UNSEEN = 15  #: after STOP: the keys of messages that no handler has begun


def pack(kind: Frame, *content: Any) -> bytes:
    """Encode a frame."""
    frame = (int(kind), *content)
    packed: bytes = msgpack.packb(frame, use_bin_type=True, unicode_errors="backslashreplace")  # errors of users
    return packed


def unpacker(file: Any = None) -> Any:
    """Return an iterator over the frames of a file; without one, over the complete frames of `feed(data)`."""
    return msgpack.Unpacker(file, read_size=CHUNK, raw=False, use_list=False, max_buffer_size=2**31 - 1)


def _check_done(result: object) -> None:
    """Raise `TypeError` for the result of a handler whose work nobody has done: an ack would lose the message."""
    if inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result):
        if inspect.iscoroutine(result):
            result.close()
        raise TypeError(f"the handler returned a {type(result).__name__} that nobody awaited: make it async def")


class Pool:
    """The common part of threads and coroutines."""

    def __init__(self, handler: Handler, slots: int, send: Send) -> None:
        self.slots = slots
        self._handler, self._send = handler, send
        self._orders: queue.SimpleQueue[Order | None] = queue.SimpleQueue()

    def put(self, orders: Sequence[Order]) -> None:
        """Take messages."""
        for order in orders:
            self._orders.put(order)

    def take_back(self) -> list[int]:
        """Take the messages back that no handler has begun. Returns their keys."""
        keys = []
        with suppress(queue.Empty):  # handlers may take messages meanwhile
            while (order := self._orders.get_nowait()) is not None:
                keys.append(order[0])
        return keys

    def _delivery(self, order: Order) -> Delivery:
        key, config, content = order
        return delivery.from_delivery_fields(delivery.Settler(partial(self._settle, key)), config, content)

    def _settle(
        self, key: int, how: str, items: Sequence[Delivery], time: Duration | None, description: str | None
    ) -> None:
        """Tell the worker that a handler settles its delivery, or renews the lease. Later it has no effect."""
        [item] = items
        item.check_unsettled()
        if how == "renew":
            length = item.lease if time is None else int(units.duration(time, "lease", least=1))
            self._send(Frame.RENEW, key, length)
            return
        # a description as it will be stored: `InvalidInput` comes where a settle by Redis would raise it
        text = codec.pack_description(description).decode() or None
        ms = None if time is None else int(units.duration(time, "delay"))
        item.settled = "nack" if how == "release" else how
        self._send(Frame.SETTLED, key, Outcome(how, ms, text))

    def _end(self, key: int, item: Delivery, error: BaseException | None, began: float) -> None:
        """Report the end of a handler. It may have settled its message itself."""
        seconds, outcome = time.monotonic() - began, None
        try:
            if item.settled is None or not (error is None or isinstance(error, delivery.Decision)):
                outcome = ACK if error is None else of_error(error)
            self._send(Frame.ENDED, key, seconds, outcome)
        except Exception as failure:  # noqa: BLE001  # without an outcome the message would stay leased for ever
            words = f"{type(error).__name__}: the error could not be reported: {codec.describe(failure)}"
            self._send(Frame.ENDED, key, seconds, Outcome("nack", None, words, ""))


class ThreadPool(Pool):
    """Threads with one message each. `run` works in the calling thread, too, until `stop`."""

    def __init__(self, handler: Handler, slots: int, send: Send) -> None:
        super().__init__(handler, slots, send)
        self._items: dict[int, Delivery] = {}

    def run(self, begin: Callable[[], None]) -> None:
        """Call `begin`, and handle messages until `stop`, with all threads. Then close the handler."""
        begin()
        others = [threading.Thread(target=self._work, daemon=True) for _ in range(self.slots - 1)]
        for thread in others:
            thread.start()
        self._work()
        for thread in others:
            thread.join()
        self._handler.close()

    def stop(self) -> None:
        """End all threads after their messages."""
        for _ in range(self.slots):
            self._orders.put(None)

    def cancel(self, key: int) -> None:
        """End the work for a message, if the handler can. A thread cannot be cancelled."""
        item = self._items.get(key)
        if item is not None and self._handler.end is not None:
            self._handler.end(item)

    def _work(self) -> None:
        try:
            self._handle()
        finally:  # if this thread ends unasked, so does the child: its message would stay leased for ever
            self.stop()

    def _handle(self) -> None:
        call, watch = self._handler.call, self._handler.watch
        while (order := self._orders.get()) is not None:
            key, began, error = order[0], time.monotonic(), None
            item = self._items[key] = self._delivery(order)
            try:
                with watch(item):
                    result = call(item)
                if result is not None:
                    _check_done(result)
            except BaseException as failure:  # noqa: BLE001  # without its thread a message would stay leased for ever
                error = failure
            del self._items[key]
            self._end(key, item, error, began)
            del item, error  # not kept until the next message


class CoroutinePool(Pool):
    """Coroutines of one event loop, `slots` at a time."""

    _loop: asyncio.AbstractEventLoop

    def __init__(self, handler: Handler, slots: int, send: Send) -> None:
        super().__init__(handler, slots, send)
        self._tasks: dict[int, asyncio.Task[Any]] = {}
        self._stopped = asyncio.Event()

    def run(self, begin: Callable[[], None]) -> None:
        """Call `begin`, and handle messages until `stop`. Then close the handler, in the loop of its coroutines."""
        asyncio.run(self._serve(begin))

    async def _serve(self, begin: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.set_default_executor(ThreadPoolExecutor(self.slots))  # asyncio.run ends it
        begin()
        await self._stopped.wait()
        if self._tasks:
            await asyncio.wait(list(self._tasks.values()))
        closing = self._handler.close()
        if inspect.isawaitable(closing):
            await closing

    def put(self, orders: Sequence[Order]) -> None:
        """Take messages."""
        super().put(orders)
        self._soon(self._start)

    def stop(self) -> None:
        """End the loop after the messages at hand."""
        self._soon(self._stopped.set)

    def cancel(self, key: int) -> None:
        """Cancel the coroutine of a message."""
        self._soon(lambda: key in self._tasks and self._tasks[key].cancel())

    def _soon(self, call: Callable[[], object]) -> None:
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(call)

    def _start(self) -> None:
        with suppress(queue.Empty):
            while len(self._tasks) < self.slots and (order := self._orders.get_nowait()) is not None:
                self._tasks[order[0]] = self._loop.create_task(self._guard(order))

    async def _guard(self, order: Order) -> None:
        try:
            await self._handle(order)
        except BaseException:  # as in threads
            self._stopped.set()
            raise

    async def _handle(self, order: Order) -> None:
        key, item, began, error = order[0], self._delivery(order), time.monotonic(), None
        try:
            with self._handler.watch(item):
                result = self._handler.call(item)
                if inspect.isawaitable(result):
                    result = await result
            _check_done(result)
        except BaseException as failure:  # noqa: BLE001  # as in threads
            error = failure
        del self._tasks[key]
        self._end(key, item, error, began)
        self._start()
