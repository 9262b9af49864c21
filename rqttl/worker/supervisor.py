"""The supervision of handlers: starts, ends and limits of child processes, and time limits. One thread does it."""

from __future__ import annotations

import logging
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress

from rqttl.runtime.memory import resident_bytes
from rqttl.worker.commands import COMMAND_GRACE, TERM_GRACE
from rqttl.worker.in_flight import InFlight, Task
from rqttl.worker.metrics import Counters
from rqttl.worker.outcomes import log_with_trace
from rqttl.worker.process import QUIT_GRACE, ChildProcess
from rqttl.worker.settings import Settings

logger = logging.getLogger("rqttl.worker")

#: The settings that a child gets.
SETUP = ("call", "exec", "delivery", "threads", "asyncio", "max_messages")
#: Seconds of one wait at most.
TURN = 1.0
#: Seconds before a new start after the second, third, ... child in a row that ended early. The first start is at once.
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
#: The number of children in a row that cannot load their handler, after which the worker ends.
UNLOADED = 3
#: Seconds of life after which the end of a child is not an early one.
SETTLED_IN = 10.0


class Waker:
    """Ends the wait of a selector. Any thread and any signal handler may call it."""

    def __init__(self) -> None:
        self.reader, self.writer = socket.socketpair()
        self.reader.setblocking(False)  # of the standard library
        self.writer.setblocking(False)  # as above

    def __call__(self) -> None:
        """End the wait."""
        with suppress(OSError):  # it is full, so the wait ends anyway; or it is closed
            self.writer.send(b"\0")

    def clear(self) -> None:
        """Make it ready for the next wait."""
        with suppress(BlockingIOError):
            while self.reader.recv(4096):
                continue

    def close(self) -> None:
        """Close both ends."""
        self.reader.close()
        self.writer.close()

    __del__ = close  # of a worker that never ran


class Supervisor:
    """The child processes of a worker. Without children it only waits, and ends handlers that take too long."""

    def __init__(self, in_flight: InFlight, counters: Counters, settings: Settings, waker: Waker) -> None:
        self._in_flight, self._counters, self._settings, self._waker = in_flight, counters, settings, waker
        self.number = settings.processes
        self._setup = {name: getattr(settings, name) for name in SETUP}
        self._setup["path"] = [place for place in sys.path if place]
        self._restarts = [Restarts() for _ in range(self.number)]
        self._start_at: list[float | None] = [0.0] * self.number
        self._children: list[ChildProcess] = []
        self._ended = False
        self._selector = selectors.DefaultSelector()
        self._selector.register(waker.reader, selectors.EVENT_READ)
        self._upkeep_at = self._limits_at = 0.0
        #: The steps that were taken against handlers that take too long.
        self._steps: dict[Task, int] = {}
        #: The reason for which the worker has to end: no child can load the handler.
        self.broken = ""
        self._has_been_ready = False
        #: The number of children in a row that have ended before they were ready.
        self._unloaded = 0
        self._killed_because = ""

    @property
    def ready(self) -> int:
        """The number of children that take messages or would."""
        return sum(child.is_ready and not child.retiring for child in list(self._children))

    @property
    def pids(self) -> list[int]:
        """The numbers of the processes."""
        return [child.pid for child in list(self._children)]

    @property
    def is_empty(self) -> bool:
        """True if no child lives."""
        return not self._children

    def turn(self, now: float, longest: float) -> None:
        """Start children that are due, end those that have to end, and handle what they send, for a short time."""
        if now >= self._upkeep_at:
            self._upkeep_at = self._upkeep(now)
        for key, events in self._selector.select(max(0.0, min(longest, self._upkeep_at - now))):
            child = key.data
            if child is None:
                self._waker.clear()
                self._upkeep_at = 0.0
                continue
            if events & selectors.EVENT_WRITE:
                child.flush()
            if events & selectors.EVENT_READ:
                self._receive(child)

    def _upkeep(self, now: float) -> float:
        """Do what is due. Returns the time of the next upkeep; news of a child bring it forward."""
        self._start_due(now)
        self._in_flight.release_stale()
        if self._in_flight.timeout is not None and now >= self._limits_at:
            self._limits_at = self._enforce(now)
        self._dismiss(now)
        for child in self._children:
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if child.has_output else 0)
            if self._selector.get_key(child.sock).events != events:
                self._selector.modify(child.sock, events, child)
        moments = [at for at in self._start_at if at is not None and not self._ended]
        moments += [self._limits_at] if self._in_flight.timeout is not None else []
        moments += [child.quit_at + QUIT_GRACE for child in self._children if child.quit_at is not None]
        return min([now + TURN, *moments])

    def end(self) -> None:
        """Start no further child, and let each one end when it has no message."""
        self._ended, self._upkeep_at = True, 0.0
        for child in self._children:
            if child.is_ready:
                child.stop()
            else:
                child.signal(signal.SIGKILL)

    def kill(self, reason: str = "") -> None:
        """End all children at once. Their messages fail with this reason."""
        self._ended, self._killed_because = True, reason
        for child in self._children:
            child.signal(signal.SIGKILL)

    def close(self) -> None:
        """Wait for the end of all children."""
        self.kill()
        for child in list(self._children):
            self._remove(child)
            child.end()
        self._selector.close()

    # Starts and ends

    def _start_due(self, now: float) -> None:
        for place, at in enumerate(self._start_at):
            if at is None or now < at or self._ended:
                continue
            child = ChildProcess(self._in_flight, place, self._setup, self._waker)
            self._start_at[place] = None
            self._restarts[place].started(now)
            self._children.append(child)
            self._selector.register(child.sock, selectors.EVENT_READ, child)

    def _receive(self, child: ChildProcess) -> None:
        was_ready, handled = child.is_ready, child.handled
        if not child.receive():
            self._bury(child, time.monotonic())
        elif child.is_ready and not was_ready:
            self._admit(child)
        elif child.handled > handled and not child.retiring:
            with self._in_flight.lock:
                child.retiring = self._limit_of(child)
        if child.retiring or not was_ready or child.has_output:
            self._upkeep_at = 0.0

    def _limit_of(self, child: ChildProcess) -> str:
        """Return the name of the limit that a child has reached, or an empty text."""
        if child.left == 0:
            return "max_messages"
        if self._settings.max_memory is not None and resident_bytes(child.pid) > self._settings.max_memory:
            return "max_memory"
        return ""

    def _admit(self, child: ChildProcess) -> None:
        """Let a child that has loaded its handler take messages."""
        self._has_been_ready, self._unloaded = True, 0
        with self._in_flight.lock:
            self._in_flight.hosts.append(child)
            self._counters.has_slots(self._in_flight.slots)
            self._in_flight.share_out()
        self._in_flight.freed.notify()
        logger.debug("child %d is ready", child.pid)

    def _dismiss(self, now: float) -> None:
        """Let retiring children without messages end. Another child takes the place of each at once."""
        for child in self._children:
            if child.retiring and self._restarting(child):
                self._start_at[child.number] = now
                self._counters.restarted(child.retiring)
                logger.info("child %d ends (%s); another one takes its place", child.pid, child.retiring)
            with self._in_flight.lock:  # the fetcher gives it no further message meanwhile
                if child.retiring and not child.tasks:
                    child.stop()
            if child.quit_at is not None and child.tasks:
                child.quit_at = now  # the time to end begins after the last handler
            elif child.quit_at is not None and now - child.quit_at >= QUIT_GRACE:
                child.signal(signal.SIGKILL)

    def _restarting(self, child: ChildProcess) -> bool:
        """Return True once for a retiring child, if the worker goes on."""
        replaced = any(other.number == child.number and other is not child for other in self._children)
        return not self._ended and not replaced and self._start_at[child.number] is None

    def _bury(self, child: ChildProcess, now: float) -> None:
        """Take note of the end of a child."""
        self._upkeep_at = 0.0
        self._remove(child)
        ending = child.end()
        reason = self._killed_because or ending
        late = any(task.is_late for task in child.tasks)
        self._in_flight.lost(child, reason)
        self._counters.has_slots(self._in_flight.slots)
        if self._ended or any(other.number == child.number for other in self._children):
            return
        if not child.is_ready and not self._goes_on_without(child, reason):
            return
        if child.broken:
            text = f"child {child.pid}: {child.broken}; the worker tries again"
            log_with_trace(logging.ERROR, text, child.trace)
        elif child.quit_at is None and not child.retiring:
            self._counters.restarted("timeout" if late else "crashed")
            if not late:
                logger.error("child %d: %s; another one takes its place", child.pid, reason)
        if self._start_at[child.number] is None:
            failed = not late and not child.handled and child.quit_at is None
            self._start_at[child.number] = self._restarts[child.number].next_start(now, failed=failed)

    def _goes_on_without(self, child: ChildProcess, reason: str) -> bool:
        """Count a child that has ended before it was ready. Returns False if the worker has to end."""
        if self._has_been_ready and not child.broken:
            return True
        self._unloaded += 1
        if self._unloaded < UNLOADED and (self._has_been_ready or not child.broken):
            return True
        log_unloaded(child.trace)
        self.broken = child.broken or f"call: {reason} before it could handle messages, {UNLOADED} times in a row"
        self._ended = True
        return False

    def _remove(self, child: ChildProcess) -> None:
        self._selector.unregister(child.sock)
        self._children.remove(child)

    # Time limits

    def _enforce(self, now: float) -> float:
        """Take the steps against handlers that take too long. Returns the time of the next look."""
        assert self._in_flight.timeout is not None  # noqa: S101  # for the type checker
        running = self._in_flight.running()
        self._steps = {task: self._steps[task] for task in running if task in self._steps}
        looks = [now + self._in_flight.timeout]
        for task in running:
            for number, (after, step) in enumerate(self._steps_against(task)):
                at = (task.begun_at or now) + self._in_flight.timeout + after
                if now < at:
                    looks.append(at)
                    break
                if number >= self._steps.get(task, 0) and self.may_end(task):
                    self._steps[task], task.is_late = number + 1, True
                    step()
        return min(looks)

    def may_end(self, task: Task) -> bool:
        """Return True if the time limit acts for a message. Tests let it act late."""
        return task.host is not None

    def _steps_against(self, task: Task) -> list[tuple[float, Callable[[], object]]]:
        """The steps against one handler: the seconds after its time limit, and the call.

        If the host can end one handler alone, it has `cancel_grace` seconds for that. Then its process gets SIGTERM,
        and SIGKILL. Without a process of their own, threads cannot be ended.
        """
        host, steps = task.host, list[tuple[float, Callable[[], object]]]()
        grace = None if host is None else host.cancel_grace
        if host is not None and grace is not None:
            steps.append((0.0, lambda: host.cancel(task.key)))
        if isinstance(host, ChildProcess):
            steps.append((grace or 0.0, lambda: _end(host, signal.SIGTERM)))
            steps.append((max(TERM_GRACE, grace or 0.0), lambda: _end(host, signal.SIGKILL)))
        return steps

    def end_commands(self, at_once: Callable[[], bool]) -> None:
        """Let all commands end, and wait for that until their time is over or `at_once` returns True.

        The exit codes of commands that end in time settle their messages.
        """
        ends_at = time.monotonic() + COMMAND_GRACE
        while not self._in_flight.is_idle and not at_once() and (now := time.monotonic()) < ends_at:
            for task in self._in_flight.running():  # again in each turn: one may have begun since the last one
                if task.host is not None:
                    task.host.cancel(task.key)
            self.turn(now, min(TURN, ends_at - now))
        if at_once():
            logger.warning("the worker ends all commands at once")


def _end(child: ChildProcess, number: signal.Signals) -> None:
    logger.warning("child %d: a handler takes too long; %s", child.pid, number.name.removeprefix("SIG"))
    child.signal(number)


class Restarts:
    """The starts of one place for a child. A child that ends early again and again is started ever more slowly."""

    def __init__(self) -> None:
        self._early = 0
        self._started_at = 0.0

    def started(self, now: float) -> None:
        """Record a start."""
        self._started_at = now

    def next_start(self, now: float, *, failed: bool) -> float:
        """Return the time of the next start. A child `failed` if it ended by itself before a handler had ended."""
        is_early = failed and now - self._started_at < SETTLED_IN
        self._early = self._early + 1 if is_early else 0
        pauses = self._early - 2
        return now + (min(LONGEST_PAUSE, FIRST_PAUSE * 2.0**pauses) if pauses >= 0 else 0.0)


def log_unloaded(trace: str) -> None:
    """Log the traceback of a module of the user that could not be loaded. The worker ends with the reason."""
    if trace:
        log_with_trace(logging.ERROR, "the handler cannot be loaded", trace)
