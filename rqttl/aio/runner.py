"""Handlers of an asyncio consumer: a bounded number of tasks, each with one message at a time."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING

from redis.exceptions import RedisError

from rqttl import events as hook
from rqttl.aio.delivery import AsyncDelivery
from rqttl.consuming.base import serve
from rqttl.consuming.handling import HandlerRun, Settlement, WrongHandler, check_sizes, log_unsettled
from rqttl.consuming.patience import Patience
from rqttl.delivery import settle_as
from rqttl.errors import InvalidInput, RqttlError
from rqttl.runtime.interrupt import Interrupt
from rqttl.runtime.stop_signals import StopSignals
from rqttl.store.refusals import TEMPORARY
from rqttl.text import type_name
from rqttl.types import RunCounts

if TYPE_CHECKING:
    from rqttl.aio.consumer import AsyncConsumer
    from rqttl.aio.driver import AsyncDriver

logger = logging.getLogger("rqttl.run")

Handler = Callable[[AsyncDelivery], Awaitable[object]]
WRONG = "handler: expected an `async def` that takes a delivery"


class AsyncRunner:
    """The handling of all messages of a consumer by `concurrency` tasks."""

    def __init__(
        self,
        driver: AsyncDriver,
        consumer: AsyncConsumer,
        handler: Handler,
        concurrency: int,
        *,
        raise_errors: bool = False,
    ) -> None:
        if not callable(handler) or inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler):
            raise InvalidInput(f"{WRONG}, got {type(handler).__name__}")
        self._driver, self._consumer, self._handler = driver, consumer, handler
        self._concurrency, _ = check_sizes(concurrency, None, "concurrency")
        self._work, self._begun = HandlerRun(raise_errors=raise_errors), 0

    async def run(self) -> RunCounts:
        """Handle messages until the iteration ends. A cancelled run cancels its handlers."""
        serve(self._consumer, lambda: max(1, self._concurrency - self._begun))
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
        return self._result()

    async def run_until(self, wait: int, stop: asyncio.Event | None) -> RunCounts:
        """Handle messages until `stop`, a signal, or the end of `wait`. See `AsyncQueue.run`."""
        driver, consumer = self._driver, self._consumer
        loop, asked, pause = asyncio.get_running_loop(), Interrupt(), asyncio.Event()

        def end() -> None:
            asked.ask()
            loop.call_soon_threadsafe(pause.set)
            consumer.stop()

        async def end_with(stop: asyncio.Event) -> None:
            await stop.wait()
            end()

        watching = None if stop is None else asyncio.ensure_future(end_with(stop))
        patience = Patience(consumer.queue, wait, driver.timing.now(), logger)
        try:
            with StopSignals(end) if stop is None else nullcontext():
                while not asked.asked():
                    # this call waits for a server that is away at the start, as the loop does later
                    try:
                        await consumer.__aenter__()
                    except TEMPORARY as error:
                        await driver.pause(pause, patience.pause_after(error, driver.timing.now()))
                        continue
                    async with consumer:
                        await self.run()
                    break
        finally:
            if watching is not None:
                watching.cancel()
        counts = self._result()
        if asked.asked():
            logger.info("queue %s: stopped, after %d messages", consumer.queue, counts.handled + counts.failed)
        return counts

    def _result(self) -> RunCounts:
        return self._work.result(self._consumer.lost_count, self._consumer.unknown_count)

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
            await (self._call if observer is None else hook.observed_async(observer, self._call))(delivery)
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
            await settle_as(delivery, *settlement)
        except (RedisError, RqttlError) as failure:
            log_unsettled(delivery, failure)
