"""Fake brokers: all of rqttl in this process, with its real scripts, no server, and a clock that the test moves.

`ClockedBroker` is a broker on any Redis at the time of such a clock. The Redis of a fake broker is one by fakeredis.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import redis

from rqttl import units
from rqttl.aio.broker import AsyncBroker
from rqttl.aio.driver import AsyncDriver, Run, pause_for
from rqttl.broker import Broker
from rqttl.errors import InvalidInput, RqttlError
from rqttl.flows.steps import ENDED, Pipeline, Read, ReadEachNode, Step, WaitForWakeup, Write
from rqttl.protocol import replies
from rqttl.protocol.commands import Command
from rqttl.runtime.interrupt import Interrupt, Wakeup
from rqttl.store.connections import RedisNode
from rqttl.store.driver import RedisDriver, Store, Waiter, Woken, driver_of
from rqttl.store.topology import Calls, OneServer
from rqttl.text import install
from rqttl.types import Duration, Instant
from rqttl.units import MAX_DURATION, Ms

if TYPE_CHECKING:
    from fakeredis import FakeServer

    from rqttl.reaper import Totals

#: A wait of more ms than this has no end: `consume()` without `wait` waits so long.
ENDLESS = MAX_DURATION // 2
#: The real ms after which a wait in another thread than the clock's looks at queue and clock again: of a thread, which
#: a message wakes, and of a task.
LOOK, TASKS_LOOK = 200, 20
#: The number of due times that one endless wait may reach without a message.
IN_VAIN = 100
#: Passes of the event loop in which other tasks may do something before a wait moves the clock.
PASSES = 50
#: Sequences of messages hold 13 digits of milliseconds: from the year 2001 to 2286.
_FIRST, _LAST = 10**12, 10**13 - 1


def fake_broker(namespace: str = "rqttl", *, start: Instant | None = None, slotted: bool = False) -> FakeBroker:
    """A new broker on an empty Redis of its own, within this process; no server is needed.

    Its clock begins at `start` (an aware datetime, ISO 8601 text with a zone, or milliseconds since 1970), or at the
    time of this machine, and stands still. `slotted` is as for `rqttl.connect`.
    Raises `FakeUnavailable` where fakeredis is not installed, `InvalidName`, `InvalidInput`.
    """
    return FakeBroker(namespace, start=start, slotted=slotted)


def async_fake_broker(
    namespace: str = "rqttl", *, start: Instant | None = None, slotted: bool = False
) -> AsyncFakeBroker:
    """A new asyncio broker on an empty Redis of its own, within this process. See `fake_broker`.

    A wait lets other tasks run first, and then moves the clock.
    """
    return AsyncFakeBroker(namespace, start=start, slotted=slotted)


class NotSupportedByFake(RqttlError):
    """The fake broker cannot do this. A real server can, such as that of the fixture `rqttl_server`."""

    code = "not_supported_by_fake"

    def __init__(self, operation: str) -> None:
        instead = "use a real server (the pytest fixture rqttl_server)"
        super().__init__(f"{operation}: a fake broker cannot do this; {instead}")
        self.operation = operation


class WaitWouldNeverEnd(RqttlError):
    """A wait without an end, in the thread that owns the clock, for a queue in which nothing becomes due."""

    code = "wait_would_never_end"

    def __init__(self, queue: str) -> None:
        super().__init__(
            f"queue {queue!r}: waiting without an end, but nothing is in it and nothing becomes due; "
            "give `wait`, or consume in another thread than the one that made the broker"
        )
        self.queue = queue


class FakeUnavailable(RqttlError, ImportError):
    """The packages that the fake broker needs are not installed."""

    code = "fake_unavailable"


class Clock:
    """A clock that stands still until `advance`. Safe to share between threads.

    `start` is an aware datetime, ISO 8601 text with a zone, or milliseconds since 1970, from 2001 to 2286; without it,
    the time of this machine.
    A move of the clock does nothing to queues. The next call that touches the queue does the work that is due then, as
    on a server without a reaper, or by `FakeBroker.run_reaper()`.
    """

    def __init__(self, start: Instant | None = None) -> None:
        self._ms = _checked(int(time.time() * 1000) if start is None else units.instant(start, "start"), "start")
        self._owner = threading.get_ident()
        self._moving = threading.RLock()
        self._listeners: list[Callable[[int], object]] = []

    def __repr__(self) -> str:
        return f"<Clock {self.now.isoformat(timespec='milliseconds')}>"

    @property
    def now(self) -> datetime:
        """The time, as an aware datetime in UTC."""
        return units.as_datetime(self._ms)

    @property
    def ms(self) -> int:
        """The time, in milliseconds since 1970."""
        return self._ms

    def is_of_this_thread(self) -> bool:
        """Return True in the thread that made the clock. Its waits move the clock; waits of other threads are real."""
        return threading.get_ident() == self._owner

    def advance(self, duration: Duration) -> None:
        """Let time pass: a `timedelta`, or text such as `"5s"`.

        A `consume` loop keeps its leases, however far the clock goes, as in reality. Raises `InvalidDuration`.
        """
        ms = units.duration(duration, "duration")
        with self._moving:
            arrival = _checked(self._ms + ms, "duration")
            listeners = list(self._listeners)
            for listener in listeners:
                listener(ms)
            self._ms = arrival
            for listener in listeners:
                listener(0)

    def set(self, now: Instant) -> None:
        """Set the clock, forward or back, as if the process had been stopped meanwhile.

        Leases that `consume` would have renewed end. Raises `InvalidInput`.
        """
        with self._moving:
            self._ms = _checked(units.instant(now, "now"), "now")

    @contextmanager
    def leaps(self, listener: Callable[[int], object]) -> Iterator[None]:
        """Call `listener` before each `advance` within this block, with its ms, and with 0 after it."""
        with self._moving:
            self._listeners.append(listener)
        try:
            yield
        finally:
            with self._moving:
                self._listeners.remove(listener)


def _checked(ms: int, name: str) -> Ms:
    if not _FIRST <= ms <= _LAST:
        raise InvalidInput(f"{name}: expected a time from 2001-09-09 to 2286-11-20, got {ms} ms since 1970")
    return Ms(ms)


class ClockedTiming(Waiter):
    """The `Waiter` of a driver at the time of `clock`. In other threads than the clock's own, real time passes too."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._last_wait: tuple[tuple[str, ...], int] | None = None
        self._in_vain = 0

    def now(self) -> int:
        """See `Timing`."""
        return self.clock.ms if self.clock.is_of_this_thread() else self.clock.ms + super().now()

    def sleep(self, seconds: float) -> None:
        """See `Timing`."""
        if self.clock.is_of_this_thread():
            self.clock.advance(units.as_timedelta(int(seconds * 1000)))
        else:
            super().sleep(seconds)

    def pause(self, end: Interrupt, ms: Callable[[], float], sooner: Wakeup | None = None) -> None:
        """See `Timing`. A move of the clock ends no pause."""
        if not self.clock.is_of_this_thread():
            super().pause(end, ms, sooner)
        elif not end.asked():
            self.clock.advance(units.as_timedelta(int(ms())))

    def leaps(self, prepare: Callable[[int], None]) -> AbstractContextManager[object]:
        """See `Timing`."""
        return self.clock.leaps(prepare)

    def wait(self, store: Store, keys: Sequence[str], step: WaitForWakeup) -> Woken:
        """See `Waiter`. In another thread than the clock's it ends early, and the flow looks at queue and clock."""
        if not self.clock.is_of_this_thread():
            return super().wait(store, keys, replace(step, longest=min(step.longest, LOOK)))
        interrupts = [store.interrupted] if step.interrupt is None else [store.interrupted, step.interrupt]
        return self.after_wait(take(store, keys, interrupts), step)

    def after_wait(self, woken: Woken, step: WaitForWakeup) -> Woken:
        """Let the time of a wait pass if it brought no element. Returns the answer.

        No wake-up will come, because only this thread could send one.
        """
        if woken is not None:
            self._last_wait = None
            return woken
        wait = tuple(step.queues), self.clock.ms + step.left
        if wait != self._last_wait:
            self._last_wait, self._in_vain = wait, 0
        self._in_vain += 1
        # without due work one more look is needed: a listener may have stopped the loop. The same due time again and
        # again is the end of a lease that no code settles
        if step.left > ENDLESS and self._in_vain > (1 if step.due is None else IN_VAIN):
            self._last_wait = None
            raise WaitWouldNeverEnd(step.queues[0])
        if step.left <= ENDLESS or step.due is not None:
            self.clock.advance(units.as_timedelta(step.left if step.due is None else min(step.left, step.due)))
        return None


def take(store: Store, keys: Sequence[str], interrupts: Sequence[Interrupt]) -> Woken:
    """Take an element of one of the lists without waiting. Returns `ENDED` after an interrupt."""
    for key in keys:
        (reply,) = store.read(Write([("LPOP", key)]))
        element = None if reply is None else replies.data(reply)
        if element is not None:
            return key, element
    return ENDED if any(interrupt.asked() for interrupt in interrupts) else None


class ClockedDriver(RedisDriver):
    """A driver on any Redis at the time of `clock`."""

    timing: ClockedTiming

    def __init__(self, client: redis.Redis, namespace: str, clock: Clock, *, slotted: bool = False) -> None:
        topology = OneServer(_FakeNode(client)) if isinstance(client, FakeClient) else None
        super().__init__(client, namespace, ClockedTiming(clock), topology, slotted=slotted)
        self.clock = clock

    def step(self, step: Step) -> Any:
        """Carry out one step of a flow, at the time of the clock."""
        if isinstance(step, Command):
            return super().step(self.timed(step))
        if isinstance(step, Pipeline):
            return super().step(replace(step, commands=[self.timed(command) for command in step.commands]))
        answer = super().step(step)
        if isinstance(step, ReadEachNode):
            return {node: self._told(step.calls, replies) for node, replies in answer.items()}
        if not isinstance(step, Read):
            return answer
        if step.timed:
            return answer[0], [self.clock.ms for _ in step.calls]
        return self._told([*step.calls, *step.then], answer)

    def _told(self, calls: Sequence[tuple[Any, ...]], replies: Sequence[Any]) -> list[Any]:
        """Return the replies, with the time of the clock as that of Redis."""
        now = list(divmod(self.clock.ms * 1000, 1_000_000))
        return [now if call[0] == "TIME" else reply for call, reply in zip(calls, replies, strict=True)]

    def timed(self, command: Command) -> Command:
        """Return the command with the time of the clock."""
        return command.with_word("now", self.clock.ms) if "now" in command.script.args else command


class ClockedBroker(Broker):
    """A broker on any Redis at the time of `clock`. Without `clock` it makes one, which begins at `start`."""

    def __init__(
        self,
        client: redis.Redis,
        namespace: str = "rqttl",
        *,
        start: Instant | None = None,
        clock: Clock | None = None,
        slotted: bool = False,
    ) -> None:
        #: The time of this broker.
        self.clock = clock or Clock(start)
        super().__init__(
            client,
            namespace,
            driver=lambda client, namespace, **_: ClockedDriver(client, namespace, self.clock, slotted=slotted),
        )


class FakeClient(redis.Redis):
    """A redis-py client of a Redis within this process: of a new one, or of the one that `beside` uses."""

    def __init__(self, beside: FakeClient | None = None) -> None:
        try:
            import fakeredis
            import lupa  # noqa: F401  # what runs the scripts; without it fakeredis would call EVALSHA unknown
        except ImportError as error:
            raise FakeUnavailable(f"fake broker: {error}; install what it needs: {install('testing')}") from error
        if beside is not None:
            self.fake_server: FakeServer = beside.fake_server
        else:
            self.fake_server = fakeredis.FakeServer()
            self.fake_server.script_cache = _Scripts()
        super().__init__(connection_pool=fakeredis.FakeRedis(server=self.fake_server).connection_pool)

    def pubsub(self, **_: Any) -> NoReturn:
        """Raise `NotSupportedByFake`: a reaper that subscribes to hints would sleep for ever, as time stands still."""
        raise NotSupportedByFake("Reaper.run")


class _FakeNode(RedisNode):
    """A server within this process, which has every `durability` that a queue asks for."""

    def round_trip(self, calls: Calls, *, waits: bool = True) -> list[Any]:
        """See `RedisNode`."""
        confirmed: dict[str, Any] = {"WAIT": 1, "WAITAOF": [1, 0]}
        replies = iter(super().round_trip([call for call in calls if call[0] not in confirmed], waits=waits))
        return [confirmed[call[0]] if call[0] in confirmed else next(replies) for call in calls]


class _Scripts(dict[bytes, bytes]):
    """The scripts of a fake server, by their hashes.

    fakeredis compiles the text of a script at each call, which takes several times as long as the run. So the first
    call keeps the compiled script in the table `redis` of the interpreter, and each later call has a text of one line.
    """

    def __init__(self) -> None:
        super().__init__()
        self._compiled: set[bytes] = set()

    def __setitem__(self, sha: bytes, text: bytes) -> None:
        self._compiled.discard(sha)
        super().__setitem__(sha, text)

    def __getitem__(self, sha: bytes) -> bytes:
        text = super().__getitem__(sha)
        call = b"return redis['%b']()" % sha
        if sha in self._compiled:
            return call
        self._compiled.add(sha)
        return b"redis['%b'] = function() %b\nend %b" % (sha, text, call)


class FakeBroker(ClockedBroker):
    """A `Broker` for unit tests: the same API, the same scripts, nothing shared with any other broker.

    * `clock.advance("5s")` lets time pass, `clock.now` is the time.
    * A wait takes no time in the thread that made the broker. `receive(wait="5s")` takes a message that is there, or
      one that listeners of `WaitEvent` and other threads send meanwhile. Else it moves the clock to the next due time
      of the queue, or to the end of the wait. A wait without an end raises `WaitWouldNeverEnd` if nothing more can
      happen. In any other thread a wait is a real one. A message ends it, and so does a move of the clock past its end.
    * `consume` keeps its leases when the clock is advanced, as it does in real time. `clock.set` lets them end.
    * The next call on a queue does its due work, and so does `run_reaper()`.

    It lives in one process; a fork of it has a copy. Code that connects and closes by itself gets its brokers from
    `connect`. The messages exist as long as one of these brokers is referenced.
    """

    def __init__(
        self,
        namespace: str = "rqttl",
        *,
        start: Instant | None = None,
        beside: FakeBroker | None = None,
        slotted: bool = False,
    ) -> None:
        self._fake: FakeClient = FakeClient(beside._fake if beside else None)  # noqa: SLF001  # of the same class
        super().__init__(self._fake, namespace, start=start, clock=beside.clock if beside else None, slotted=slotted)

    def __repr__(self) -> str:
        return f"<FakeBroker namespace {driver_of(self).keyspace.namespace!r}>"

    def connect(self, url: str | None = None, *, namespace: str | None = None) -> FakeBroker:
        """Make a further broker on the same messages and the same clock, in the place of `rqttl.connect`.

        It ignores `url`. When it is closed, this broker stays open.
        """
        del url
        keyspace = driver_of(self).keyspace
        name = keyspace.namespace if namespace is None else namespace
        return FakeBroker(name, beside=self, slotted=keyspace.slotted)

    def run_reaper(self) -> Totals:
        """Do all due work of all queues once, as a reaper would have done. Returns its totals."""
        from rqttl.reaper import Reaper

        return Reaper(self).run_once()


class AsyncClockedDriver(AsyncDriver):
    """An asyncio driver at the time of a clock. `sync` performs all steps but waits, each of them at once."""

    is_clocked = True

    def __init__(self, sync: ClockedDriver) -> None:
        super().__init__(
            _no_client, sync.keyspace.namespace, events=sync.events, timing=sync.timing, slotted=sync.keyspace.slotted
        )
        self.sync = sync

    def begin(self, step: Step, run: Run[Any]) -> Any:
        """See `AsyncDriver`."""
        return super().begin(step, run) if type(step) is WaitForWakeup else self.sync.step(step)

    async def listen(self, step: WaitForWakeup, interrupts: list[Interrupt]) -> Any:
        """See `AsyncDriver`. Other tasks run first; then the clock moves."""
        keys = step.keys(self.keyspace)
        moves_clock = self.sync.clock.is_of_this_thread()
        for _ in range(PASSES if moves_clock else 1):
            await asyncio.sleep(0 if moves_clock else min(step.ms, TASKS_LOOK) / 1000)
            if any(interrupt.asked() for interrupt in interrupts):
                break
        woken = take(self.sync.store, list(keys), interrupts)
        if moves_clock:
            woken = self.sync.timing.after_wait(woken, step)
        return (keys[woken[0]], woken[1]) if isinstance(woken, tuple) else woken

    async def pause(self, sooner: asyncio.Event, ms: float) -> None:
        """See `AsyncDriver`."""
        if not self.sync.clock.is_of_this_thread():
            await pause_for(sooner, ms)
        elif not sooner.is_set():
            self.sync.clock.advance(units.as_timedelta(int(ms)))
            await asyncio.sleep(0)

    def leaps(self, prepare: Callable[[int], Coroutine[Any, Any, None]]) -> AbstractContextManager[object]:
        """See `AsyncDriver`. No step of the preparation waits."""

        def at_once(ms: int) -> None:
            work = prepare(ms)
            try:
                work.send(None)
            except StopIteration:
                return
            finally:
                work.close()
            raise AssertionError("a step of a fake broker waited")

        return self.sync.clock.leaps(at_once)


def _no_client() -> Awaitable[NoReturn]:
    raise AssertionError("a clocked driver has no client of its own")


class AsyncFakeBroker(AsyncBroker):
    """An `AsyncBroker` for unit tests: the same API, the same scripts, nothing shared with any other broker.

    See `FakeBroker`. `clock.advance("5s")` lets time pass. A wait first lets other tasks of the loop run, 50 passes of
    the loop at most. Then it moves the clock to the next due time of the queue, or to the end of the wait.
    """

    def __init__(
        self,
        namespace: str = "rqttl",
        *,
        start: Instant | None = None,
        beside: AsyncFakeBroker | None = None,
        slotted: bool = False,
    ) -> None:
        #: The sync broker on the same messages and the same clock.
        self.sync: FakeBroker = FakeBroker(
            namespace, start=start, beside=beside.sync if beside else None, slotted=slotted
        )
        sync = driver_of(self.sync)
        assert isinstance(sync, ClockedDriver)  # noqa: S101  # the driver of a fake broker
        super().__init__(None, namespace, folder=Path(), driver=lambda *_, **__: AsyncClockedDriver(sync))

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
        keyspace = self._driver.keyspace
        name = keyspace.namespace if namespace is None else namespace
        return AsyncFakeBroker(name, beside=self, slotted=keyspace.slotted)

    def run_reaper(self) -> Totals:
        """Do all due work of all queues once, as a reaper would have done. Returns its totals."""
        return self.sync.run_reaper()

    async def aclose(self) -> None:
        """Close the broker; see `AsyncBroker.aclose`."""
        await super().aclose()
        self.sync.close()
