"""Handlers of an asyncio consumer: a bounded number of tasks, each with one message at a time."""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING

from rqttl import events as hook
from rqttl.aio.delivery import AsyncDelivery
from rqttl.consuming import handling
from rqttl.consuming.base import serve
from rqttl.consuming.patience import Patience
from rqttl.delivery import observer_of, settle_after
from rqttl.errors import InvalidInput
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


class Handling:
    """The handling of all messages of a consumer by `concurrency` tasks."""

    def __init__(
        self,
        consumer: AsyncConsumer,
        handler: Handler,
        concurrency: int,
        *,
        raise_errors: bool = False,
        chance: Callable[[], float] = random.random,
    ) -> None:
        if not callable(handler) or inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler):
            raise InvalidInput(f"{WRONG}, got {type(handler).__name__}")
        self._consumer, self._handler = consumer, handler
        self._concurrency, _ = handling.check_sizes(concurrency, None, "concurrency")
        self._raise_errors, self._chance = raise_errors, chance
        self._tally, self._begun = handling.Tally(), 0

    async def run(self) -> RunCounts:
        """Handle messages until the iteration ends. A cancelled run cancels its handlers."""
        serve(self._consumer, lambda: max(1, self._concurrency - self._begun))
        tasks = [asyncio.ensure_future(self._work()) for _ in range(self._concurrency)]
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
        return self.result()

    def result(self) -> RunCounts:
        """Return the counts so far."""
        return self._tally.result(self._consumer.lost_count, self._consumer.unknown_count)

    async def _work(self) -> None:
        async for delivery in self._consumer:
            self._begun += 1
            try:
                await self._handle(delivery)
            finally:
                self._begun -= 1

    async def _handle(self, delivery: AsyncDelivery) -> None:
        async def do(step: handling.Next) -> None:
            if step is None:
                observer = observer_of(delivery)
                await (self._call if observer is None else hook.observed_async(observer, self._call))(delivery)
                return
            error, pause = step
            if error is None or isinstance(error, Exception):
                await settle_after(delivery, error, pause)
            else:  # a cancelled task may not wait for anything
                await delivery.__aexit__(type(error), error, error.__traceback__)

        flow = handling.handle(delivery, self._tally, self._chance, raise_errors=self._raise_errors)
        await handling.drive_async(flow, do)

    async def _call(self, delivery: AsyncDelivery) -> None:
        result = self._handler(delivery)
        if not inspect.isawaitable(result):
            raise handling.WrongHandler(f"{WRONG}, got a function that returns {type_name(result)}")
        await result


async def run(
    driver: AsyncDriver, consumer: AsyncConsumer, work: Handling, wait: int, stop: asyncio.Event | None
) -> RunCounts:
    """Handle messages until `stop`, a signal, or the end of `wait`. See `AsyncQueue.run`."""
    loop, asked, pause = asyncio.get_running_loop(), Interrupt(), asyncio.Event()

    def end() -> None:
        asked.ask()
        loop.call_soon_threadsafe(pause.set)
        consumer.stop()

    watching = None if stop is None else asyncio.ensure_future(_end_with(stop, end))
    patience = Patience(consumer.queue, wait, driver.timing.now(), logger)
    counts = work.result()
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
                    await work.run()
                break
            counts = work.result()
    finally:
        if watching is not None:
            watching.cancel()
    if asked.asked():
        logger.info("queue %s: stopped, after %d messages", consumer.queue, counts.handled + counts.failed)
    return counts


async def _end_with(stop: asyncio.Event, end: Callable[[], None]) -> None:
    await stop.wait()
    end()
