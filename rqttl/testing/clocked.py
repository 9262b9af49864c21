"""A broker whose clock a test moves: the real library and its scripts, with an injected `now` in every call."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from typing import Any

import redis

from rqttl import units
from rqttl.broker import Broker
from rqttl.errors import InvalidInput
from rqttl.flows import steps
from rqttl.flows.steps import ENDED
from rqttl.protocol import replies
from rqttl.protocol.commands import Command
from rqttl.runtime.interrupt import Interrupt, Wakeup
from rqttl.store.driver import RedisDriver, Store, Waiter, Woken
from rqttl.testing.errors import WaitWouldNeverEnd
from rqttl.units import MAX_DURATION, Duration, Instant, Ms

#: A wait of more ms than this has no end: `consume()` without `wait` waits so long.
ENDLESS = MAX_DURATION // 2
#: In real ms: the period in which a wait in another thread checks the clock, and the longest such wait.
TICK, LOOK = 20, 400
#: The number of due times that one endless wait may reach without a message.
IN_VAIN = 100
#: Sequences of messages hold 13 digits of milliseconds: from the year 2001 to 2286.
_FIRST, _LAST = 10**12, 10**13 - 1
#: A function that is called with ms before the clock leaps forward by them, and with 0 after that.
ClockListener = Callable[[int], object]


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
        self._listeners: list[ClockListener] = []

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

    def subscribe(self, listener: ClockListener) -> None:
        """Call `listener` at each later `advance`."""
        with self._moving:
            self._listeners.append(listener)

    def unsubscribe(self, listener: ClockListener) -> None:
        """Stop calling `listener`."""
        with self._moving:
            if listener in self._listeners:
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
        """See `Timing`. In a thread other than the clock's own, real time passes, too."""
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

    def wait(self, store: Store, keys: Sequence[str], step: steps.WaitForWakeup) -> Woken:
        """See `Waiter`."""
        if not self.clock.is_of_this_thread():
            return self._wait_really(store, keys, step)
        return self.after_wait(take(store, keys, _interrupts(store, step)), step)

    def after_wait(self, woken: Woken, step: steps.WaitForWakeup) -> Woken:
        """Let the time of a wait pass if it brought no element. Returns the answer."""
        if woken is None:
            self._let_pass(step)
        else:
            self._last_wait = None
        return woken

    @contextmanager
    def leaps(self, prepare: Callable[[int], None]) -> Iterator[None]:
        """See `Timing`. `Clock.advance` leaps."""
        self.clock.subscribe(prepare)
        try:
            yield
        finally:
            self.clock.unsubscribe(prepare)

    def _wait_really(self, store: Store, keys: Sequence[str], step: steps.WaitForWakeup) -> Woken:
        began, ends = self.clock.ms, time.monotonic() + min(step.ms, LOOK) / 1000
        while not any(interrupt.asked() for interrupt in _interrupts(store, step)):
            left = ends - time.monotonic()
            woken = store.listen(step.queues, keys, max(1, min(TICK, int(left * 1000))))
            if woken is not None or left <= 0 or self.clock.ms != began:
                return woken
        return take(store, keys, _interrupts(store, step))

    def _let_pass(self, step: steps.WaitForWakeup) -> None:
        """Move the clock. No wake-up will come, because only this thread could send one."""
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
            passing = step.left if step.due is None else min(step.left, step.due)
            self.clock.advance(units.as_timedelta(passing))


def take(store: Store, keys: Sequence[str], interrupts: Sequence[Interrupt]) -> Woken:
    """Take an element of one of the lists without waiting. Returns `ENDED` after an interrupt."""
    for key in keys:
        (reply,) = store.execute([("LPOP", key)])
        element = replies.data_or_none(reply)
        if element is not None:
            return key, element
    return ENDED if any(interrupt.asked() for interrupt in interrupts) else None


def _interrupts(store: Store, step: steps.WaitForWakeup) -> list[Interrupt]:
    return [store.interrupted] if step.interrupt is None else [store.interrupted, step.interrupt]


class ClockedDriver(RedisDriver):
    """A driver on any Redis at the time of `clock`."""

    def __init__(self, client: redis.Redis, namespace: str, clock: Clock) -> None:
        super().__init__(client, namespace, ClockedTiming(clock))
        self.clock = clock

    def step(self, step: steps.Step) -> Any:
        """Carry out one step of a flow, at the time of the clock."""
        if isinstance(step, Command):
            return super().step(self.timed(step))
        if isinstance(step, steps.Pipeline):
            return super().step(replace(step, commands=[self.timed(command) for command in step.commands]))
        if isinstance(step, steps.Read | steps.Write):
            now = list(divmod(self.clock.ms * 1000, 1_000_000))
            return [
                now if call[0] == "TIME" else reply for call, reply in zip(step.calls, super().step(step), strict=True)
            ]
        return super().step(step)

    def timed(self, command: Command) -> Command:
        """Return the command with the time of the clock."""
        if "now" not in command.script.args:
            return command
        return command.with_word("now", self.clock.ms)


class ClockedBroker(Broker):
    """A broker on any Redis at the time of `clock`. Without `clock` it makes one, which begins at `start`."""

    def __init__(
        self,
        client: redis.Redis,
        namespace: str = "rqttl",
        *,
        start: Instant | None = None,
        clock: Clock | None = None,
        driver: Callable[[redis.Redis, str, Clock], RedisDriver] = ClockedDriver,
    ) -> None:
        #: The time of this broker.
        self.clock = clock or Clock(start)
        super().__init__(client, namespace, driver=lambda client, namespace: driver(client, namespace, self.clock))
