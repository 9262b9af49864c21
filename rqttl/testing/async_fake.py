"""The asyncio broker without a server: the steps of its flows are performed at once, at the time of a clock."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from rqttl import units
from rqttl.aio.broker import AsyncBroker
from rqttl.aio.driver import AsyncDriver, Run, pause_for
from rqttl.flows.steps import Step, WaitForWakeup
from rqttl.runtime.interrupt import Interrupt
from rqttl.store.driver import driver_of
from rqttl.testing.clocked import LOOK, TICK, Clock, ClockedDriver, ClockedTiming, take
from rqttl.testing.fake import FakeBroker
from rqttl.units import Instant

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from rqttl.reaper import Totals

#: Passes of the event loop in which other tasks may do something before a wait moves the clock.
PASSES = 50


def async_fake_broker(namespace: str = "rqttl", *, start: Instant | None = None) -> AsyncFakeBroker:
    """A new asyncio broker on an empty Redis of its own, within this process. See `fake_broker`.

    A wait lets other tasks run first, and then moves the clock.
    """
    return AsyncFakeBroker(namespace, start=start)


class AsyncClockedDriver(AsyncDriver):
    """An asyncio driver at the time of a clock. `sync` performs all steps but waits, each of them at once."""

    def __init__(self, sync: ClockedDriver) -> None:
        super().__init__(_no_client, sync.keyspace.namespace, events=sync.events, timing=sync.timing)
        self.sync = sync
        #: True while consumers prepare for a leap of the clock: each step is performed at once then.
        self.leaping = False

    def begin(self, step: Step, run: Run[Any]) -> Any:
        """See `AsyncDriver`."""
        return super().begin(step, run) if type(step) is WaitForWakeup else self.sync.step(step)

    async def listen(self, step: WaitForWakeup, interrupts: list[Interrupt]) -> Any:
        """See `AsyncDriver`. Other tasks run first; then the clock moves."""
        keys = step.keys(self.keyspace)
        if not self._timing.clock.is_of_this_thread():
            woken = await self._wait_really(step, list(keys), interrupts)
            return (keys[woken[0]], woken[1]) if isinstance(woken, tuple) else woken
        for _ in range(PASSES):
            await asyncio.sleep(0)
            if any(interrupt.asked() for interrupt in interrupts):
                break
        woken = self._timing.after_wait(take(self.sync.store, list(keys), interrupts), step)
        return (keys[woken[0]], woken[1]) if isinstance(woken, tuple) else woken

    async def _wait_really(self, step: WaitForWakeup, keys: Sequence[str], interrupts: list[Interrupt]) -> Any:
        clock, now = self._timing.clock, asyncio.get_running_loop().time
        began, ends = clock.ms, now() + min(step.ms, LOOK) / 1000
        while True:
            element = take(self.sync.store, keys, interrupts)
            if element is not None or now() >= ends or clock.ms != began:
                return element
            await asyncio.sleep(TICK / 1000)

    @property
    def _timing(self) -> ClockedTiming:
        timing = self.sync.timing
        assert isinstance(timing, ClockedTiming)  # noqa: S101  # the timing of a clocked driver
        return timing

    async def pause(self, sooner: asyncio.Event, ms: float) -> None:
        """See `AsyncDriver`."""
        if not self._timing.clock.is_of_this_thread():
            await pause_for(sooner, ms)
        elif not sooner.is_set():
            self._timing.clock.advance(units.as_timedelta(int(ms)))
            await asyncio.sleep(0)

    @contextmanager
    def leaps(self, prepare: Callable[[int], Coroutine[Any, Any, None]]) -> Iterator[None]:
        """See `AsyncDriver`. `Clock.advance` leaps, and no step of the preparation waits."""

        def at_once(ms: int) -> None:
            work, self.leaping = prepare(ms), True
            try:
                work.send(None)
            except StopIteration:
                return
            finally:
                self.leaping = False
                work.close()
            raise AssertionError("a step of a fake broker waited")

        self._timing.clock.subscribe(at_once)
        try:
            yield
        finally:
            self._timing.clock.unsubscribe(at_once)


class AsyncFakeBroker(AsyncBroker):
    """An `AsyncBroker` for unit tests: the same API, the same scripts, nothing shared with any other broker.

    See `FakeBroker`. `clock.advance("5s")` lets time pass. A wait first lets other tasks of the loop run, 50 passes of
    the loop at most. Then it moves the clock to the next due time of the queue, or to the end of the wait.
    """

    def __init__(
        self, namespace: str = "rqttl", *, start: Instant | None = None, beside: AsyncFakeBroker | None = None
    ) -> None:
        #: The sync broker on the same messages and the same clock.
        self.sync: FakeBroker = FakeBroker(namespace, start=start, beside=None if beside is None else beside.sync)
        sync = driver_of(self.sync)
        assert isinstance(sync, ClockedDriver)  # noqa: S101  # the driver of a fake broker
        super().__init__(None, namespace, folder=Path(), driver=lambda *_: AsyncClockedDriver(sync))

    @property
    def clock(self) -> Clock:
        """The time of this broker."""
        return self.sync.clock

    def __repr__(self) -> str:
        return f"<AsyncFakeBroker namespace {driver_of(self.sync).keyspace.namespace!r}>"

    def connect_async(self, url: str | None = None, *, namespace: str | None = None) -> AsyncFakeBroker:
        """Make a further broker on the same messages and the same clock, in the place of `rqttl.connect_async`.

        It ignores `url`. When it is closed, this broker stays open.
        """
        del url
        return AsyncFakeBroker(self._driver.keyspace.namespace if namespace is None else namespace, beside=self)

    def run_reaper(self) -> Totals:
        """Do all due work of all queues once, as a reaper would have done. Returns its totals."""
        return self.sync.run_reaper()

    async def aclose(self) -> None:
        """Close the broker; see `AsyncBroker.aclose`."""
        await super().aclose()
        self.sync.close()

    async def __aenter__(self) -> AsyncFakeBroker:
        await super().__aenter__()
        return self

    def __reduce__(self) -> NoReturn:
        self.sync.__reduce__()


def _no_client() -> Awaitable[Redis]:
    raise AssertionError("a clocked driver has no client of its own")
