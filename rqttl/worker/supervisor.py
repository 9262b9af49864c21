"""The supervision of children: their starts, ends and limits, and the time limits of handlers. One thread does it."""

from __future__ import annotations

import logging
import selectors
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress

from rqttl.consuming.handling import log_with_trace
from rqttl.runtime.memory import resident_bytes
from rqttl.worker.child import ChildProcess, Task
from rqttl.worker.commands import COMMAND_GRACE, TERM_GRACE
from rqttl.worker.in_flight import InFlight

logger = logging.getLogger("rqttl.worker")

#: Seconds between two looks at limits, at starts that are due, and at children that have to end.
LOOK = 0.2
#: Seconds before a new start after the second, third, ... child in a row that ended early. The first start is at once.
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
#: The number of children in a row that cannot load their handler, after which the worker ends.
UNLOADED = 3
#: Seconds that a child has to end after the order, when it has no message.
QUIT_GRACE = 5.0
#: Seconds of life after which the end of a child is not an early one.
SETTLED_IN = 10.0


class Place:
    """A place for a child. If its children end early again and again, they are started ever more slowly."""

    def __init__(self) -> None:
        self.child: ChildProcess | None = None
        #: The time of the next start.
        self.start_at = 0.0
        self.started_at, self._early = 0.0, 0

    def ended(self, now: float, *, failed: bool) -> None:
        """Set the time of the next start. A child `failed` if it ended by itself before a handler had ended."""
        self.child = None
        is_early = failed and now - self.started_at < SETTLED_IN
        self._early = self._early + 1 if is_early else 0
        pauses = self._early - 2
        self.start_at = now + (min(LONGEST_PAUSE, FIRST_PAUSE * 2.0**pauses) if pauses >= 0 else 0.0)


class Supervisor:
    """The children of a worker, `number` of them. `begin` starts one."""

    def __init__(
        self, in_flight: InFlight, number: int, max_memory: int | None, begin: Callable[[], ChildProcess]
    ) -> None:
        self._in_flight = in_flight
        self.number, self._max_memory, self._begin = number, max_memory, begin
        self._places = [Place() for _ in range(number)]
        self._ended = False
        self._woken, self.waker = socket.socketpair()
        for sock in (self._woken, self.waker):
            sock.setblocking(False)  # of the standard library
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._upkeep_at = 0.0
        #: The reason for which the worker has to end: no child can load the handler.
        self.broken = ""
        self._has_been_ready = False
        #: The number of children in a row that have ended before they were ready.
        self._unloaded = 0
        self._killed_because = ""

    @property
    def children(self) -> list[ChildProcess]:
        """The children that live."""
        return [place.child for place in self._places if place.child is not None]

    @property
    def ready(self) -> int:
        """The number of children that have loaded their handler."""
        return sum(child.slots > 0 for child in self.children)

    def wake(self) -> None:
        """End the wait of a turn. Any thread and any signal handler may call this."""
        with suppress(OSError):  # it is full, so the wait ends anyway; or it is closed
            self.waker.send(b"\0")

    def turn(self) -> None:
        """Start children that are due, end those that have to end, and handle what they send, for `LOOK` at most."""
        now = time.monotonic()
        if now >= self._upkeep_at:
            self._upkeep_at = now + LOOK  # news of a child bring it forward
            self._upkeep(now)
        for key, events in self._selector.select(max(0.0, self._upkeep_at - now)):
            place = key.data
            if place is None:
                self._woken.recv(4096)
                self._upkeep_at = 0.0
                continue
            if events & selectors.EVENT_WRITE:
                place.child.flush()
            if events & selectors.EVENT_READ:
                self._receive(place, place.child)

    def _upkeep(self, now: float) -> None:
        for place in self._places:
            if place.child is None and not self._ended and now >= place.start_at:
                child = self._begin()
                place.child, place.started_at = child, now
                self._selector.register(child.sock, selectors.EVENT_READ, place)
        self._in_flight.share_out()
        if self._in_flight.timeout is not None:
            for task in self._in_flight.running():
                self._enforce(task, now - (task.begun_at or now) - self._in_flight.timeout)
        for child in self.children:
            self._dismiss(child, now)
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if child.output else 0)
            key = self._selector.get_key(child.sock)
            if key.events != events:
                self._selector.modify(child.sock, events, key.data)

    def end(self) -> None:
        """Start no further child, and let each one end when it has no message."""
        self._ended, self._upkeep_at = True, 0.0
        for child in self.children:
            if child.slots:
                child.stop()
            else:
                child.signal(signal.SIGKILL)

    def kill(self, reason: str = "") -> None:
        """End all children at once. Their messages fail with this reason."""
        self._ended, self._killed_because = True, reason
        for child in self.children:
            child.signal(signal.SIGKILL)

    def close(self) -> None:
        """Wait for the end of all children."""
        self.kill()
        for child in self.children:
            child.end()
        self._close()

    def _close(self) -> None:
        self._selector.close()
        self._woken.close()
        self.waker.close()

    __del__ = _close  # of a worker that never ran

    def _receive(self, place: Place, child: ChildProcess) -> None:
        was_ready, handled = child.slots > 0, child.handled
        frames = child.receive()
        if frames is None:
            self._bury(place, child, time.monotonic())
            return
        self._in_flight.report(child, frames)
        if child.slots and not was_ready:
            self._has_been_ready, self._unloaded = True, 0
            logger.debug("child %d is ready", child.pid)
        elif child.handled > handled and not child.retiring:
            with self._in_flight.lock:
                if child.left == 0:
                    child.retiring = "max_messages"
                elif self._max_memory is not None and resident_bytes(child.pid) > self._max_memory:
                    child.retiring = "max_memory"
        if child.retiring or not was_ready or child.output:
            self._upkeep_at = 0.0

    def _dismiss(self, child: ChildProcess, now: float) -> None:
        """Let a retiring child without messages end, for another one to take its place."""
        with self._in_flight.lock:  # the fetcher gives it no further message meanwhile
            has_messages = bool(child.running or child.waiting)
            if child.retiring and not has_messages:
                child.stop()
        if child.quit_at is not None and has_messages:
            child.quit_at = now  # the time to end begins after the last handler
        elif child.quit_at is not None and now - child.quit_at >= QUIT_GRACE:
            child.signal(signal.SIGKILL)

    def _bury(self, place: Place, child: ChildProcess, now: float) -> None:
        self._upkeep_at = 0.0
        self._selector.unregister(child.sock)
        ending = child.end()
        reason = self._killed_because or ending
        late = self._in_flight.lost(child, reason)
        place.ended(now, failed=not late and not child.handled and not child.retiring)
        if self._ended or (not child.slots and self._gives_up(child, reason)):
            return
        if child.broken:
            words = f"child {child.pid}: {child.broken}; trying again"
            log_with_trace(logger, logging.ERROR, words, child.trace)
            return
        self._in_flight.counters.restarts["timeout" if late else child.retiring or "crashed"] += 1
        if child.retiring:
            logger.info("child %d ended (%s); starting another one", child.pid, child.retiring)
        elif not late:
            logger.error("child %d: %s; starting another one", child.pid, reason)

    def _gives_up(self, child: ChildProcess, reason: str) -> bool:
        """Count a child that has ended before it was ready. Returns True if the worker has to end."""
        if self._has_been_ready and not child.broken:
            return False
        self._unloaded += 1
        if self._unloaded < UNLOADED and (self._has_been_ready or not child.broken):
            return False
        if child.trace:
            log_with_trace(logger, logging.ERROR, "the handler cannot be loaded", child.trace)
        self.broken = child.broken or f"call: {reason} before it could handle messages, {UNLOADED} times in a row"
        self._ended = True
        return True

    def _enforce(self, task: Task, late: float) -> None:
        """Take the steps that are due against a handler that is `late` by so many seconds.

        If the child can end one handler alone, it has `cancel_grace` seconds for that. Then it gets SIGTERM, and
        SIGKILL.
        """
        child = task.child
        grace = child.cancel_grace or 0.0
        steps = [] if child.cancel_grace is None else [(0.0, 0)]
        steps += [(grace, signal.SIGTERM), (max(TERM_GRACE, grace), signal.SIGKILL)]
        for after, sign in steps[task.steps :]:
            if late < after:
                return
            task.steps += 1
            if sign:
                logger.warning("child %d: a handler takes too long; sending %s", child.pid, signal.Signals(sign).name)
                child.signal(sign)
            else:
                child.cancel(task.key)

    def end_commands(self, at_once: Callable[[], bool]) -> None:
        """Let all commands end, and wait for that until their time is over or `at_once` returns True.

        The exit codes of commands that end in time settle their messages.
        """
        ends_at = time.monotonic() + COMMAND_GRACE
        while not self._in_flight.is_idle and not at_once() and time.monotonic() < ends_at:
            for task in self._in_flight.running():  # again in each turn: one may have begun since the last one
                task.child.cancel(task.key)
            self.turn()
        if at_once():
            logger.warning("ending all commands at once")
