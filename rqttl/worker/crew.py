"""The crew: the messages that are out, the places whose handlers have them, and the outcome of each."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from rqttl.delivery import LOST, Delivery, config_of
from rqttl.runtime.interrupt import Interrupt, Wakeup
from rqttl.worker.counters import Counters
from rqttl.worker.lines import log_outcome
from rqttl.worker.outcomes import ACK, RELEASE, Outcome, RetryPolicy, settlement
from rqttl.worker.pace import AT_HAND, Pace
from rqttl.worker.places import Place, Task
from rqttl.worker.source import Source
from rqttl.worker.supervision import Deadline

logger = logging.getLogger("rqttl.worker")

#: Seconds for which messages that slow handlers have left wait for another place, before the queue gets them back.
PATIENCE = 1.0


@dataclass
class Crew:
    """All places of a worker. Safe to share between threads.

    `notify_keeper` is called when a settlement waits.
    """

    counters: Counters
    pace: Pace
    retries: RetryPolicy
    timeout: float | None = None
    notify_keeper: Callable[[], None] = lambda: None
    chance: Callable[[], float] = random.random
    clock: Callable[[], float] = time.monotonic
    #: Called after each outcome.
    on_change: Callable[[], None] = lambda: None
    #: Called when a look at the boards becomes due soon. See `look`.
    on_watch: Callable[[], None] = lambda: None
    places: list[Place] = field(default_factory=list)
    lock: threading.RLock = field(default_factory=threading.RLock)
    freed: Wakeup = field(default_factory=Wakeup)
    #: True if a look at the boards may show something new.
    is_watching: bool = False
    _backlog: deque[Task] = field(default_factory=deque)
    _deadlines: dict[Task, Deadline] = field(default_factory=dict)
    _waits_since: float | None = None
    _is_stopping: bool = False

    # For the fetcher

    def room(self) -> int:
        """See `Hands`. Places with several messages for each slot get further ones when half of them are done."""
        with self.lock:
            if self._is_stopping:
                return 0
            rooms = self._rooms()
            room = sum(rooms.values()) - len(self._backlog)
            is_idle = any(len(place.tasks) < place.slots for place in rooms)
            return room if is_idle or 2 * room >= sum(map(self._depth, rooms)) else 0

    @property
    def is_full(self) -> bool:
        """True if each slot has a message."""
        with self.lock:
            return sum(place.slots for place in self.places) <= self._number_out()

    def give(self, source: Source, deliveries: list[Delivery]) -> None:
        """See `Hands`."""
        with self.lock:
            self._backlog.extend([Task(source, item) for item in deliveries])
            self.share_out()

    def wait_for_room(self, stop: Interrupt, seconds: float) -> None:
        """See `Hands`."""
        self.freed.wait(stop, lambda: 0.0 if self.room() > 0 else seconds)

    @property
    def is_idle(self) -> bool:
        """See `Hands`."""
        with self.lock:
            return self._number_out() == 0

    @property
    def slots(self) -> int:
        """The number of handlers that can work at a time."""
        with self.lock:
            return sum(place.slots for place in self.places)

    def running(self) -> list[Task]:
        """Return the messages whose handlers work, as the last look at the boards has shown them."""
        with self.lock:
            return [task for place in self.places for task in place.tasks.values() if task.begun_at is not None]

    def deadlines(self) -> list[tuple[Task, Deadline]]:
        """Return the messages whose handlers work, with their time limits."""
        with self.lock:
            return list(self._deadlines.items())

    def share_out(self) -> None:
        """Hand waiting messages to the places with the most room."""
        with self.lock:
            if self._is_stopping:
                self._release_backlog()
                return
            rooms, parts = self._rooms(), dict[Place, list[Task]]()
            while self._backlog and rooms:
                place = max(rooms, key=rooms.__getitem__)
                if rooms[place] <= 0:
                    break
                number = max(1, min(rooms[place], len(self._backlog)) // (2 * len(rooms)))
                parts.setdefault(place, []).extend([self._backlog.popleft() for _ in range(number)])
                rooms[place] -= number
            if not self._backlog:
                self._waits_since = None
            elif self._waits_since is None:
                self._waits_since = self.clock()
            for place, tasks in parts.items():
                place.take(tasks)
            if parts:
                self.watch()

    def watch(self) -> None:
        """Let the main thread look at the boards soon: messages may begin and end there without a report."""
        if not self.is_watching:
            self.is_watching = True
            self.on_watch()

    def _rooms(self) -> dict[Place, int]:
        return {place: max(0, self._depth(place) - len(place.tasks)) for place in self.places if place.takes}

    def _depth(self, place: Place) -> int:
        return place.slots if place.is_stuck else self.pace.depth(place.slots)

    def _number_out(self) -> int:
        return len(self._backlog) + sum(len(place.tasks) for place in self.places)

    # Reports of places

    def look(self) -> None:
        """Look at the boards for messages that have begun or ended without a report, and for slow handlers.

        Messages behind slow handlers come back, unless the user has given `prefetch`. See `unseen`.
        """
        with self.lock:
            now, is_watching = self.clock(), False
            for place in list(self.places):
                is_watching |= self._look_at(place)
                begun = place.begins()
                if len(place.tasks) > len(begun) and not place.is_stuck:
                    is_watching |= len(begun) < place.slots or not self.pace.is_fixed
                    if begun and now - max(begun) >= AT_HAND and not self.pace.is_fixed:
                        place.is_stuck = True
                        place.recall()
            self.is_watching = is_watching
            if self._waits_since is not None and now - self._waits_since >= PATIENCE:
                self._release_backlog()

    def _look_at(self, place: Place) -> bool:
        """Record all that the board of a place shows. Returns True if something was new."""
        number = self.collect(place, place.tasks)
        begun = [task for task in place.tasks.values() if self._note_begin(task)]
        return number > 0 or bool(begun)

    def collect(self, place: Place, keys: Iterable[int]) -> int:
        """Handlers of a place have ended these messages well, as the board shows. Returns their number."""
        with self.lock:
            groups: dict[Source, list[tuple[Task, float, float]]] = {}
            for end in place.ended(keys):
                groups.setdefault(end[0].source, []).append(end)
            if not groups:
                return 0
            place.is_stuck = False
            for source, ends in groups.items():
                self._succeeded(place, source, ends)
            if self._backlog:
                self.share_out()
            self.watch()
        self.freed.notify()
        self.on_change()
        return sum(map(len, groups.values()))

    def _succeeded(self, place: Place, source: Source, ends: list[tuple[Task, float, float]]) -> None:
        """Remove messages that ended well, and ack them."""
        unusual = {task for task, _, _ in ends if task.settled or task.deadline or task.delivery.settled}
        for task in unusual:
            self.done(place, task.key, ACK)
        if unusual:
            ends = [end for end in ends if end[0] not in unusual]
        if not ends:
            return
        acked = [task.delivery for task, _, _ in ends]
        handling = [ended - began for _, began, ended in ends]
        now, ages = self.clock(), zip(ends, source.in_queue(acked), strict=True)
        waiting = [max(0.0, age - (now - began)) for (task, began, _), age in ages if task.begun_at is None]
        for task, _, _ in ends:
            del place.tasks[task.key]
        self.pace.measured(sum(handling), len(acked))
        self.counters.acked(source.queue, handling, waiting)
        source.finish(acked)
        if logger.isEnabledFor(logging.DEBUG):
            for item, seconds in zip(acked, handling, strict=True):
                log_outcome(item, ACK, seconds)

    def _note_begin(self, task: Task) -> bool:
        """Record the begin of a message, as the board of its place shows it. Returns True if it is new."""
        if task.begun_at is not None or task.place is None:
            return False
        task.begun_at = task.place.begin_of(task.key)
        if task.begun_at is None:
            return False
        if self.timeout is not None:
            task.deadline = self._deadlines[task] = Deadline(task.begun_at + self.timeout, task.place.cancel_grace)
        [age] = task.source.in_queue([task.delivery])
        self.counters.begun(task.source.queue, age - (self.clock() - task.begun_at))
        return True

    def settled(self, place: Place, key: int, outcome: Outcome) -> None:
        """A handler has settled its message itself, and goes on."""
        with self.lock:
            task = place.tasks.get(key)
            if task is None or task.settled:
                return
            task.settled = True
            self._note_begin(task)
            self._conclude(task, outcome)

    def done(self, place: Place, key: int, outcome: Outcome | None) -> None:
        """A handler has ended. Without an outcome it has settled the message itself."""
        with self.lock:
            task = place.tasks.get(key)
            if task is None:
                return
            place.is_stuck = False
            self._remove(task)
            if outcome is not None and task.deadline is not None and task.deadline.reached is not None:
                outcome = self._timed_out(outcome)
            if outcome is not None and not task.settled:
                self._conclude(task, outcome)
            if self._backlog:
                self.share_out()
            self.watch()
        self.freed.notify()
        self.on_change()

    def unseen(self, place: Place, keys: Iterable[int]) -> None:
        """A place gives back messages that no handler has begun. Other places get them.

        After `PATIENCE` the queue gets the messages for which no place has room: another worker may be free.
        """
        with self.lock:
            back = [place.tasks.pop(key) for key in keys if key in place.tasks]
            self._backlog.extendleft(reversed(back))
            self.share_out()
        self.freed.notify()
        self.on_change()

    def renewed(self, place: Place, key: int, lease: int) -> None:
        """A handler renews its lease for another length."""
        with self.lock:
            task = place.tasks.get(key)
        if task is not None:
            task.source.prolong(task.delivery, lease)
            self.notify_keeper()

    def lost(self, place: Place, reason: str) -> None:
        """A place has ended. Begun messages fail with this reason, and other places get the others.

        If one handler had taken too long, the worker has ended the place itself: only that message fails.
        """
        with self.lock:
            if place in self.places:
                self.places.remove(place)
            self._look_at(place)
            tasks = list(place.tasks.values())
            late = any(task.deadline is not None and task.deadline.reached is not None for task in tasks)
            for task in tasks:
                if task.begun_at is None:
                    continue
                self._remove(task)
                if task.settled:
                    continue
                if task.deadline is not None and task.deadline.reached is not None:
                    self._conclude(task, self._timed_out(Outcome("timeout")))
                else:
                    self._conclude(task, RELEASE if late else Outcome("crashed", None, reason))
            self.unseen(place, list(place.tasks))

    # The end

    def stop(self) -> None:
        """Give back all messages that no handler has begun, and take no further one."""
        with self.lock:
            self._is_stopping = True
            self._release_backlog()
            for place in self.places:
                place.recall()

    def give_up(self, reason: str) -> None:
        """Give back all messages. Begun messages count as failed deliveries."""
        with self.lock:
            for place in self.places:
                self._look_at(place)
                for task in list(place.tasks.values()):
                    self._remove(task)
                    if not task.settled:
                        self._conclude(task, RELEASE if task.begun_at is None else Outcome("crashed", None, reason))
            self._release_backlog()

    def _release_backlog(self) -> None:
        self._waits_since = None
        while self._backlog:
            self._conclude(self._backlog.popleft(), RELEASE)

    def _remove(self, task: Task) -> None:
        """Take a message from its place."""
        if task.place is None:
            return
        del task.place.tasks[task.key]
        self._note_begin(task)
        self._deadlines.pop(task, None)
        if task.begun_at is not None:
            seconds = (task.place.end_of(task.key) or self.clock()) - task.begun_at
            self.pace.measured(seconds)
            self.counters.ended(task.source.queue, seconds)

    def _timed_out(self, outcome: Outcome) -> Outcome:
        return Outcome("timeout", outcome.delay, f"the handler took longer than {self.timeout:g} s")

    def _conclude(self, task: Task, outcome: Outcome) -> None:
        """Settle a message, and count and log its outcome."""
        item = task.delivery
        seconds = 0.0 if task.begun_at is None else self.clock() - task.begun_at
        settle = settlement(outcome, config_of(item).options, item.delivery_count, self.retries, self.chance)
        log_outcome(item, outcome, seconds, settle.delay)
        if item.settled != LOST:  # the source counts those
            self.counters.settled(item.queue, outcome.kind)
        if outcome.kind == "ack":
            task.source.finish([item])
            return
        task.source.settle(item, settle)
        self.notify_keeper()
