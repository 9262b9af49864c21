"""The loop behind `queue.run()`: it calls the handler, logs errors, backs off, and ends gracefully."""

from __future__ import annotations

import inspect
import logging
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from queue import SimpleQueue

from redis.exceptions import RedisError

from rqttl import events as hook
from rqttl import flows, units
from rqttl.consumer import Consumer
from rqttl.consuming.base import serve
from rqttl.consuming.handling import HandlerRun, check_sizes, log_unsettled
from rqttl.consuming.patience import patiently
from rqttl.delivery import Delivery, settle_as
from rqttl.errors import InvalidInput, RqttlError
from rqttl.flows.steps import Driver
from rqttl.runtime.interrupt import Interrupt
from rqttl.runtime.stop_signals import StopSignals
from rqttl.types import RunCounts
from rqttl.units import MAX_DURATION, Duration

logger = logging.getLogger("rqttl.run")

Handler = Callable[[Delivery], object]

#: Seconds between two checks of the caller's `stop` event. An event can only be polled.
LOOK = 0.2


class Runner:
    """A run: its handler, its consumer and its counts."""

    def __init__(
        self,
        driver: Driver,
        queue: str,
        handler: Handler,
        threads: int = 1,
        *,
        prefetch: int | None = None,
        lease: Duration | None = None,
        wait: Duration | None = None,
        raise_errors: bool = False,
        chance: Callable[[], float] = random.random,
    ) -> None:
        if not callable(handler):
            raise InvalidInput(f"handler: expected a function that takes a delivery, got {type(handler).__name__}")
        called = handler if inspect.isroutine(handler) else type(handler).__call__
        for kind in (inspect.iscoroutinefunction, inspect.isasyncgenfunction, inspect.isgeneratorfunction):
            if kind(handler) or kind(called):
                raise InvalidInput("handler: expected a plain function, got an `async def` or one that yields")
        self._threads, fetched = check_sizes(threads, prefetch, "threads")
        self._driver, self._queue, self._handler = driver, queue, handler
        self._deliveries = Consumer(driver, queue, fetched, lease=lease, wait=wait)
        serve(self._deliveries, lambda: max(1, self._threads - self._begun))
        self._wait = int(MAX_DURATION if wait is None else units.duration(wait, "wait"))
        self._halt = Interrupt()
        self._work = HandlerRun(raise_errors=raise_errors, chance=chance)
        self._counting, self._begun = threading.Lock(), 0
        self._fatal: BaseException | None = None

    def stop(self) -> None:
        """Begin no further message. Any thread and any signal handler may call it."""
        self._halt.ask()
        self._deliveries.stop()

    def run(self, stop: threading.Event | None = None) -> RunCounts:
        """Handle messages until `stop`, a signal, or the end of `wait`. See `Queue.run`."""

        def look() -> object:
            return self._driver.perform(flows.reading.options(self._driver.keyspace, self._queue))

        with StopSignals(self.stop) if stop is None else nullcontext(), _watched(stop, self.stop):
            # this call waits for a server that is away at the start, as the loop does later
            if patiently(look, self._queue, self._wait, self._halt, self._driver.timing, logger) is not None:
                with self._deliveries as deliveries:
                    if self._threads == 1:
                        for delivery in deliveries:
                            self._handle(delivery)
                    else:
                        self._share_out(deliveries)
        counts = self._work.result(self._deliveries.lost_count, self._deliveries.unknown_count)
        if self._halt.asked():
            logger.info("queue %s: stopped, after %d messages", self._queue, counts.handled + counts.failed)
        return counts

    def _share_out(self, deliveries: Consumer) -> None:
        """Share the messages among threads, each with one message at a time. Returns when all threads have ended.

        The threads are daemons: `KeyboardInterrupt` and the like in the calling thread end the run without waiting for
        them.
        """
        free = threading.Semaphore(self._threads)
        begun: SimpleQueue[Delivery | None] = SimpleQueue()
        name = f"rqttl-run-{self._queue}"
        threads = [
            threading.Thread(target=self._serve, args=[begun, free], name=name, daemon=True)
            for _ in range(self._threads)
        ]
        for thread in threads:
            thread.start()
        waits = True
        try:
            while free.acquire() and (delivery := next(deliveries, None)) is not None:
                self._begin(1)
                begun.put(delivery)
        except BaseException as error:
            waits = isinstance(error, Exception)
            raise
        finally:
            for _ in threads:
                begun.put(None)
            for thread in threads if waits else ():
                thread.join()
        if self._fatal is not None:
            raise self._fatal

    def _serve(self, begun: SimpleQueue[Delivery | None], free: threading.Semaphore) -> None:
        while (delivery := begun.get()) is not None:
            try:
                self._handle(delivery)
            except BaseException as error:  # noqa: BLE001  # the thread that called `run` raises it
                self._fatal = error
                self.stop()
            finally:
                self._begin(-1)
                free.release()

    def _begin(self, number: int) -> None:
        with self._counting:
            self._begun += number

    def _handle(self, delivery: Delivery) -> None:
        error: BaseException | None = None
        try:
            self._call(delivery)
        except BaseException as failure:  # noqa: BLE001  # `count` raises it again
            error = failure
        settlement = self._work.settlement(delivery, error)
        if settlement is not None:
            try:
                settle_as(delivery, *settlement)
            except (RedisError, RqttlError) as failure:
                log_unsettled(delivery, failure)
        self._work.count(delivery, error)

    def _call(self, delivery: Delivery) -> None:
        observer = self._driver.events.observer
        handler = self._handler if observer is None else hook.observed(observer, self._handler)
        result = handler(delivery)
        if result is not None and (inspect.isawaitable(result) or inspect.isgenerator(result)):
            raise TypeError(f"the handler returned a {type(result).__name__} that nobody awaited: make it async def")


@contextmanager
def _watched(event: threading.Event | None, stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` when the event is set within this block."""
    if event is None:
        yield
        return
    if event.is_set():
        stop()
    over = threading.Event()

    def watch() -> None:
        while not over.is_set():
            if event.wait(LOOK):
                stop()
                break

    threading.Thread(target=watch, name="rqttl-run-stop", daemon=True).start()
    try:
        yield
    finally:
        over.set()
