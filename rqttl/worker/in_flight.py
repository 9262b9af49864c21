"""In-flight messages: which process runs each one, and how it ended."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rqttl.consuming.handling import RELEASE, Outcome, RetryPolicy, log_outcome, settlement
from rqttl.delivery import LOST, Delivery
from rqttl.runtime.interrupt import Wakeup
from rqttl.worker.child import BRISK, ChildProcess, Task
from rqttl.worker.health import Counters
from rqttl.worker.pool import Frame

if TYPE_CHECKING:
    from rqttl.worker.queue_source import QueueSource

logger = logging.getLogger("rqttl.worker")

#: Seconds for which a message waits for a slot, before its queue gets it back for other workers.
PATIENCE = 1.0
#: Seconds of work of fast handlers that the worker has at hand beside that, and its largest number for each slot.
AT_HAND, ROUNDS = 0.01, 50


class InFlight:
    """All messages that are out. Safe to share between threads. A handler may take `timeout` ms."""

    def __init__(self, counters: Counters, retries: RetryPolicy, timeout: int | None) -> None:
        #: The seconds that a handler may take.
        self.timeout = None if timeout is None else timeout / 1000
        self.children: list[ChildProcess] = []
        self.lock = threading.RLock()
        self.freed = Wakeup()
        self.counters, self._retries = counters, retries
        #: Messages for which no child has room, and the time since which there are any.
        self._waiting: deque[Task] = deque()
        self._waits_since: float | None = None
        self._mean = BRISK
        self._is_stopping = False

    def room(self) -> int:
        """Return the number of messages to fetch: for idle slots, and some ahead for fast handlers."""
        with self.lock:
            if self._is_stopping:
                return 0
            room = sum(child.room(self._mean) for child in self.children) - len(self._waiting)
            rounds = max(1.0, min(ROUNDS, AT_HAND / (self._mean + 1e-9)))
            brisk = [child for child in self.children if not child.retiring and child.is_brisk(self._mean)]
            ahead = int(rounds * sum(child.slots for child in brisk))
            return room + ahead if 2 * (room + ahead) >= ahead else 0

    def give(self, source: QueueSource, deliveries: list[Delivery]) -> None:
        """Hand messages to the children."""
        with self.lock:
            self._waiting.extend([Task(source, item) for item in deliveries])
            self.share_out()

    @property
    def is_idle(self) -> bool:
        """True if no message is out."""
        with self.lock:
            return not self._waiting and not any(child.running or child.waiting for child in self.children)

    def running(self) -> list[Task]:
        """Return the messages whose handlers work."""
        with self.lock:
            return [task for child in self.children for task in child.running.values()]

    def share_out(self) -> None:
        """Note which messages have begun, and hand waiting ones to the children with the most room.

        Those for which no child had room for `PATIENCE` go back: another worker may be free.
        """
        with self.lock:
            for child in self.children:
                self._begin(child)
            if self._is_stopping:
                self._release_waiting()
            if not self._waiting:
                self._waits_since = None
                return
            rooms = {child: child.room(self._mean) for child in self.children}
            parts = dict[ChildProcess, list[Task]]()
            while self._waiting and any(rooms.values()):
                child = max(rooms, key=rooms.__getitem__)
                parts.setdefault(child, []).append(self._waiting.popleft())
                rooms[child] -= 1
            for child, tasks in parts.items():
                child.take(tasks)
                self._begin(child)
            now = time.monotonic()
            if parts or self._waits_since is None:
                self._waits_since = now
            elif now - self._waits_since >= PATIENCE:
                self._release_waiting()

    def _begin(self, child: ChildProcess) -> None:
        """Note the messages that have begun, because a slot is free for them."""
        while child.waiting and len(child.running) < child.slots:
            key = next(iter(child.waiting))
            task = child.running[key] = child.waiting.pop(key)
            task.begun_at = time.monotonic()
            self.counters.begun(task.source.queue, task.source.age(task.delivery))

    # What children report

    def report(self, child: ChildProcess, frames: Iterable[Sequence[Any]]) -> None:
        """Take over the frames of a child."""
        with self.lock:
            for kind, *content in frames:
                if kind == Frame.ENDED:
                    self._ended(child, *content)
                elif kind == Frame.SETTLED:
                    self._settled(child, *content)
                elif kind == Frame.RENEW and (task := child.running.get(content[0])) is not None:
                    task.source.prolong(task.delivery, content[1])
                elif kind == Frame.UNSEEN:
                    self._unseen(child, *content)
                elif kind == Frame.READY:
                    child.slots, child.cancel_grace = content
                    self.children.append(child)
                    self.counters.slots += child.slots
                elif kind == Frame.BROKEN:
                    child.broken, child.trace = content
            self.share_out()
        self.freed.notify()

    def _ended(self, child: ChildProcess, key: int, seconds: float, outcome: Sequence[Any] | None) -> None:
        """A handler has ended. Without an outcome it has settled the message itself."""
        child.handled += 1
        task = child.remove(key)
        self._begin(child)  # the next one has begun meanwhile, and may have ended, too
        if task is not None:
            self._mean += 0.05 * (seconds - self._mean)
            self._end(task, None if outcome is None else Outcome(*outcome), seconds)

    def _settled(self, child: ChildProcess, key: int, outcome: Sequence[Any]) -> None:
        task = child.running.get(key)
        if task is not None and not task.settled:
            task.settled = True
            self._conclude(task, Outcome(*outcome), 0.0)

    def _unseen(self, child: ChildProcess, keys: Iterable[int]) -> None:
        for key in keys:
            task = child.remove(key)
            if task is not None:
                self._end(task, RELEASE, 0.0)

    def lost(self, child: ChildProcess, reason: str) -> bool:
        """A child has ended. Begun messages fail with this reason, and other children get the others.

        Returns True if the worker has ended it, because a handler took too long: only the message of that one fails.
        """
        with self.lock:
            if child in self.children:
                self.children.remove(child)
                self.counters.slots -= child.slots
            is_late = any(task.steps for task in child.running.values())
            for task in child.running.values():
                outcome = RELEASE if is_late and not task.steps else Outcome("crashed", None, reason)
                self._end(task, outcome, time.monotonic() - (task.begun_at or 0.0))
            self._waiting.extendleft(reversed(child.waiting.values()))
            self.share_out()
        self.freed.notify()
        return is_late

    def stop(self) -> None:
        """Give back all messages that no handler has begun, and take no further one."""
        with self.lock:
            self._is_stopping = True
            self._release_waiting()

    def _release_waiting(self) -> None:
        while self._waiting:
            self._conclude(self._waiting.popleft(), RELEASE, 0.0)

    def _end(self, task: Task, outcome: Outcome | None, seconds: float) -> None:
        """Record the end of a message that has left its child, and settle it unless its handler did."""
        if task.begun_at is not None:
            self.counters.ended(task.source.queue, seconds)
        if outcome is not None and task.steps:
            outcome = Outcome("timeout", outcome.delay, f"the handler took longer than {self.timeout:g} s")
        if outcome is not None and not task.settled:
            self._conclude(task, outcome, seconds)

    def _conclude(self, task: Task, outcome: Outcome, seconds: float) -> None:
        """Settle a message, and count and log its outcome."""
        item = task.delivery
        if item.settled != LOST:  # the source counts those
            self.counters.settled(item.queue, outcome.kind)
        settle = settlement(item, outcome, self._retries)
        log_outcome(logger, item, outcome, settle[1], seconds)
        if outcome.kind == "ack":
            task.source.finish(item)
        else:
            task.source.settle(item, settle)
