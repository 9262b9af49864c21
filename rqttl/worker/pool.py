"""The handlers of one process: some threads, or some coroutines of an event loop, with one message each."""

from __future__ import annotations

import asyncio
import inspect
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, NamedTuple

from rqttl import delivery as deliveries
from rqttl import units
from rqttl.decisions import Decision
from rqttl.delivery import Delivery, Parcel, Settler, check_unsettled, mark
from rqttl.protocol import codec
from rqttl.protocol.commands import QueueConfig
from rqttl.units import Duration
from rqttl.worker.handlers import Handler, HandlerNotLoaded
from rqttl.worker.outcomes import Outcome, of_error

#: The number of coroutines of a handler that is a coroutine function, if the user gives none.
COROUTINES = 100
#: Seconds that a cancelled coroutine has to end before its child gets SIGTERM.
CANCEL_GRACE = 0.5

#: A message for a handler: its key, the options of its queue, and its content.
Order = tuple[int, QueueConfig, Parcel]


class Reports(NamedTuple):
    """The calls by which handlers report. Any thread may call them."""

    #: A handler has ended well: the key of its message, and the seconds that it took.
    done: Callable[[int, float], None]
    #: A handler has ended in another way. Without an outcome it has settled the message itself.
    failed: Callable[[int, Outcome | None, float], None]
    #: A handler has settled its message, and goes on.
    settled: Callable[[int, Outcome], None]
    #: A handler renews its lease for another length in ms.
    renewed: Callable[[int, int], None]


class Pool:
    """The common part of threads and coroutines: deliveries that report, and the ends of handlers.

    A settle after the end of the handler changes nothing, because the end has settled the message.
    """

    def __init__(self, handler: Handler, number: int, reports: Reports) -> None:
        self.slots = number
        self._handler, self._reports = handler, reports
        self._is_settled_by_user = handler.settles or handler.end is not None
        self._keys: dict[int, int] = {}
        self._items: dict[int, Delivery] = {}
        self._settler = Settler(self._settle)

    def _begin(self, order: Order) -> Delivery:
        """Return the delivery for a handler."""
        key, config, content = order
        item = deliveries.from_parcel(self._settler, config, content)
        if self._is_settled_by_user:
            self._keys[id(item)] = key
            self._items[key] = item
        return item

    def _end(self, key: int, item: Delivery, error: BaseException | None, seconds: float) -> None:
        """Report the end of a handler. It may have settled its message itself."""
        if self._is_settled_by_user:
            del self._keys[id(item)], self._items[key]
        if item.settled is not None and (error is None or isinstance(error, Decision)):
            self._reports.failed(key, None, seconds)
        elif error is None:
            self._reports.done(key, seconds)
        else:
            self._reports.failed(key, of_error(error), seconds)

    def _settle(self, how: str, items: Sequence[Delivery], time: Duration | None, description: str | None) -> None:
        [item] = items
        check_unsettled(item)
        key = self._keys.get(id(item))
        if how == "renew":
            length = deliveries.lease_of(item) if time is None else int(units.duration(time, "lease", least=1))
            if key is not None:
                self._reports.renewed(key, length)
            return
        # a description as it will be stored: `InvalidInput` comes where a settle by Redis would raise it
        text = codec.pack_description(description).decode() or None
        ms = None if time is None else int(units.duration(time, "delay"))
        mark(item, "nack" if how == "release" else how)
        if key is not None:
            self._reports.settled(key, Outcome(how, ms, text))


def _check_done(result: object) -> None:
    """Raise `TypeError` for the result of a handler whose work nobody has done: an ack would lose the message."""
    if inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result):
        if inspect.iscoroutine(result):
            result.close()
        raise TypeError(f"the handler returned a {type(result).__name__} that nobody awaited: make it async def")


class ThreadPool(Pool):
    """Threads with one message each. `run` works in the calling thread, too, until `stop`."""

    def __init__(self, handler: Handler, number: int, reports: Reports) -> None:
        super().__init__(handler, number, reports)
        self.cancel_grace = handler.end_grace
        self._orders: queue.SimpleQueue[Order | None] = queue.SimpleQueue()

    def run(self) -> None:
        """Handle messages until `stop`, with all threads. Then close the handler."""
        others = [threading.Thread(target=self._work, daemon=True) for _ in range(self.slots - 1)]
        for thread in others:
            thread.start()
        self._work()
        for thread in others:
            thread.join()
        self._handler.close()

    def put(self, orders: Sequence[Order]) -> None:
        """Take messages."""
        for order in orders:
            self._orders.put(order)

    def stop(self) -> list[int]:
        """End all threads after their messages. Returns the keys of the messages that no handler has begun."""
        keys = []
        with suppress(queue.Empty):  # handlers may take messages meanwhile
            while (order := self._orders.get_nowait()) is not None:
                keys.append(order[0])
        for _ in range(self.slots):
            self._orders.put(None)
        return keys

    def cancel(self, key: int) -> None:
        """End the work for a message, if the handler can. A thread cannot be cancelled."""
        item = self._items.get(key)
        if item is not None and self._handler.end is not None:
            self._handler.end(item)

    def _work(self) -> None:
        call, clock = self._handler.call, time.monotonic
        while (order := self._orders.get()) is not None:
            item, began, error = self._begin(order), clock(), None
            try:
                result = call(item)
                if result is not None:
                    _check_done(result)
            except BaseException as failure:  # noqa: BLE001  # without its thread a message would stay leased for ever
                error = failure
            self._end(order[0], item, error, clock() - began)
            del item, error  # not kept until the next message


class CoroutinePool(Pool):
    """Coroutines of one event loop, `number` at a time."""

    def __init__(self, handler: Handler, number: int, reports: Reports) -> None:
        super().__init__(handler, number, reports)
        self.cancel_grace = CANCEL_GRACE
        self._waiting: deque[Order] = deque()
        self._tasks: dict[int, asyncio.Task[Any]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped: asyncio.Event | None = None
        self._has_to_stop = False

    def run(self) -> None:
        """Handle messages until `stop`. Then close the handler, in the loop of its coroutines."""
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._stopped = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._loop.set_default_executor(ThreadPoolExecutor(self.slots))  # asyncio.run ends it
        self._start()
        if not self._has_to_stop:
            await self._stopped.wait()
        if self._tasks:
            await asyncio.wait(list(self._tasks.values()))
        closing = self._handler.close()
        if inspect.isawaitable(closing):
            await closing

    def put(self, orders: Sequence[Order]) -> None:
        """Take messages."""
        self._waiting.extend(orders)
        self._soon(self._start)

    def stop(self) -> list[int]:
        """End the loop after the messages at hand. Returns the keys of the messages that no handler has begun."""
        self._has_to_stop, keys = True, []
        with suppress(IndexError):  # the loop may take messages meanwhile
            while True:
                keys.append(self._waiting.popleft()[0])
        if self._stopped is not None:
            self._soon(self._stopped.set)
        return keys

    def cancel(self, key: int) -> None:
        """Cancel the coroutine of a message."""
        self._soon(lambda: key in self._tasks and self._tasks[key].cancel())

    def _soon(self, call: Callable[[], object]) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(call)

    def _start(self) -> None:
        assert self._loop is not None  # noqa: S101  # for the type checker: this is a callback of the loop
        with suppress(IndexError):  # another thread may take the messages back
            while len(self._tasks) < self.slots:
                order = self._waiting.popleft()
                self._tasks[order[0]] = self._loop.create_task(self._handle(order))

    async def _handle(self, order: Order) -> None:
        item, began, error = self._begin(order), time.monotonic(), None
        try:
            result = self._handler.call(item)
            if inspect.isawaitable(result):
                result = await result
            _check_done(result)
        except BaseException as failure:  # noqa: BLE001  # as in threads
            error = failure
        del self._tasks[order[0]]
        self._end(order[0], item, error, time.monotonic() - began)
        self._start()


def pool_for(
    handler: Handler, threads: int | None, coroutines: int | None, reports: Reports
) -> ThreadPool | CoroutinePool:
    """Return coroutines for a coroutine function, and threads for any other one. Raises `HandlerNotLoaded`."""
    if not handler.is_async:
        return ThreadPool(handler, threads or coroutines or 1, reports)
    if threads is not None:
        raise HandlerNotLoaded(
            "threads: the function of `call` is a coroutine function: `asyncio` is the number of these"
        )
    return CoroutinePool(handler, coroutines or COROUTINES, reports)
