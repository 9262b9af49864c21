"""The supervision of children: starts, ends, time limits, and the frames that they send. One thread does it."""

from __future__ import annotations

import logging
import random
import selectors
import signal
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from rqttl.worker.children import ChildProcess
from rqttl.worker.counters import Counters
from rqttl.worker.crew import Crew
from rqttl.worker.lines import log_with_trace
from rqttl.worker.supervision import UNLOADED, Restarts, with_jitter

logger = logging.getLogger("rqttl.worker")

#: Seconds of one wait at most, and between two looks at the source files.
TURN = 1.0
#: Seconds between two looks at the boards while something may be new there. See `Reports`.
LOOK = 0.02
#: Seconds between two looks for stopped children.
LOOK_FOR_STOPPED = 1.0
#: Seconds after which a stopped child that has messages, and has begun none of them, is replaced.
STOPPED_IDLE = 1.0
#: Seconds that a child has to end after the order, when it has no message.
QUIT_GRACE = 5.0


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


class Nursery:
    """The child processes of a worker. Without children it only waits."""

    def __init__(
        self,
        crew: Crew,
        counters: Counters,
        setup: Mapping[str, Any],
        number: int,
        waker: Waker,
        *,
        reload: bool,
    ) -> None:
        self.number = number
        self._crew, self._counters = crew, counters
        self._setup = dict(setup)
        self._waker = waker
        self._restarts = [Restarts() for _ in range(number)]
        self._start_at: list[float | None] = [0.0] * number
        self._children: list[ChildProcess] = []
        self._ended = False
        self._selector = selectors.DefaultSelector()
        self._selector.register(waker.reader, selectors.EVENT_READ)
        self._reload = reload
        self._changed_at, self._looked_at = 0.0, 0.0
        #: The source of the handler, and the begin of the child that ended last, as files have it.
        self._source, self._last_began = "", 0.0
        #: The time of the next look at the boards, if something may be new there.
        self._look_at = 0.0
        self._look_for_stopped_at = 0.0
        #: The reason for which no child could ever load the handler.
        self.broken = ""
        self._has_been_ready = False
        #: The number of children in a row that have ended before they were ready.
        self._unloaded = 0
        self._killed_because = ""

    @property
    def ready(self) -> int:
        """The number of children that take messages or would."""
        children = list(self._children)
        return sum(child.is_ready and not child.retiring and child.stopped_since is None for child in children)

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
        self._start_due(now)
        if self._reload and now - self._looked_at >= TURN:
            self._look_for_changes(now)
        if now >= self._look_at:
            self._look_at = now + LOOK
            self._crew.look()
        self._look_for_stopped(now)
        self._enforce(now)
        self._dismiss(now)
        for child in self._children:
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if child.has_output else 0)
            if self._selector.get_key(child.sock).events != events:
                self._selector.modify(child.sock, events, child)
        for key, events in self._selector.select(self._patience(now, longest)):
            child = key.data
            if child is None:
                self._waker.clear()
                continue
            if events & selectors.EVENT_WRITE:
                child.flush()
            if events & selectors.EVENT_READ and not child.receive():
                self._bury(child, time.monotonic())
            elif child.is_ready and child not in self._crew.places:
                self._admit(child)

    def end(self) -> None:
        """Start no further child, and let each one end when it has no message."""
        self._ended = True
        for child in self._children:
            if not child.is_ready:
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

    def _patience(self, now: float, longest: float) -> float:
        moments = [at for at in self._start_at if at is not None and not self._ended]
        moments += [deadline.next_at for _, deadline in self._crew.deadlines() if deadline.next_at]
        moments += [self._look_at] if self._crew.is_watching else []
        moments += [child.quit_at + QUIT_GRACE for child in self._children if child.quit_at is not None]
        return max(0.0, min([longest, TURN, *(at - now for at in moments)]))

    # Starts and ends

    def _start_due(self, now: float) -> None:
        if self._ended:
            return
        for place, at in enumerate(self._start_at):
            if at is None or now < at:
                continue
            setup = dict(self._setup)
            if setup["max_age"] is not None:
                setup["max_age"] = with_jitter(setup["max_age"], random.random)
            child = ChildProcess(self._crew, place, setup, self._waker)
            self._start_at[place] = None
            self._restarts[place].started(now)
            self._children.append(child)
            self._selector.register(child.sock, selectors.EVENT_READ, child)

    def _admit(self, child: ChildProcess) -> None:
        """Let a child that has loaded its handler take messages."""
        self._has_been_ready, self._unloaded, self._source = True, 0, child.source
        with self._crew.lock:
            self._crew.places.append(child)
            self._counters.has_slots(self._crew.slots)
            self._crew.share_out()
        self._crew.freed.notify()
        logger.debug("child %d is ready", child.pid)

    def _dismiss(self, now: float) -> None:
        """Let children without messages end, if they have to. Another child takes the place of a retiring one."""
        for child in self._children:
            if child.retiring and self._restarting(child):
                self._start_at[child.number] = now
                self._counters.restarted(child.retiring)
                logger.info("child %d ends (%s); another one takes its place", child.pid, child.retiring)
            if (child.retiring or self._ended) and child.is_ready and not child.tasks:
                child.quit(now)
            if child.quit_at is not None and now - child.quit_at >= QUIT_GRACE:
                child.signal(signal.SIGKILL)

    def _restarting(self, child: ChildProcess) -> bool:
        """Return True once for a retiring child, if the worker goes on."""
        replaced = any(other.number == child.number and other is not child for other in self._children)
        return not self._ended and not replaced and self._start_at[child.number] is None

    def _bury(self, child: ChildProcess, now: float) -> None:
        """Take note of the end of a child."""
        self._remove(child)
        self._last_began = child.began
        ending = child.end()
        reason = self._killed_because or ending
        late = any(task.deadline is not None and task.deadline.reached for task in child.tasks.values())
        self._crew.lost(child, reason)
        self._counters.has_slots(self._crew.slots)
        if self._ended or any(other.number == child.number for other in self._children):
            return
        if not child.is_ready and not self._goes_on_without(child, reason):
            return
        if child.broken:
            text = f"child {child.pid}: {child.broken}; the worker tries again"
            log_with_trace(logging.ERROR, text, child.trace)
        elif child.quit_at is None and not child.retiring:
            cause = "timeout" if late else "crashed"
            self._counters.restarted(cause)
            if not late:
                logger.error("child %d: %s; another one takes its place", child.pid, reason)
        if self._start_at[child.number] is None:
            failed = not late and not child.has_finished and child.quit_at is None
            self._start_at[child.number] = self._restarts[child.number].next_start(now, failed=failed)

    def _goes_on_without(self, child: ChildProcess, reason: str) -> bool:
        """Count a child that has ended before it was ready. Returns False if the worker has to end.

        With `reload` the next version of the source may be better.
        """
        self._unloaded += 1
        if self._unloaded < UNLOADED and (self._has_been_ready or not child.broken):
            return True
        if self._has_been_ready and self._reload:
            return True
        log_unloaded(child.trace)
        self.broken = child.broken or f"call: {reason} before it could handle messages, {UNLOADED} times in a row"
        self._ended = True
        return False

    def _remove(self, child: ChildProcess) -> None:
        self._selector.unregister(child.sock)
        self._children.remove(child)

    # Time limits and changes of the source

    def _enforce(self, now: float) -> None:
        """Take the steps against handlers that take too long."""
        for task, deadline in self._crew.deadlines():
            step = deadline.due(now)
            if step is not None and isinstance(task.place, ChildProcess):
                task.place.carry_out(step, task.key)

    def _look_for_stopped(self, now: float) -> None:
        """Hand no message to a stopped child. Replace it if it has messages of which no handler has begun any."""
        if now < self._look_for_stopped_at:
            return
        self._look_for_stopped_at = now + LOOK_FOR_STOPPED
        for child in self._children:
            if child.look_whether_stopped(now):
                if child.stopped_since is None:
                    logger.info("child %d goes on", child.pid)
                    self._crew.share_out()
                    self._crew.freed.notify()
                else:
                    logger.warning("child %d is stopped (SIGSTOP); it gets no message until it goes on", child.pid)
            since = child.stopped_since
            if since is not None and now - since >= STOPPED_IDLE and child.tasks and not child.begins():
                logger.warning("child %d is stopped, and holds messages that it has not begun; KILL", child.pid)
                child.signal(signal.SIGKILL)

    def _look_for_changes(self, now: float) -> None:
        """Replace all children when a source file has changed since the last look. Children that wait start at once."""
        self._looked_at = now
        begins = [child.began for child in self._children if child.is_ready and not child.retiring]
        begins += [self._last_began] if any(at is not None for at in self._start_at) else []
        if not self._source or not begins:
            return
        newest = _newest(self._source)
        if newest <= max(min(begins), self._changed_at):
            return
        self._changed_at = newest
        logger.info("the source has changed")
        for child in self._children:
            child.retire("reload")
        for place, at in enumerate(self._start_at):
            if at is not None:
                self._start_at[place] = now


def log_unloaded(trace: str) -> None:
    """Log the traceback of a module of the user that could not be loaded. The worker ends with the reason."""
    if trace:
        log_with_trace(logging.ERROR, "the handler cannot be loaded", trace)


def _newest(source: str) -> float:
    """Return the time of the newest source file: of a file, or in a folder."""
    path = Path(source)
    newest = 0.0
    for file in path.rglob("*.py") if path.is_dir() else [path]:
        with suppress(OSError):  # it was removed meanwhile
            newest = max(newest, file.stat().st_mtime)
    return newest
