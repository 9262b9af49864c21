"""The loops behind `queue.consume()` and `queue.run()` of asyncio. Missing docstrings are those of `Consumer`."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack, nullcontext
from time import perf_counter
from types import TracebackType
from typing import TypeVar

from redis.exceptions import RedisError

from rqttl import events as hook
from rqttl.aio.driver import AsyncDriver, pause_for
from rqttl.consuming.base import ConsumerBase, Patience, Renewed, announce_renewal
from rqttl.consuming.handling import HandlerRun, WrongHandler, log_unsettled
from rqttl.consuming.prefetch import LONGEST_REST
from rqttl.consuming.several import Weights
from rqttl.delivery import Decision, Delivered, Settlement, Settler, settlement_after, warn_not_given_back
from rqttl.errors import BrokerClosed, InvalidInput, LeaseLost, RqttlError
from rqttl.flows.steps import Flow
from rqttl.outages import TEMPORARY
from rqttl.runtime.interrupt import Interrupt
from rqttl.runtime.stop_signals import StopSignals
from rqttl.text import type_name
from rqttl.types import Duration, RunCounts

T = TypeVar("T")

logger = logging.getLogger("rqttl.consumer")
run_logger = logging.getLogger("rqttl.run")


Handler = Callable[["AsyncDelivery"], Awaitable[object]]
WRONG = "handler: expected an `async def` that takes a delivery"


class AsyncDelivery(Delivered):
    """A message that was handed out: `Delivery` for an event loop.

    As a context manager it acks on success and nacks on an exception, as `Delivery` says. A cancelled task gives its
    message back as after an exception, without waiting.
    """

    __slots__ = ()

    settler: Settler[Awaitable[None]]

    async def ack(self) -> None:
        await self.settler.settle("ack", [self], None, None)

    async def nack(self, delay: Duration | None = None, description: str | None = None) -> None:
        await self.settler.settle("nack", [self], delay, description)

    async def reject(self, description: str | None = None) -> None:
        await self.settler.settle("reject", [self], None, description)

    async def release(self) -> None:
        await self.settler.settle("release", [self], None, None)

    async def renew(self, lease: Duration | None = None) -> None:
        await self.settler.settle("renew", [self], lease, None)

    async def __aenter__(self) -> AsyncDelivery:
        self._begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(error)
        # decisions end with the block. A type checker must not believe that of all exceptions
        decided: None = isinstance(error, Decision)  # type: ignore[assignment]
        if self.settled is not None:
            return decided
        if error is None:
            await self.settler.settle("ack", [self], None, None)
            return None
        giving_back = self.settler.keep(self._give_back(error))  # type: ignore[misc]  # asyncio settlers have it
        if isinstance(error, Exception):  # a cancelled task may not wait for anything
            await asyncio.shield(giving_back)
        return decided

    async def _give_back(self, error: BaseException) -> None:
        try:
            if self.settled is None:
                await self.settle_as(*settlement_after(error))
        except LeaseLost:
            pass  # the message is back already
        except Exception as failure:  # noqa: BLE001  # the caller must see the exception of the block
            warn_not_given_back(self, failure)


class AsyncConsumer(ConsumerBase[AsyncDelivery, Awaitable[None]]):
    """An asynchronous iterator over deliveries, and a context that renews their leases: `Consumer` for an event loop.

    All that `Consumer` says of leases, acks, `lost`, `unknown` and its two steps to the end holds here, too. A task
    renews the leases, so a handler may take any time, but it must not block the event loop. A cancelled iteration
    loses nothing: the next one goes on. `async with delivery:` gives the message back at once. One task iterates; any
    task of the loop may settle, and any thread may call `stop`.
    """

    def __init__(
        self,
        driver: AsyncDriver,
        queue: str | Weights,
        prefetch: int = 100,
        *,
        lease: Duration | None = None,
        wait: Duration | None = None,
    ) -> None:
        self._driver, self._fast = driver, driver.failing_fast()
        self._usual = driver if isinstance(queue, str) else self._fast
        super().__init__(self._fast, queue, prefetch, lease, wait)
        self._session.hurries_acks = not driver.is_clocked  # no turn may be under way when a wait moves the clock
        driver.check_open()
        self._settler = Settler(self._settle, driver.events, driver.keep)
        self._closed = False
        self._lock = asyncio.Lock()
        self._settled, self._sooner = asyncio.Event(), asyncio.Event()
        self._fetching: asyncio.Task[bool] | None = None
        self._renewer: asyncio.Task[None] | None = None
        self._entered = ExitStack()

    async def __aenter__(self) -> AsyncConsumer:
        if self._renewer is not None:
            return self
        await self._usual.perform(self._session.enter(self._lease))
        loop = asyncio.get_running_loop()
        self._entered.enter_context(self._stop.ending(lambda: loop.call_soon_threadsafe(self._wake)))
        self._entered.enter_context(self._driver.closed.ending(self.stop))
        self._entered.enter_context(self._usual.leaps(lambda leap: self._renew(self._session.prepare(leap))))
        self._renewer = self._driver.keep(self._renew_leases())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        closing = self._driver.keep(self._close())
        if kind is not None and not issubclass(kind, Exception):
            return  # a cancelled task may not wait for anything
        try:
            await asyncio.shield(closing)
        except (RedisError, RqttlError) as failure:
            if error is None:
                raise
            # the caller must see the exception of the block; leased messages come back when their leases end
            logger.warning("queue %s: could not send acks or give messages back: %s", self.queue, failure)

    def __aiter__(self) -> AsyncConsumer:
        return self

    async def __anext__(self) -> AsyncDelivery:
        while not self._stop.asked():
            self._driver.check_open()
            delivery = self._prefetch.hand_out()
            if delivery is not None:
                return delivery
            if self._renewer is None:
                raise InvalidInput("consume: iterate inside `async with queue.consume() as deliveries:`")
            # a cancelled caller leaves the fetch to the next one
            fetching = self._fetching = self._fetching or self._driver.keep(self._fetch())
            try:
                fetched = await asyncio.shield(fetching)
            finally:
                if self._fetching is fetching and fetching.done():
                    self._fetching = None
            if not fetched:
                break
        self._driver.check_open()
        raise StopAsyncIteration

    async def aclose(self) -> None:
        await self._driver.wait_for(self._close())

    async def _close(self) -> None:
        self.stop()
        self._closed = True
        self._wake()
        for task in (self._renewer, self._fetching):
            if task is not None:
                await asyncio.wait([task])
        self._entered.close()
        await self._perform(self._session.leave())
        await self._perform(self._heartbeat.leave(), self._fast)

    async def release(self, delivery: AsyncDelivery) -> None:
        await self._settle("release", [delivery], None, None)

    # Settling

    async def _settle(
        self, how: str, deliveries: Sequence[AsyncDelivery], time: Duration | None, description: str | None
    ) -> None:
        """See `ConsumerBase`. The work is carried out, also if the caller is cancelled."""
        self._driver.check_open()
        if how == "ack" and not self._closed:
            self._collect(deliveries)
            self._settled.set()
        else:
            await self._driver.wait_for(self._settle_now(self._session.settle(how, deliveries, time, description)))

    async def _settle_now(self, flow: Flow[None]) -> None:
        try:
            await self._perform(flow)
        finally:
            self._settled.set()

    async def _perform(self, flow: Flow[T], driver: AsyncDriver | None = None) -> T:
        """Carry out a flow under the lock. The lock is free while the flow waits for a message."""
        await self._lock.acquire()
        try:
            return await (driver or self._driver).finish(flow, around_waits=self._lock)
        finally:
            flow.close()  # the end of the loop has left it in its midst
            self._lock.release()

    async def _fetch(self) -> bool:
        """Send acks and fetch messages, patiently while Redis is away. Returns False if no message came in time."""
        call, wait = self._fetch_once, self.wait
        return bool(await _patiently(call, self.queue, wait, self._stop, self._driver, self._settled, logger))

    async def _fetch_once(self) -> bool:
        while not (room := self._prefetch.room()) and not self._stop.asked():
            await pause_for(self._settled, LONGEST_REST)
        if self._stop.asked():
            return False
        since = perf_counter()
        claimed = await self._perform(self._session.fetch(room, self._lease, self.wait, self.idle()), self._usual)
        return self._take(AsyncDelivery, claimed, since)

    async def _renew_leases(self) -> None:
        """Take a turn at a third of the shortest lease, and once in a second at least, until the end."""
        now = self._driver.timing.now
        while not (self._closed or self._driver.closed.asked()):
            await pause_for(self._sooner, self._session.next_turn(now()))
            try:
                if not self._closed:
                    if self._stop.asked():
                        await self._perform(self._session.release_unseen(), self._usual)
                    await self._renew(self._session.upkeep())
                    await self._perform(self._heartbeat.beat_if_possible(), self._fast)
            except BrokerClosed:
                return  # no call can be sent any more; the task that iterates raises the error
            except Exception as error:  # noqa: BLE001  # without a renewer all leases would end
                self._session.log_failure(error)

    async def _renew(self, flow: Flow[Renewed]) -> None:
        renewed = await self._perform(flow, self._usual)
        if renewed:
            self._settled.set()  # leases may be lost
        announce_renewal(self._driver.events, renewed)

    def _hurry(self) -> None:
        self._sooner.set()

    def _wake(self) -> None:
        self._settled.set()
        self._sooner.set()


class AsyncRunner:
    """A run: its handler, its consumer and its counts."""

    def __init__(
        self,
        driver: AsyncDriver,
        consumer: AsyncConsumer,
        handler: Handler,
        concurrency: int,
        *,
        raise_errors: bool,
    ) -> None:
        if not callable(handler) or inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler):
            raise InvalidInput(f"{WRONG}, got {type(handler).__name__}")
        self._driver, self._consumer, self._handler, self._concurrency = driver, consumer, handler, concurrency
        self._work, self._begun = HandlerRun(consumer.stop, raise_errors=raise_errors), 0
        consumer.idle = lambda: max(1, self._concurrency - self._begun)

    async def run(self, stop: asyncio.Event | None) -> RunCounts:
        """Handle messages until `stop`, a signal, or the end of `wait`. See `AsyncQueue.run`."""
        consumer, halt = self._consumer, Interrupt()
        loop, sooner = asyncio.get_running_loop(), asyncio.Event()

        def end() -> None:
            halt.ask()
            loop.call_soon_threadsafe(sooner.set)
            consumer.stop()

        async def end_with(stop: asyncio.Event) -> None:
            await stop.wait()
            end()

        watching = None if stop is None else asyncio.ensure_future(end_with(stop))
        try:
            with StopSignals(end) if stop is None else nullcontext():
                # this call waits for a server that is away at the start, as the loop does later
                enter, driver = consumer.__aenter__, self._driver
                wait = consumer.wait
                if await _patiently(enter, consumer.queue, wait, halt, driver, sooner, run_logger):
                    async with consumer:
                        await self._share_out()
        finally:
            if watching is not None:
                watching.cancel()
        counts = self._work.result(consumer.lost_count, consumer.unknown_count)
        if halt.asked():
            run_logger.info("queue %s: stopped after %d messages", consumer.queue, counts.handled + counts.failed)
        return counts

    async def _share_out(self) -> None:
        """Share the messages among tasks until the iteration ends. A cancelled run cancels its handlers."""
        tasks = [asyncio.ensure_future(self._serve()) for _ in range(self._concurrency)]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            if any(task.cancelled() or task.exception() for task in done):
                self._consumer.stop()
            await asyncio.wait(tasks)
        except asyncio.CancelledError:
            for task in tasks:
                task.cancel()
            raise
        for task in tasks:
            task.result()

    async def _serve(self) -> None:
        async for delivery in self._consumer:
            self._begun += 1
            try:
                await self._handle(delivery)
            finally:
                self._begun -= 1

    async def _handle(self, delivery: AsyncDelivery) -> None:
        error: BaseException | None = None
        observer = self._driver.events.observer
        try:
            if observer is None:
                await self._call(delivery)
            else:
                with hook.handling(observer, delivery):
                    await self._call(delivery)
        except BaseException as failure:  # noqa: BLE001  # `count` raises it again
            error = failure
        settlement = self._work.settlement(delivery, error)
        if settlement is not None:
            settling = self._settle(delivery, settlement)
            if error is None or isinstance(error, Exception):
                await settling
            else:  # a cancelled task may not wait for anything
                self._driver.keep(settling)
        self._work.count(delivery, error)

    async def _call(self, delivery: AsyncDelivery) -> None:
        result = self._handler(delivery)
        if not inspect.isawaitable(result):
            raise WrongHandler(f"{WRONG}, got a function that returns {type_name(result)}")
        await result

    async def _settle(self, delivery: AsyncDelivery, settlement: Settlement) -> None:
        try:
            await delivery.settle_as(*settlement)
        except (RedisError, RqttlError) as failure:
            log_unsettled(delivery, failure)


async def _patiently(
    call: Callable[[], Awaitable[T]],
    queue: str,
    wait: int,
    stop: Interrupt,
    driver: AsyncDriver,
    sooner: asyncio.Event,
    logger: logging.Logger,
) -> T | None:
    """Repeat a call while Redis is away; see `consuming.base.patiently`. `sooner` ends a pause."""
    patience = Patience(queue, wait, driver.timing.now(), logger)
    while not stop.asked():
        try:
            return await call()
        except TEMPORARY as error:
            pause = patience.pause_after(error, driver.timing.now())
        await driver.pause(sooner, pause)
    return None
