"""In-flight messages: which process runs each one, and how it ended."""

from __future__ import annotations

import random
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rqttl.delivery import LOST, Delivery, config_of
from rqttl.runtime.interrupt import Interrupt, Wakeup
from rqttl.worker.outcomes import ACK, RELEASE, Outcome, RetryPolicy, log_outcome, settlement

if TYPE_CHECKING:
    from rqttl.worker.metrics import Counters
    from rqttl.worker.queue_source import QueueSource

#: Seconds for which a message waits for a slot, before its queue gets it back for other workers.
PATIENCE = 1.0
#: Seconds below which handlers are so fast that one more message waits in the pipe of each slot.
BRISK = 0.05
#: Seconds of work of such handlers that the worker has at hand beside that, and its largest number for each slot.
AT_HAND, ROUNDS = 0.01, 50


class Task:
    """A message that is out: its host, and the time at which its handler began it, as far as the worker knows."""

    __slots__ = ("begun_at", "delivery", "host", "is_late", "key", "settled", "source")

    def __init__(self, source: QueueSource, delivery: Delivery) -> None:
        self.source = source
        self.delivery = delivery
        self.key = -1
        self.host: Host | None = None
        self.begun_at: float | None = None
        #: True after the worker has begun to end the handler, because it takes too long.
        self.is_late = False
        #: True after the handler has settled the message itself.
        self.settled = False


class Host(ABC):
    """Something that runs handlers: a child process, or this process. The lock of `InFlight` guards it.

    A host begins its messages in their order, and reports the end of one before it begins another. So the oldest
    messages without a report, one for each slot, are those that run.
    """

    def __init__(self) -> None:
        #: The number of handlers that can work at a time.
        self.slots = 0
        #: The seconds in which the host can end one handler alone; `None` if it cannot.
        self.cancel_grace: float | None = None
        #: The number of further messages that the host may get; `None` for any number.
        self.left: int | None = None
        self.running: dict[int, Task] = {}
        self.waiting: dict[int, Task] = {}
        self._newest_key = 0

    @property
    @abstractmethod
    def takes(self) -> bool:
        """True if the host takes further messages."""

    @abstractmethod
    def send(self, tasks: list[Task]) -> None:
        """Hand messages to the handlers. They have keys."""

    @abstractmethod
    def stop(self) -> None:
        """Let the host begin nothing more, and give back what waits."""

    @abstractmethod
    def cancel(self, key: int) -> None:
        """End the handler of a message alone, where `cancel_grace` says that this is possible."""

    @property
    def tasks(self) -> list[Task]:
        """All messages of the host, the oldest first."""
        return [*self.running.values(), *self.waiting.values()]

    def room(self, *, brisk: bool) -> int:
        """Return the number of messages that the host may get now."""
        room = self.slots * (2 if brisk else 1) - len(self.running) - len(self.waiting)
        return max(0, room if self.left is None else min(room, self.left))

    def is_stuck(self, now: float) -> bool:
        """Return True if all slots have had their messages for `BRISK` seconds."""
        if not self.running or len(self.running) < self.slots:
            return False
        return now - (next(reversed(self.running.values())).begun_at or now) >= BRISK

    def take(self, tasks: list[Task]) -> None:
        """Give each message a key, and hand them to the handlers."""
        for task in tasks:
            self._newest_key += 1
            task.key, task.host = self._newest_key, self
            self.waiting[task.key] = task
        if self.left is not None:
            self.left -= len(tasks)
        self.send(tasks)

    def begin(self, now: float) -> list[Task]:
        """Return the messages that have begun, because a slot is free for them."""
        begun = []
        while self.waiting and len(self.running) < self.slots:
            key = next(iter(self.waiting))
            task = self.running[key] = self.waiting.pop(key)
            task.begun_at = now
            begun.append(task)
        return begun

    def remove(self, key: int) -> Task | None:
        """Remove and return the message of a key; `None` if it has none."""
        return self.running.pop(key, None) or self.waiting.pop(key, None)


@dataclass
class InFlight:
    """All messages that are out. Safe to share between threads. `notify_keeper` is called when a settlement waits."""

    counters: Counters
    retries: RetryPolicy
    #: Seconds that a handler may take.
    timeout: float | None = None
    notify_keeper: Callable[[], None] = lambda: None
    chance: Callable[[], float] = random.random
    clock: Callable[[], float] = time.monotonic
    #: Called after each outcome.
    on_change: Callable[[], None] = lambda: None
    hosts: list[Host] = field(default_factory=list)
    lock: threading.RLock = field(default_factory=threading.RLock)
    freed: Wakeup = field(default_factory=Wakeup)
    #: Messages for which no host has room, and the time since which there are any.
    _waiting: deque[Task] = field(default_factory=deque)
    _waits_since: float | None = None
    _mean: float = BRISK
    _is_stopping: bool = False

    # For the fetcher

    def room(self) -> int:
        """Return the number of messages to fetch: for idle slots, and some ahead for fast handlers."""
        with self.lock:
            if self._is_stopping:
                return 0
            takers = [host for host in self.hosts if host.takes]
            room = sum(host.room(brisk=self._is_brisk(host)) for host in takers) - len(self._waiting)
            rounds = max(1.0, min(ROUNDS, AT_HAND / (self._mean + 1e-9)))
            ahead = int(rounds * sum(host.slots for host in takers if self._is_brisk(host)))
            return room + ahead if 2 * (room + ahead) >= ahead else 0

    def give(self, source: QueueSource, deliveries: list[Delivery]) -> None:
        """Hand messages to the hosts."""
        with self.lock:
            self._waiting.extend([Task(source, item) for item in deliveries])
            self.share_out()

    def wait_for_room(self, stop: Interrupt, seconds: float) -> None:
        """Wait until a message may be fetched, for `seconds` at most."""
        self.freed.wait(stop, lambda: 0.0 if self.room() > 0 else seconds)

    @property
    def is_idle(self) -> bool:
        """True if no message is out."""
        with self.lock:
            return not self._waiting and not any(host.running or host.waiting for host in self.hosts)

    @property
    def is_full(self) -> bool:
        """True if each slot has a message."""
        with self.lock:
            return all(len(host.running) >= host.slots for host in self.hosts)

    @property
    def slots(self) -> int:
        """The number of handlers that can work at a time."""
        with self.lock:
            return sum(host.slots for host in self.hosts)

    def running(self) -> list[Task]:
        """Return the messages whose handlers work."""
        with self.lock:
            return [task for host in self.hosts for task in host.running.values()]

    def _is_brisk(self, host: Host) -> bool:
        """Return True if handlers are fast, and not all of those of a host work on slow messages now."""
        return self._mean < BRISK and not host.is_stuck(self.clock())

    def share_out(self) -> None:
        """Hand waiting messages to the hosts with the most room."""
        with self.lock:
            if self._is_stopping:
                self._release_waiting()
                return
            rooms = {host: host.room(brisk=self._is_brisk(host)) for host in self.hosts if host.takes}
            parts = dict[Host, list[Task]]()
            while self._waiting and rooms:
                host = max(rooms, key=rooms.__getitem__)
                if rooms[host] <= 0:
                    break
                parts.setdefault(host, []).append(self._waiting.popleft())
                rooms[host] -= 1
            for host, tasks in parts.items():
                host.take(tasks)
                self._begin(host)
            if not self._waiting:
                self._waits_since = None
            elif parts or self._waits_since is None:
                self._waits_since = self.clock()

    def _begin(self, host: Host) -> None:
        for task in host.begin(self.clock()):
            [age] = task.source.in_queue([task.delivery])
            self.counters.begun(task.source.queue, age)

    def release_stale(self) -> None:
        """Give messages back for which no host had room for `PATIENCE`: another worker may be free."""
        with self.lock:
            if self._waits_since is not None and self.clock() - self._waits_since >= PATIENCE:
                self._release_waiting()

    # Reports of hosts

    def done(self, host: Host, ends: Sequence[tuple[int, float]]) -> None:
        """Handlers have ended well: the key of each message, and the seconds that its handler took."""
        acked: dict[QueueSource, list[tuple[Delivery, float]]] = {}
        with self.lock:
            for key, seconds in ends:
                task = host.remove(key)
                self._begin(host)  # the next one has begun meanwhile, and may have ended, too
                if task is None:
                    continue
                self._measure(seconds)
                if task.settled or task.is_late or task.delivery.settled:
                    self._end(task, ACK, seconds)
                else:
                    acked.setdefault(task.source, []).append((task.delivery, seconds))
                    log_outcome(task.delivery, ACK, seconds)
            for source, items in acked.items():
                self.counters.acked(source.queue, [seconds for _, seconds in items])
                source.finish([item for item, _ in items])
            self._go_on(host)
        self._changed()

    def ended(self, host: Host, key: int, outcome: Outcome | None, seconds: float) -> None:
        """A handler has ended in another way. Without an outcome it has settled the message itself."""
        with self.lock:
            task = host.remove(key)
            if task is None:
                return
            self._measure(seconds)
            self._end(task, outcome, seconds)
            self._go_on(host)
        self._changed()

    def settled(self, host: Host, key: int, outcome: Outcome) -> None:
        """A handler has settled its message itself, and goes on."""
        with self.lock:
            task = host.running.get(key)
            if task is not None and not task.settled:
                task.settled = True
                self._conclude(task, outcome)

    def renewed(self, host: Host, key: int, lease: int) -> None:
        """A handler renews its lease for another length."""
        with self.lock:
            task = host.running.get(key)
        if task is not None:
            task.source.prolong(task.delivery, lease)
            self.notify_keeper()

    def unseen(self, host: Host, keys: Iterable[int]) -> None:
        """A host that has to stop gives back messages that no handler has begun."""
        with self.lock:
            for key in keys:
                task = host.remove(key)
                if task is not None:
                    self._end(task, RELEASE, 0.0)
        self._changed()

    def lost(self, host: Host, reason: str) -> None:
        """A host has ended. Begun messages fail with this reason, and other hosts get the others.

        If one handler had taken too long, the worker has ended the host itself: only that message fails.
        """
        with self.lock:
            if host in self.hosts:
                self.hosts.remove(host)
            is_late = any(task.is_late for task in host.running.values())
            for task in list(host.running.values()):
                del host.running[task.key]
                outcome = RELEASE if is_late and not task.is_late else Outcome("crashed", None, reason)
                self._end(task, outcome, self._age(task))
            self._waiting.extendleft(reversed(host.waiting.values()))
            host.waiting.clear()
            self.share_out()
        self._changed()

    def _go_on(self, host: Host) -> None:
        self._begin(host)
        if self._waiting:
            self.share_out()

    def _changed(self) -> None:
        self.freed.notify()
        self.on_change()

    def _measure(self, seconds: float) -> None:
        self._mean += 0.05 * (seconds - self._mean)

    def _age(self, task: Task) -> float:
        return 0.0 if task.begun_at is None else self.clock() - task.begun_at

    # The end

    def stop(self) -> None:
        """Give back all messages that no handler has begun, and take no further one."""
        with self.lock:
            self._is_stopping = True
            self._release_waiting()
            for host in self.hosts:
                host.stop()

    def give_up(self, reason: str) -> None:
        """Give back all messages. Begun messages count as failed deliveries."""
        with self.lock:
            for host in self.hosts:
                for task in host.tasks:
                    host.remove(task.key)
                    outcome = RELEASE if task.begun_at is None else Outcome("crashed", None, reason)
                    self._end(task, outcome, self._age(task))
            self._release_waiting()

    def _release_waiting(self) -> None:
        self._waits_since = None
        while self._waiting:
            self._conclude(self._waiting.popleft(), RELEASE)

    def _end(self, task: Task, outcome: Outcome | None, seconds: float) -> None:
        """Record the end of a message that has left its host, and settle it unless its handler did."""
        if task.begun_at is not None:
            self.counters.ended(task.source.queue, seconds)
        if outcome is not None and task.is_late:
            outcome = Outcome("timeout", outcome.delay, f"the handler took longer than {self.timeout:g} s")
        if outcome is not None and not task.settled:
            self._conclude(task, outcome, seconds)

    def _conclude(self, task: Task, outcome: Outcome, seconds: float = 0.0) -> None:
        """Settle a message, and count and log its outcome."""
        item = task.delivery
        settle = settlement(outcome, config_of(item).options, item.delivery_count, self.retries, self.chance)
        log_outcome(item, outcome, seconds, settle.delay)
        if item.settled != LOST:  # the source counts those
            self.counters.settled(item.queue, outcome.kind)
        if outcome.kind == "ack":
            task.source.finish([item])
            return
        task.source.settle(item, settle)
        self.notify_keeper()
