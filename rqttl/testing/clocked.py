"""A broker whose time a test moves: the real library and its scripts, with an injected `now` in every call.

Waiting takes no time in the thread that made the broker, the test's own: the clock goes forward instead, to what
becomes due or to the end of the wait. In every other thread a wait is a real one, which a message or the test's clock
ends early: only the test decides what time it is, however many threads there are.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import Any

import redis

from rqttl import flows, units
from rqttl.broker import Broker
from rqttl.consumer import STAY, Consumer
from rqttl.errors import PoolExhausted, RqttlError
from rqttl.flows.messages import ENDED
from rqttl.protocol import replies
from rqttl.protocol.commands import Command, Presence
from rqttl.queue import Queue
from rqttl.runtime.interrupt import Interrupt
from rqttl.store.driver import RedisDriver
from rqttl.testing.clock import Clock
from rqttl.testing.errors import EndlessWait
from rqttl.types import Declared
from rqttl.units import MAX_DURATION, Duration, Instant

logger = logging.getLogger("rqttl.testing")

#: Who waits for longer than this, in ms, waits for ever: `consume()` without `wait` does.
ENDLESS = MAX_DURATION // 2
#: In real ms: how often a wait in another thread looks at the clock, and how often it lets the caller look around.
TICK, LOOK = 20, 400
#: So often something may become due in one endless wait without a message coming of it.
IN_VAIN = 100


class ClockedDriver(RedisDriver):
    """A driver on any Redis at the time of `clock`."""

    def __init__(self, client: redis.Redis, namespace: str, clock: Clock) -> None:
        super().__init__(client, namespace)
        self.clock = clock
        self._wait: tuple[str, int] | None = None
        self._in_vain = 0
        self._interrupt = Interrupt()

    def interrupt(self) -> None:
        """See `RedisDriver.interrupt`."""
        self._interrupt.ask()

    def step(self, step: flows.Step) -> Any:
        """Carry out one step of a flow, at the time of the clock."""
        if isinstance(step, Command):
            return super().step(self._timed(step))
        if isinstance(step, flows.Pipeline):
            return super().step(replace(step, commands=[self._timed(command) for command in step.commands]))
        if isinstance(step, flows.Read | flows.Write):
            now = list(divmod(self.clock.ms * 1000, 1_000_000))
            return [
                now if call[0] == "TIME" else reply for call, reply in zip(step.calls, super().step(step), strict=True)
            ]
        if isinstance(step, flows.Now):
            return self.clock.ms if self.clock.is_of_this_thread() else self.clock.ms + int(time.monotonic() * 1000)
        if isinstance(step, flows.WaitForWakeup):
            return self._listen(step)
        return super().step(step)

    def _timed(self, command: Command) -> Command:
        if "now" not in command.script.args:
            return command
        return command.with_word("now", self.clock.ms)

    def _listen(self, step: flows.WaitForWakeup) -> bytes | PoolExhausted | None:
        for listener in self.events.on_waiting:
            listener(step.queue)
        if not self.clock.is_of_this_thread():
            return self._listen_really(step)
        heard = self._hear(step)
        if heard is None:
            self._let_pass(step)
        else:
            self._wait = None
        return heard

    def _listen_really(self, step: flows.WaitForWakeup) -> bytes | PoolExhausted | None:
        began, ends = self.clock.ms, time.monotonic() + min(step.ms, LOOK) / 1000
        while not self._is_interrupted(step):
            left = ends - time.monotonic()
            heard = self.store.listen(step.queue, self._bell(step), max(1, min(TICK, int(left * 1000))))
            if heard is not None or left <= 0 or self.clock.ms != began:
                return heard
        return self._hear(step)

    def _hear(self, step: flows.WaitForWakeup) -> bytes | None:
        """Take what the bell holds now, without waiting. `ENDED` after an interrupt."""
        heard = self.perform(flows.execute(replies.data_or_none, "LPOP", self._bell(step)))
        return ENDED if heard is None and self._is_interrupted(step) else heard

    def _bell(self, step: flows.WaitForWakeup) -> str:
        return self.keyspace.key(step.queue, "wakeup")

    def _is_interrupted(self, step: flows.WaitForWakeup) -> bool:
        return self._interrupt.asked() or (step.interrupt is not None and step.interrupt.asked())

    def _let_pass(self, step: flows.WaitForWakeup) -> None:
        """Nobody has rung, and nobody will: whoever could is this very thread."""
        wait = step.queue, self.clock.ms + step.left
        if wait != self._wait:
            self._wait, self._in_vain = wait, 0
        self._in_vain += 1
        # without anything due, a listener may have stopped the loop, which is seen when it looks again; and what
        # becomes due over and over is the lease of something that nobody settles
        if step.left > ENDLESS and self._in_vain > (1 if step.due is None else IN_VAIN):
            self._wait = None
            raise EndlessWait(step.queue)
        if step.left <= ENDLESS or step.due is not None:
            passing = step.left if step.due is None else min(step.left, step.due)
            self.clock.advance(units.as_timedelta(passing))


class ClockedBroker(Broker):
    """A broker on any Redis at the time of `clock`, without one at that of a new clock, which begins at `start`."""

    def __init__(
        self, client: redis.Redis, namespace: str = "rqttl", *, start: Instant | None = None, clock: Clock | None = None
    ) -> None:
        #: The time of this broker.
        self.clock = clock or Clock(start)
        super().__init__(client, namespace)

    def _open(self, client: redis.Redis, namespace: str) -> RedisDriver:
        return ClockedDriver(client, namespace, self.clock)

    def _handle(self, name: str, declared: Declared | None = None) -> Queue:
        return ClockedQueue(self, self._driver, name, declared)


class ClockedQueue(Queue):
    """A queue whose `consume` goes along with the clock."""

    def __init__(self, broker: ClockedBroker, driver: RedisDriver, name: str, declared: Declared | None = None) -> None:
        super().__init__(broker, driver, name, declared)
        self.clock = broker.clock

    def consume(self, prefetch: int = 100, *, lease: Duration | None = None, wait: Duration | None = None) -> Consumer:
        """See `Queue.consume`."""
        return ClockedConsumer(self, prefetch, lease=lease, wait=wait)


class ClockedConsumer(Consumer):
    """A consumer that has done what its keeper does by itself in real time, whenever the clock is advanced."""

    def __init__(
        self, queue: ClockedQueue, prefetch: int, *, lease: Duration | None = None, wait: Duration | None = None
    ) -> None:
        super().__init__(queue, prefetch, lease=lease, wait=wait)
        self._clock = queue.clock

    def __enter__(self) -> Consumer:
        super().__enter__()
        self._clock.take_along(self)
        return self

    def close(self) -> None:
        """See `Consumer.close`."""
        self._clock.leave_behind(self)
        super().close()

    def before(self, ms: int) -> None:
        """Send what was acked, and be here and hold the leases throughout."""
        self._tend(STAY + ms, ms)

    def after(self) -> None:
        """Be here and hold the leases for as long as they are given."""
        self._tend(STAY, 0)

    def _tend(self, stay: int, ms: int) -> None:
        try:
            self._report(Presence(self._name, -1, stay))
            self._renew(ms)
        except RqttlError as error:  # as a keeper does: a queue that is gone is told when the loop goes on
            logger.warning("queue %s: could not renew leases: %s", self.queue.name, type(error).__name__)
