"""The driver of asyncio: it performs flows on one event loop, and ends the work of cancelled callers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Hashable
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from functools import partial
from types import CoroutineType, GeneratorType
from typing import Any, Generic, TypeVar

from redis.exceptions import ResponseError

from rqttl.aio.store import AsyncStore, Call, Source, is_usual, made, made_together
from rqttl.checks import boolean, check_namespace
from rqttl.consuming.settling import give_back
from rqttl.errors import BrokerClosed, ContractError, InvalidInput, QueueNotFound
from rqttl.events import Events, WaitEvent
from rqttl.flows.queues import Memory
from rqttl.flows.receive import Batches
from rqttl.flows.steps import (
    ABANDONED,
    ENDED,
    Flow,
    HandleNotes,
    Now,
    Pipeline,
    Read,
    ReadEachNode,
    Sleep,
    Step,
    WaitForWakeup,
    Write,
)
from rqttl.outages import Outages
from rqttl.protocol.commands import BriefCommand, Command, DiskCommand, ReplicaCommand
from rqttl.protocol.keys import META, Keyspace
from rqttl.runtime.interrupt import Interrupt, Timing
from rqttl.store.cluster import STALL, Seeds, patience_of
from rqttl.store.exchanges import explained
from rqttl.store.sentinel import is_service
from rqttl.store.topology import OneServer, Trip
from rqttl.types import Duration

T = TypeVar("T")

logger = logging.getLogger("rqttl.aio")


class AsyncDriver:
    """Performs flows for one namespace. It belongs to the event loop that uses it first.

    A flow that has begun is carried out to its end. When its caller is cancelled, a task of the driver goes on, and
    gives back messages that nobody waits for any more.
    """

    #: True if its time is that of a clock, which its waits move.
    is_clocked = False

    def __init__(
        self,
        source: Source | Seeds,
        namespace: str,
        *,
        events: Events | None = None,
        timing: Timing | None = None,
        patience: Duration | None = None,
        slotted: bool = False,
    ) -> None:
        self.keyspace = Keyspace(check_namespace(namespace), boolean(slotted, "slotted") or isinstance(source, Seeds))
        self.events = events or Events()
        self.outages: Outages | None = None
        self.store = AsyncStore(source, self.keyspace, self.events, self.keep, self.finish)
        self.store.exchanges.patience = patience_of(source, patience)
        self.store.exchanges.is_service = is_service(source)
        self.timing = timing or Timing()
        self.memory = Memory(self.keyspace)
        self.configs = self.memory.configs
        #: Ends every wait for a message, from the moment at which it is asked.
        self.interrupted = Interrupt()
        #: Tells consumers that the broker is being closed.
        self.closed = Interrupt()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._under_way = 0
        self._idle = asyncio.Event()
        self.use(self.store, self.store.send_now)

    def use(
        self,
        store: AsyncStore,
        send_now: Callable[[Command], Call | None],
        seconds: float | None = None,
    ) -> None:
        """Perform steps on this store from now on. A round trip is over after these seconds."""
        self.store, self._send_now = store, send_now
        self._begin: dict[type, Callable[[Any], Any]] = {
            **self.memory.answers,
            **dict.fromkeys((ReplicaCommand, DiskCommand), self._begin_durable),
            BriefCommand: store.exchanges.run,
            Pipeline: store.exchanges.run_together,
            **dict.fromkeys((Read, Write), store.exchanges.read),
            ReadEachNode: store.exchanges.read_each_node,
            Now: lambda _: self.timing.now(),
            Sleep: lambda step: asyncio.sleep(step.ms / 1000),
            HandleNotes: self._follow,
            Trip: partial(made, seconds=seconds),
            list: partial(made_together, seconds=seconds),
            float: asyncio.sleep,
        }

    def failing_fast(self) -> AsyncDriver:
        """See `RedisDriver.failing_fast`."""
        if isinstance(self.store.topology, OneServer):
            return self
        fast = copy(self)
        store = self.store.failing_fast()
        fast.use(store, store.send_briefly, STALL)
        fast.perform = partial(self.perform, fast=fast)  # type: ignore[method-assign]  # `self` counts its calls
        usual = self.store.exchanges.patience or 0
        fast.outages = Outages(self.store.topology, self.timing.now, logging.getLogger("rqttl.consumer"), usual)
        return fast

    async def perform(self, flow: Flow[T], fast: AsyncDriver | None = None) -> T:
        """Carry out a flow, by steps of `fast`.

        Messages that it has received go back if its caller is cancelled, or the broker closed.
        """
        if self._loop is not asyncio.get_running_loop() or self.closed.asked():
            self.enter()
        run = Run(fast or self, flow)
        self._under_way += 1
        try:
            result = await run.proceed()
        except asyncio.CancelledError:
            self.keep(self._go_on(run))
            raise
        except QueueNotFound as error:
            error.namespace = self.keyspace.namespace
            raise
        except ContractError:
            self.store.renew()  # the reply may have been one to another call
            raise
        except ResponseError as error:
            raise explained(error) from error.__cause__
        finally:
            self._under_way -= 1
            if not self._under_way and self.closed.asked():
                self._idle.set()
        if isinstance(result, Batches) and self.closed.asked():
            await self.wait_for(self.finish(give_back(self.keyspace, result, self.events)))
            raise BrokerClosed
        return result

    async def _go_on(self, run: Run[Any]) -> None:
        """Carry out a flow whose caller was cancelled."""
        run.abandoned = run.abandoned or Interrupt()
        run.abandoned.ask()
        try:
            result = await run.proceed()
            if isinstance(result, Batches):
                await self.finish(give_back(self.keyspace, result, self.events))
        except Exception as error:  # noqa: BLE001  # no caller is left to see it
            logger.warning("a call failed after its caller was cancelled: %s: %s", type(error).__name__, error)

    async def finish(self, flow: Flow[T], around_waits: asyncio.Lock | None = None) -> T:
        """Carry out a flow in a task that nobody cancels. Its waits free the lock `around_waits`, which it holds."""
        run = Run(self, flow)
        run.lock = around_waits
        return await run.proceed()

    def begin(self, step: Any, run: Run[Any]) -> Any:
        """Begin a step: return its answer, a flow, a `Call`, or a coroutine."""
        if type(step) is Command:
            return self._send_now(step) or self.store.exchanges.run(step)
        if type(step) is WaitForWakeup:
            return self._wait(step, run)
        begin = self._begin.get(type(step))
        if begin is None:
            raise TypeError(f"not a step of a flow: {step!r}")
        return begin(step)

    def _follow(self, step: HandleNotes) -> Any:
        """See `RedisDriver`."""
        fast, flow = self.failing_fast(), self.memory.answers[HandleNotes](step)
        return flow if fast is self else fast.finish(flow)

    def _begin_durable(self, command: Command) -> Any:
        return self.store.send_durable(command) or self.store.exchanges.run(command)

    async def _wait(self, step: WaitForWakeup, run: Run[Any]) -> Any:
        if run.abandoned is None:
            run.abandoned = Interrupt()
        elif run.abandoned.asked():
            return ABANDONED
        if self.events.notify is not None:
            for queue in step.queues:
                self.events.notify(WaitEvent(queue))
        abandoned, lock = run.abandoned, run.lock
        interrupts = [self.interrupted, abandoned, *([] if step.interrupt is None else [step.interrupt])]
        if lock is not None:
            lock.release()
        try:
            element = await self.listen(step, interrupts)
        finally:
            if lock is not None:
                await lock.acquire()
        return ABANDONED if element == ENDED and abandoned.asked() else element

    async def listen(self, step: WaitForWakeup, interrupts: list[Interrupt]) -> Any:
        """Wait for an element of a wake-up list. Returns the answer to the step."""
        keys, now = step.keys(self.keyspace), asyncio.get_running_loop().time
        ends = now() + step.ms / 1000
        woken = (
            await self.store.listen(step.queues[0], list(keys), step.in_redis, interrupts) if step.in_redis else None
        )
        if woken is None and step.exact:
            await asyncio.sleep(max(0.0, ends - now()))
        if isinstance(woken, list):
            return self.keyspace.woken(woken)
        return (keys[woken[0]], woken[1]) if isinstance(woken, tuple) else woken

    async def pause(self, sooner: asyncio.Event, ms: float) -> None:
        """Let time pass until the event, for `ms` at most. Clears the event."""
        await pause_for(sooner, ms)

    def leaps(self, prepare: Callable[[int], Coroutine[Any, Any, None]]) -> AbstractContextManager[object]:
        """Within this block carry out `prepare(ms)` before a leap of the clock; see `Timing.leaps`."""
        return nullcontext(prepare)  # real time never leaps

    def keep(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Make a task that belongs to the driver. `aclose` waits for its end."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # its caller may have been cancelled

    async def wait_for(self, work: Coroutine[Any, Any, T]) -> T:
        """Carry out `work` to its end in a task of the driver, also if the caller is cancelled."""
        return await asyncio.shield(self.keep(work))

    def enter(self) -> None:
        """Raise `InvalidInput` in another event loop than the first one, and `BrokerClosed` after `aclose`."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            if self._loop is not None:
                raise InvalidInput("broker: belongs to another event loop; make a broker in each loop")
            self._loop = loop
        self.check_open()

    def node_of(self, queue: str) -> Hashable:
        """See `Driver`."""
        return self.store.topology.node_of(self.keyspace.key(queue, META))

    def check_open(self) -> None:
        """Raise `BrokerClosed` after `aclose`."""
        if self.closed.asked():
            raise BrokerClosed

    def interrupt(self) -> None:
        """End every wait, from now on. Any thread and any signal handler may call it."""
        self.interrupted.ask()

    async def aclose(self) -> None:
        """End all waits, carry out what has begun, and close the connections."""
        if self._loop is None:  # it was never used
            self.closed.ask()
            return
        if self._loop is not asyncio.get_running_loop():
            raise InvalidInput("broker: belongs to another event loop; close it there")
        self.interrupted.ask()
        self.closed.ask()
        if self._under_way:
            await self._idle.wait()
        while self._tasks:
            await asyncio.wait(self._tasks)
        await self.store.close()
        while self._tasks:
            await asyncio.wait(self._tasks)


async def pause_for(sooner: asyncio.Event, ms: float) -> None:
    """Wait in real time for an event, for `ms` at most. Clears the event."""
    timer = asyncio.get_running_loop().call_later(ms / 1000, sooner.set)
    await sooner.wait()
    timer.cancel()
    sooner.clear()


class Run(Generic[T]):
    """One flow on its way through an event loop. A task can go on where a cancelled caller has left it.

    Its state is the flows that it performs within it, the step that is under way, and the last answer.
    """

    __slots__ = ("_answer", "_driver", "_error", "_flows", "_pending", "abandoned", "lock")

    def __init__(self, driver: AsyncDriver, flow: Flow[T]) -> None:
        self._driver = driver
        self._flows: list[Flow[Any]] = [flow]
        self._pending: Call | asyncio.Task[Any] | None = None
        self._answer: Any = None
        self._error: Exception | None = None
        #: Ends the waits of the flow, because nobody waits for its result any more. `None` until a wait needs it.
        self.abandoned: Interrupt | None = None
        #: The lock that the caller holds. It is free while the flow waits for a message.
        self.lock: asyncio.Lock | None = None

    async def proceed(self) -> T:
        """Carry the flow out to its end. After a cancellation the next call goes on where this one ended."""
        while self._pending is not None or self._advance():
            pending = self._pending
            try:
                if type(pending) is Call:
                    if pending.is_open:
                        await pending.arrival()
                    self._answer = pending.answer
                    if not is_usual(pending.command, self._answer):
                        again = self._driver.store.exchanges.run(pending.command, self._answer, pending.at)
                        self._flows.append(again)  # type: ignore[arg-type]  # the driver performs its steps, too
                        self._answer = None
                else:
                    self._answer = await asyncio.shield(pending)  # type: ignore[arg-type]  # `_advance` has set it
            except Exception as error:  # noqa: BLE001  # the flow decides about it
                self._error = error
            self._pending = None
        result: T = self._answer
        return result

    def _advance(self) -> bool:
        """Perform all steps that need no wait. Returns False at the end of the flow."""
        while True:
            flow = self._flows[-1]
            try:
                if self._error is None:
                    step = flow.send(self._answer)
                else:
                    error, self._error = self._error, None
                    step = flow.throw(error)
            except StopIteration as done:
                self._answer = done.value
                self._flows.pop()
                if not self._flows:
                    return False
                continue
            except Exception as failure:
                self._answer = None
                self._flows.pop()
                if not self._flows:
                    raise
                self._error = failure
                continue
            if self._begin(step):
                return True

    def _begin(self, step: Step) -> bool:
        """Begin a step. Returns True if its answer comes later."""
        try:
            begun = self._driver.begin(step, self)
        except Exception as error:  # noqa: BLE001  # the flow decides about it
            self._error = error
            return False
        kind = type(begun)
        if kind is Call:
            self._pending = begun
            return True
        self._answer = None
        if kind is CoroutineType:
            self._pending = self._driver.keep(begun)
            return True
        if kind is GeneratorType:
            self._flows.append(begun)
        else:
            self._answer = begun
        return False
