"""The handlers of one process: some threads, or some coroutines of an event loop, with one message each."""

from __future__ import annotations

import asyncio
import inspect
import queue
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

from rqttl import delivery as deliveries
from rqttl import units
from rqttl.decisions import Decision
from rqttl.delivery import Delivery, Parcel, Settler, check_unsettled, mark
from rqttl.protocol import codec
from rqttl.protocol.commands import QueueConfig
from rqttl.units import Duration
from rqttl.worker.loading import Handler, HandlerNotLoaded
from rqttl.worker.outcomes import ACK, RELEASE, Outcome, of_error
from rqttl.worker.processes import end_copy, tell_copies
from rqttl.worker.reports import Reports
from rqttl.worker.supervision import CANCEL_GRACE

#: The number of coroutines of a handler that is a coroutine function, if the user gives none.
COROUTINES = 100


class Recorder:
    """The settler of the messages that handlers have: it reports instead of talking to Redis.

    A settle after the end of the handler changes nothing, because the end has settled the message.
    """

    def __init__(self, reports: Reports) -> None:
        self._reports = reports
        self._keys: dict[int, int] = {}
        self._items: dict[int, Delivery] = {}
        self._settler = Settler(self._ack, self._nack, self._reject, self._renew, self._release, None)

    def begin(self, order: Order) -> Delivery:
        """Return the delivery for a handler that may settle it."""
        item = deliveries.from_parcel(self._settler, order[1], order[2])
        self._keys[id(item)] = order[0]
        self._items[order[0]] = item
        return item

    def item_of(self, key: int) -> Delivery | None:
        """Return the delivery of a key whose handler works; `None` if none does."""
        return self._items.get(key)

    def plain(self, order: Order) -> Delivery:
        """Return the delivery for a handler that gets only its value."""
        return deliveries.from_parcel(self._settler, order[1], order[2])

    def leave(self) -> None:
        """Settle nothing: this process is a copy, which a handler has forked."""
        self._keys.clear()
        self._items.clear()
        self._reports.leave()

    def end(self, item: Delivery) -> None:
        """The handler has ended."""
        key = self._keys.pop(id(item), None)
        if key is not None:
            del self._items[key]

    def _ack(self, items: Sequence[Delivery]) -> None:
        self._report(items, "ack", ACK)

    def _nack(self, items: Sequence[Delivery], delay: Duration | None, description: str | None) -> None:
        ms = None if delay is None else int(units.duration(delay, "delay"))
        self._report(items, "nack", Outcome("nack", ms, _sendable(description)))

    def _reject(self, items: Sequence[Delivery], description: str | None) -> None:
        self._report(items, "reject", Outcome("reject", None, _sendable(description)))

    def _release(self, items: Sequence[Delivery]) -> None:
        self._report(items, "nack", RELEASE)

    def _renew(self, items: Sequence[Delivery], lease: Duration | None) -> None:
        check_unsettled(items[0])
        length = deliveries.lease_of(items[0]) if lease is None else int(units.duration(lease, "lease", least=1))
        key = self._keys.get(id(items[0]))
        if key is not None:
            self._reports.renewed(key, length)

    def _report(self, items: Sequence[Delivery], how: str, outcome: Outcome) -> None:
        check_unsettled(items[0])
        mark(items[0], how)
        key = self._keys.get(id(items[0]))
        if key is not None:
            self._reports.settled(key, outcome)


def _sendable(description: str | None) -> str | None:
    """Return a description as it will be stored. Raises `InvalidInput` where a settle by Redis would."""
    return codec.pack_description(description).decode() or None


#: A message for a handler: its key, the options of its queue, and its content.
Order = tuple[int, QueueConfig, Parcel]


def report_end(reports: Reports, key: int, item: Delivery, error: BaseException | None) -> None:
    """Report the end of a handler. It may have settled its message itself. A copy of the process ends here."""
    if reports.is_copy:
        end_copy(error)
    if item.settled is not None and (error is None or isinstance(error, Decision)):
        reports.ended(key, None)
    elif error is None:
        reports.succeeded(key, time.monotonic())
    else:
        try:
            reports.ended(key, of_error(error))
        except Exception as failure:  # noqa: BLE001  # without an outcome the message would stay leased for ever
            words = f"{type(error).__name__}: the error could not be reported: {codec.describe(failure)}"
            reports.ended(key, Outcome("nack", None, words, ""))


def check_done(result: object) -> None:
    """Raise `TypeError` for the result of a handler whose work nobody has done: an ack would lose the message."""
    if inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result):
        if inspect.iscoroutine(result):
            result.close()
        raise TypeError(f"the handler returned a {type(result).__name__} that nobody awaited: make it async def")


class ThreadHands:
    """Threads with one message each. `run` works in the calling thread, too, until `stop`."""

    def __init__(self, handler: Handler, number: int, reports: Reports) -> None:
        self.slots = number
        self.cancel_grace = handler.end_grace
        self._handler = handler
        self._reports = reports
        self._recorder = Recorder(reports)
        tell_copies(self._recorder.leave)
        self._orders: deque[Order | None] = deque()
        self._bell: queue.SimpleQueue[None] = queue.SimpleQueue()

    def run(self) -> None:
        """Handle messages until `stop`, with all threads. Then close the handler."""
        crew = [threading.Thread(target=self._work, daemon=True) for _ in range(self.slots - 1)]
        for thread in crew:
            thread.start()
        self._work()
        for thread in crew:
            thread.join()
        self._handler.close()

    def put(self, orders: Sequence[Order]) -> None:
        """Take messages."""
        self._put(orders)

    def recall(self) -> list[int]:
        """Give back the keys of the messages that no handler has begun."""
        keys = []
        with suppress(IndexError):  # handlers may take messages meanwhile
            while (order := self._orders.popleft()) is not None:
                keys.append(order[0])
            self._orders.appendleft(None)
        return keys

    def cancel(self, key: int) -> None:
        """End the work for a message, if the handler can. A thread cannot be cancelled."""
        item = self._recorder.item_of(key)
        if item is not None and self._handler.end is not None:
            self._handler.end(item)

    def stop(self) -> None:
        """End all threads after their messages."""
        self._put([None] * self.slots)

    def _put(self, orders: Sequence[Order | None]) -> None:
        """Add messages, then wake threads. Each of them looks for messages until there is none."""
        self._orders.extend(orders)
        for _ in range(min(len(orders), self.slots - self._bell.qsize())):
            self._bell.put(None)

    def _work(self) -> None:
        orders, reports, recorder = self._orders, self._reports, self._recorder
        handler, clock = self._handler, time.monotonic
        call, settles = handler.call, handler.settles or handler.end is not None
        while True:
            try:
                order = orders.popleft()
            except IndexError:
                reports.flush()
                self._bell.get()
                continue
            if order is None:
                reports.flush()
                return
            key = order[0]
            item = recorder.begin(order) if settles else recorder.plain(order)
            reports.begun(key, clock())  # from now on the worker may want to end it
            error: BaseException | None = None
            try:
                result = call(item)
                if result is not None:
                    check_done(result)
            except BaseException as failure:  # noqa: BLE001  # without its thread a message would stay leased for ever
                error = failure
            if settles:
                recorder.end(item)
            report_end(reports, key, item, error)


class LoopHands:
    """Coroutines of one event loop, `number` at a time."""

    cancel_grace = CANCEL_GRACE

    def __init__(self, handler: Handler, number: int, reports: Reports) -> None:
        self.slots = number
        self._handler = handler
        self._reports = reports
        self._recorder = Recorder(reports)
        tell_copies(self._recorder.leave)
        self._waiting: deque[Order] = deque()
        self._will_flush = False
        self._tasks: dict[int, asyncio.Task[Any]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: asyncio.Event | None = None

    def run(self) -> None:
        """Handle messages until `stop`. Then close the handler, in the loop of its coroutines."""
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._end = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._loop.set_default_executor(ThreadPoolExecutor(self.slots))  # asyncio.run ends it
        self._begin()
        await self._end.wait()
        if self._tasks:
            await asyncio.wait(list(self._tasks.values()))
        self._reports.flush()
        closing = self._handler.close()
        if inspect.isawaitable(closing):
            await closing

    def put(self, orders: Sequence[Order]) -> None:
        """Take messages."""
        self._waiting.extend(orders)
        self._soon(self._begin)

    def recall(self) -> list[int]:
        """Give back the keys of the messages that no handler has begun."""
        keys = []
        with suppress(IndexError):  # the loop may take messages meanwhile
            while True:
                keys.append(self._waiting.popleft()[0])
        return keys

    def cancel(self, key: int) -> None:
        """Cancel the coroutine of a message."""
        self._soon(partial(self._cancel, key))

    def stop(self) -> None:
        """End the loop after the messages at hand."""
        self._soon(self._stop)

    def _soon(self, call: Any) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(call)

    def _stop(self) -> None:
        if self._end is not None:
            self._end.set()

    def _cancel(self, key: int) -> None:
        if key in self._tasks:
            self._tasks[key].cancel()

    def _begin(self) -> None:
        assert self._loop is not None  # noqa: S101  # for the type checker: this is a callback of the loop
        while len(self._tasks) < self.slots:
            try:
                order = self._waiting.popleft()
            except IndexError:
                if not self._will_flush:
                    self._will_flush = True
                    self._loop.call_soon(self._flush)  # other coroutines end in this turn of the loop, too
                return
            self._reports.begun(order[0], time.monotonic())
            self._tasks[order[0]] = self._loop.create_task(self._handle(order))

    def _flush(self) -> None:
        self._will_flush = False
        self._reports.flush()

    async def _handle(self, order: Order) -> None:
        handler, recorder = self._handler, self._recorder
        item = recorder.begin(order) if handler.settles else recorder.plain(order)
        error: BaseException | None = None
        try:
            result = handler.call(item)
            if inspect.isawaitable(result):
                result = await result
            check_done(result)
        except BaseException as failure:  # noqa: BLE001  # as in threads
            error = failure
        del self._tasks[order[0]]
        recorder.end(item)
        report_end(self._reports, order[0], item, error)
        self._begin()


def hands_for(
    handler: Handler, threads: int | None, coroutines: int | None, reports: Reports
) -> ThreadHands | LoopHands:
    """Return coroutines for a coroutine function, and threads for any other one. Raises `HandlerNotLoaded`."""
    if not handler.is_async:
        return ThreadHands(handler, threads or coroutines or 1, reports)
    if threads is not None:
        raise HandlerNotLoaded(
            "threads: the function of `call` is a coroutine function: `asyncio` is the number of these"
        )
    return LoopHands(handler, coroutines or COROUTINES, reports)
