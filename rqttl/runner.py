"""The loop behind `queue.run()`: it calls the handler, logs errors, backs off, and ends gracefully."""

from __future__ import annotations

import inspect
import logging
import random
import threading
from collections.abc import Callable
from contextlib import contextmanager
from queue import SimpleQueue
from typing import TYPE_CHECKING

from redis.exceptions import RedisError

from rqttl import checks, flows, units
from rqttl.consumer import Consumer, serve
from rqttl.consuming.patience import patiently
from rqttl.delivery import LEFT, LOST, UNKNOWN, Delivery, mark, options_of
from rqttl.errors import InvalidInput, LeaseLost, OutcomeUnknown, RqttlError
from rqttl.flows import Driver
from rqttl.options import QueueOptions
from rqttl.protocol.codec import describe
from rqttl.protocol.commands import BATCH
from rqttl.runtime import backoff
from rqttl.runtime.interrupt import Interrupt
from rqttl.runtime.stop_signals import StopSignals
from rqttl.types import RunCounts
from rqttl.units import MAX_DURATION, Duration

if TYPE_CHECKING:
    from collections.abc import Iterator


logger = logging.getLogger("rqttl.run")

Handler = Callable[[Delivery], object]

#: The default number of messages to fetch for each thread.
EACH = 10
#: Seconds between two checks of the caller's `stop` event. An event can only be polled.
LOOK = 0.2


class Runner:
    """A run: its handler, its consumer and its counts."""

    def __init__(
        self, driver: Driver, queue: str, handler: Handler, threads: int = 1, *, prefetch: int | None = None,
        lease: Duration | None = None, wait: Duration | None = None, chance: Callable[[], float] = random.random,
    ) -> None:  # fmt: skip
        self._handler = _checked(handler)
        self._threads, fetched = _crew(threads, prefetch)
        self._driver, self._queue = driver, queue
        self._deliveries = Consumer(driver, queue, fetched, lease=lease, wait=wait)
        serve(self._deliveries, self._idle)
        self._wait = int(MAX_DURATION if wait is None else units.duration(wait, "wait"))
        self._chance = chance
        self._halt = Interrupt()
        self._counting = threading.Lock()
        self._handled = self._failed = self._lost = self._unknown = self._begun = 0
        self._fatal: BaseException | None = None

    def stop(self) -> None:
        """Begin no further message. Any thread and any signal handler may call it."""
        self._halt.ask()
        self._deliveries.stop()

    def run(self, stop: threading.Event | None = None) -> RunCounts:
        """Handle messages until `stop`, a signal, or the end of `wait`. See `Queue.run`."""
        with StopSignals(self.stop), _watched(stop, self.stop):
            # this call waits for a server that is away at the start, as the loop does later
            if patiently(self._look, self._queue, self._wait, self._halt, self._driver.timing, logger) is not None:
                with self._deliveries as deliveries:
                    if self._threads == 1:
                        for delivery in deliveries:
                            self._handle(delivery)
                    else:
                        self._share_out(deliveries)
        if self._halt.asked():
            logger.info("queue %s: stopped, after %d messages", self._queue, self._handled + self._failed)
        lost, unknown = self._lost + self._deliveries.lost_count, self._unknown + self._deliveries.unknown_count
        return RunCounts(self._handled, self._failed, lost, unknown)

    def _look(self) -> QueueOptions:
        return self._driver.perform(flows.options(self._driver.keyspace, self._queue))

    def _share_out(self, deliveries: Consumer) -> None:
        """Share the messages among threads, each with one message at a time. Returns when all threads have ended.

        The threads are daemons: `KeyboardInterrupt` and the like in the calling thread end the run without waiting for
        them.
        """
        free = threading.Semaphore(self._threads)
        begun: SimpleQueue[Delivery | None] = SimpleQueue()
        name = f"rqttl-run-{self._queue}"
        crew = [
            threading.Thread(target=self._work, args=[begun, free], name=name, daemon=True)
            for _ in range(self._threads)
        ]
        for thread in crew:
            thread.start()
        waits = True
        try:
            self._feed(deliveries, begun, free)
        except Exception:
            raise
        except BaseException:
            waits = False
            raise
        finally:
            for _ in crew:
                begun.put(None)
            for thread in crew if waits else ():
                thread.join()
        if self._fatal is not None:
            raise self._fatal

    def _feed(self, deliveries: Consumer, begun: SimpleQueue[Delivery | None], free: threading.Semaphore) -> None:
        """Take a message whenever a thread can begin it, until the iteration ends."""
        while True:
            free.acquire()
            delivery = next(deliveries, None)
            if delivery is None:
                return
            self._begin(1)
            begun.put(delivery)

    def _work(self, begun: SimpleQueue[Delivery | None], free: threading.Semaphore) -> None:
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

    def _idle(self) -> int:
        """Return the number of messages that can be begun now: one for each idle thread."""
        return max(1, self._threads - self._begun)

    def _handle(self, delivery: Delivery) -> None:
        """Call the handler, and settle the delivery if the handler has not."""
        try:
            result = self._handler(delivery)
            if result is not None and (inspect.isawaitable(result) or inspect.isgenerator(result)):
                raise TypeError(f"the handler returned {type(result).__name__}, whose work has not been done")
        except Exception as error:  # noqa: BLE001  # a handler may raise anything; the loop logs it and goes on
            self._fail(delivery, error)
        except BaseException as error:
            why = describe(error)
            self._settle(delivery, lambda: delivery.nack(description=why))
            raise
        else:
            self._settle(delivery, delivery.ack)
            self._count(delivery, failed=False)

    def _fail(self, delivery: Delivery, error: Exception) -> None:
        logger.error(
            "queue %s: the handler failed for message %s (delivery %d)", delivery.queue, _name(delivery),
            delivery.delivery_count, exc_info=error,
        )  # fmt: skip
        delay = None
        if options_of(delivery).number("redelivery_delay") is None:
            delay = units.as_timedelta(backoff.pause(delivery.delivery_count, self._chance))
        self._settle(delivery, lambda: delivery.nack(delay, describe(error)))
        self._count(delivery, failed=True)

    def _settle(self, delivery: Delivery, how: Callable[[], None]) -> None:
        """Settle a delivery unless the handler has done so. A failure is logged; then the lease ends by itself."""
        if delivery.settled not in (None, LOST):
            return
        try:
            how()
        except (LeaseLost, OutcomeUnknown) as error:
            logger.warning("%s", error)
        except (RedisError, RqttlError) as error:
            mark(delivery, LEFT)
            logger.warning(
                "queue %s: message %s could not be settled (%s), and comes again when its lease ends",
                delivery.queue, _name(delivery), error,
            )  # fmt: skip

    def _count(self, delivery: Delivery, *, failed: bool) -> None:
        with self._counting:
            self._handled += not failed
            self._failed += failed
            self._lost += delivery.settled == LOST
            self._unknown += delivery.settled == UNKNOWN


def _name(delivery: Delivery) -> str:
    """Return the id for the log; the sequence if the header is damaged. Such damage may have failed the handler."""
    try:
        return delivery.id
    except Exception:  # noqa: BLE001  # the header of another program may have any content
        return delivery.sequence


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


def _checked(handler: Handler) -> Handler:
    if not callable(handler):
        raise InvalidInput(f"handler: expected a function that takes a delivery, got {type(handler).__name__}")
    called = handler if inspect.isroutine(handler) else type(handler).__call__
    for kind in (inspect.iscoroutinefunction, inspect.isasyncgenfunction, inspect.isgeneratorfunction):
        if kind(handler) or kind(called):
            raise InvalidInput("handler: expected a plain function, got an `async def` or one that yields")
    return handler


def _crew(threads: int, prefetch: int | None) -> tuple[int, int]:
    """Check and return the number of threads and the number of messages to fetch."""
    threads = checks.whole(threads, "threads", 1, BATCH)
    if prefetch is None:
        return threads, min(EACH * threads, BATCH)
    return threads, checks.whole(prefetch, "prefetch", threads, BATCH)
