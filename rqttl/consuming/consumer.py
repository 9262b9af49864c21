"""The loops behind `queue.consume()` and `queue.run()`: prefetching, batched acks, and the renewal of leases.

The thread of the caller iterates and fetches messages. A thread of its own renews leases, also for workers.
"""

from __future__ import annotations

import inspect
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from queue import SimpleQueue
from time import perf_counter
from types import TracebackType
from typing import Any, TypeVar

from redis.exceptions import RedisError

from rqttl import checks
from rqttl import events as hook
from rqttl.consuming.base import ConsumerBase, Renewed, announce_renewal, patiently
from rqttl.consuming.handling import HandlerRun, log_unsettled
from rqttl.consuming.several import Weights
from rqttl.delivery import Delivery, Settler
from rqttl.errors import BrokerClosed, InvalidInput, RqttlError
from rqttl.flows import reading
from rqttl.flows.steps import Driver, Flow, Step, WaitForWakeup
from rqttl.runtime.interrupt import Interrupt, Timing, Wakeup
from rqttl.runtime.stop_signals import StopSignals
from rqttl.types import Duration, RunCounts

T = TypeVar("T")
Handler = Callable[[Delivery], object]

logger = logging.getLogger("rqttl.consumer")
run_logger = logging.getLogger("rqttl.run")

#: Seconds between two checks of the caller's `stop` event. An event can only be polled.
LOOK = 0.2


class Sender:
    """Carries out flows, one at a time. Safe to share between threads. `lock` may be one that several senders share."""

    def __init__(self, driver: Driver, lock: threading.Lock | None = None) -> None:
        self._driver = driver
        self._lock = lock or threading.Lock()

    def perform(self, flow: Flow[T]) -> T:
        """Carry out a flow that does not wait for messages."""
        with self._lock:
            try:
                return self._driver.perform(flow)
            finally:
                flow.close()  # an interrupt has left it in its midst

    def fetch(self, flow: Flow[T]) -> T:
        """Carry out a flow. The lock is free while the flow waits for a message, and only then."""
        answer: Any = None
        failure: BaseException | None = None
        try:
            while True:
                with self._lock:
                    step = self._next_wait(flow, answer, failure)
                answer, failure = self._step(step)
        except StopIteration as done:
            result: T = done.value
            return result
        except BaseException:
            with self._lock:
                flow.close()
            raise

    def _next_wait(self, flow: Flow[T], answer: Any, failure: BaseException | None) -> WaitForWakeup:
        while True:
            step = flow.send(answer) if failure is None else flow.throw(failure)
            if type(step) is WaitForWakeup:
                return step
            answer, failure = self._step(step)

    def _step(self, step: Step) -> tuple[Any, BaseException | None]:
        try:
            return self._driver.step(step), None
        except BaseException as error:  # noqa: BLE001  # the flow decides about it
            return None, error


class Renewer(threading.Thread):
    """A thread that calls `turn` after pauses of `pause()` ms, until `close`. `first_end` ends one pause."""

    def __init__(
        self,
        timing: Timing,
        name: str,
        pause: Callable[[], float],
        turn: Callable[[], None],
        first_end: Interrupt | None = None,
    ) -> None:
        super().__init__(name=name, daemon=True)
        self._timing, self._pause, self._turn, self._first_end = timing, pause, turn, first_end
        self._sooner = Wakeup()
        #: The interrupt that ends the turns.
        self.closed = Interrupt()
        #: The time of the last turn.
        self.turned_at = timing.now()

    def notify(self) -> None:
        """Take the next turn as soon as `pause` says now."""
        self._sooner.notify()

    def close(self) -> None:
        """Take no further turn."""
        self.closed.ask()
        if self.is_alive():
            self.join()

    def run(self) -> None:
        """Take the turns."""
        while not self.closed.asked():
            end = self.closed if self._first_end is None or self._first_end.asked() else self._first_end
            self._timing.pause(end, self._pause, self._sooner)
            self.turned_at = self._timing.now()
            if self.closed.asked():
                return
            try:
                self._turn()
            except BrokerClosed:
                return  # no call can be sent any more; another thread tells it
            except Exception:
                # a listener of events failed: without these turns all leases would end
                logger.exception("renewing leases failed; trying again")


class Consumer(ConsumerBase[Delivery, None]):
    """An iterator over deliveries, and a context that renews their leases.

    The consumer leases up to `prefetch` messages at a time. A thread renews the leases of all unsettled deliveries, so
    a handler may take any time. Only code that blocks all other Python threads can prevent a renewal. Acks are
    collected and sent with the next fetch, or while the consumer waits for messages, after a second at the latest. An
    ack that comes too late even so is logged, counted in `lost_count` and listed in `lost`. An ack that got no reply
    until its lease ended is logged, counted in `unknown_count` and listed in `unknown`. Both lists hold the newest
    1,000 ids. `nack` and `reject` are sent at once.

    The iteration ends when no message has come for `wait` (never, without `wait`), or after `stop()`. While Redis is
    away it goes on trying, for `wait` at most.

    A consumer ends in two steps. `stop()` ends the fetching: deliveries that the iteration has not handed out go back
    at once, and count as no failed delivery. The leases of all others are renewed, and acks are sent, until the context
    is left. The exit of the context sends the last acks. Deliveries that handlers still hold stay leased, and a handler
    may settle its delivery later; that call is sent at once. If it does not, the lease ends, and the message comes
    again as after any failed delivery. So an exception that leaves the loop only costs the rest of the lease.
    `with delivery:` gives the message back at once.

    Threads that handle deliveries must end before the consumer. So the consumer is the outer context and the pool the
    inner one. The exit of the pool waits for its threads while the consumer still renews leases:

        with queue.consume(prefetch=8) as deliveries, ThreadPoolExecutor(8) as pool:
            for delivery in deliveries:
                pool.submit(handle, delivery)

    One thread iterates; any thread may settle, and call `stop`.
    """

    def __init__(
        self,
        driver: Driver,
        queue: str | Weights,
        prefetch: int = 100,
        *,
        lease: Duration | None = None,
        wait: Duration | None = None,
    ) -> None:
        fast = driver.failing_fast()
        super().__init__(fast, queue, prefetch, lease, wait)
        self._driver = driver
        self._driver.check_open()
        self._settler = Settler(self._settle, driver.events)
        self._settled = Wakeup()
        lock = threading.Lock()
        self._sender, self._fast = Sender(driver, lock), Sender(fast, lock)
        self._usual = self._sender if isinstance(queue, str) else self._fast
        timing, self._is_hurried = driver.timing, False
        self._renewer = Renewer(
            timing,
            f"rqttl-renewer-{self.queue}",
            lambda: 0.0 if self._is_hurried else self._session.next_turn(timing.now()),
            self._take_turn,
            self._stop,
        )
        self._entered = ExitStack()

    def __enter__(self) -> Consumer:
        self._usual.perform(self._session.enter(self._lease))
        self._renewer.start()
        self._entered.enter_context(self._driver.closed.ending(self.stop))
        self._entered.enter_context(self._driver.timing.leaps(lambda leap: self._renew(self._session.prepare(leap))))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except (RedisError, RqttlError) as failure:
            if error is None:
                raise
            # the caller must see the exception of the block; leased messages come back when their leases end
            logger.warning("queue %s: could not send acks or give messages back: %s", self.queue, failure)

    def __iter__(self) -> Consumer:
        return self

    def __next__(self) -> Delivery:
        while not self._stop.asked():
            self._driver.check_open()
            delivery = self._prefetch.hand_out()
            if delivery is not None:
                return delivery
            if not patiently(self._fetch, self.queue, self.wait, self._stop, self._driver.timing, logger):
                break
        self._driver.check_open()
        raise StopIteration

    def close(self) -> None:
        """Send all acks, release the deliveries that were not handed out, and leave the queue. Ends renewals.

        Raises `BrokerClosed` if the broker was closed before. Then the messages come again when their leases end.
        """
        self._entered.close()
        self.stop()
        self._renewer.close()
        self._sender.perform(self._session.leave())
        self._fast.perform(self._heartbeat.leave())

    def release(self, delivery: Delivery) -> None:
        """Give a delivery back, at once. It does not count as a failed delivery.

        Raises `LeaseLost`, `AlreadySettled`.
        """
        self._settle("release", [delivery], None, None)

    # Settling

    def _settle(self, how: str, deliveries: Sequence[Delivery], time: Duration | None, description: str | None) -> None:
        if how == "ack" and not self._renewer.closed.asked():
            self._driver.check_open()
            self._collect(deliveries)
            if self._renewer.closed.asked():
                # the renewer was closed meanwhile, so its last call may have missed these acks
                self._sender.perform(self._session.report())
        else:
            self._sender.perform(self._session.settle(how, deliveries, time, description))
        self._settled.notify()

    def _hurry(self) -> None:
        self._is_hurried = True
        self._renewer.notify()

    # The renewal of leases

    def _take_turn(self) -> None:
        self._is_hurried = False
        try:
            if self._stop.asked():
                self._usual.perform(self._session.release_unseen())
            self._renew(self._session.upkeep())
            self._fast.perform(self._heartbeat.beat_if_possible())
        except BrokerClosed:
            raise  # the thread that iterates raises it, too
        except Exception as error:  # noqa: BLE001  # without a renewer all leases would end
            self._session.log_failure(error)

    def _renew(self, flow: Flow[Renewed]) -> None:
        renewed = self._usual.perform(flow)
        if renewed:
            self._settled.notify()  # leases may be lost
        announce_renewal(self._driver.events, renewed)

    # Fetching

    def _fetch(self) -> bool:
        """Send acks and fetch messages. Returns False if no message came in time."""
        if self._renewer.ident is None:
            raise InvalidInput("consume: iterate inside `with queue.consume() as deliveries:`, which renews leases")
        while not (room := self._room()):
            self._settled.wait(self._stop, lambda: 0.0 if self._prefetch.room() else 1.0)
            if self._stop.asked():
                return False
        since = perf_counter()
        claimed = self._usual.fetch(self._session.fetch(room, self._lease, self.wait, self.idle()))
        return self._take(Delivery, claimed, since)

    def _room(self) -> int:
        """Return the number of messages to fetch.

        While other threads make room, it waits until a fourth of the prefetch is free: a call for each message would
        take more of their time.
        """
        room, former = self._prefetch.room(), 0
        while former < room < self._prefetch.limit // 4 and not self._stop.wait(0.001):
            room, former = self._prefetch.room(), room
        return room


class Runner:
    """A run: its handler, its consumer and its counts."""

    def __init__(
        self, driver: Driver, deliveries: Consumer, handler: Handler, threads: int, *, raise_errors: bool = False
    ) -> None:
        if not callable(handler):
            raise InvalidInput(f"handler: expected a function that takes a delivery, got {type(handler).__name__}")
        called = handler if inspect.isroutine(handler) else type(handler).__call__
        for kind in (inspect.iscoroutinefunction, inspect.isasyncgenfunction, inspect.isgeneratorfunction):
            if kind(handler) or kind(called):
                raise InvalidInput("handler: expected a plain function, got an `async def` or one that yields")
        self._driver, self._deliveries, self._handler, self._threads = driver, deliveries, handler, threads
        self._free: SimpleQueue[None] = SimpleQueue()  # has an item for each thread without a message
        deliveries.idle = lambda: 1 + self._free.qsize()
        self._halt = Interrupt()
        self._work = HandlerRun(self.stop, raise_errors=raise_errors)
        self._fatal: BaseException | None = None

    def stop(self) -> None:
        """Begin no further message. Any thread and any signal handler may call it."""
        self._halt.ask()
        self._deliveries.stop()

    def run(self, stop: threading.Event | None = None) -> RunCounts:
        """Handle messages until `stop`, a signal, or the end of `wait`. See `Queue.run`."""
        checks.unpatched("run")
        driver, deliveries = self._driver, self._deliveries

        def look() -> object:
            return driver.perform(reading.options(driver.keyspace, deliveries.queue))

        with StopSignals(self.stop) if stop is None else _watched(stop, self.stop):
            # this call waits for a server that is away at the start, as the loop does later
            halt, timing = self._halt, driver.timing
            if patiently(look, deliveries.queue, deliveries.wait, halt, timing, run_logger) is not None:
                with deliveries:
                    if self._threads == 1:
                        for delivery in deliveries:
                            self._handle(delivery)
                    else:
                        self._share_out(deliveries)
        counts = self._work.result(deliveries.lost_count, deliveries.unknown_count)
        if self._halt.asked():
            run_logger.info("queue %s: stopped after %d messages", deliveries.queue, counts.handled + counts.failed)
        return counts

    def _share_out(self, deliveries: Consumer) -> None:
        """Share the messages among threads, each with one message at a time. Returns when all threads have ended.

        The threads are daemons: `KeyboardInterrupt` and the like in the calling thread end the run without waiting for
        them.
        """
        begun: SimpleQueue[Delivery | None] = SimpleQueue()
        name = f"rqttl-run-{deliveries.queue}"
        threads = [
            threading.Thread(target=self._serve, args=[begun], name=name, daemon=True) for _ in range(self._threads)
        ]
        waits = True
        try:
            for thread in threads:
                thread.start()
                self._free.put(None)
            self._free.get()
            for delivery in deliveries:
                begun.put(delivery)
                self._free.get()
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

    def _serve(self, begun: SimpleQueue[Delivery | None]) -> None:
        while (delivery := begun.get()) is not None:
            try:
                self._handle(delivery)
            except BaseException as error:  # noqa: BLE001  # the thread that called `run` raises it
                self._fatal = error
                self.stop()
            finally:
                self._free.put(None)

    def _handle(self, delivery: Delivery) -> None:
        error: BaseException | None = None
        try:
            self._call(delivery)
        except BaseException as failure:  # noqa: BLE001  # `count` raises it again
            error = failure
        settlement = self._work.settlement(delivery, error)
        if settlement is not None:
            try:
                delivery.settle_as(*settlement)
            except (RedisError, RqttlError) as failure:
                log_unsettled(delivery, failure)
        self._work.count(delivery, error)

    def _call(self, delivery: Delivery) -> None:
        observer = self._driver.events.observer
        if observer is None:
            result = self._handler(delivery)
        else:
            with hook.handling(observer, delivery):
                result = self._handler(delivery)
        if result is not None and (inspect.isawaitable(result) or inspect.isgenerator(result)):
            raise TypeError(f"the handler returned a {type(result).__name__} that nobody awaited: make it async def")


@contextmanager
def _watched(event: threading.Event, stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` when the event is set within this block."""
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
