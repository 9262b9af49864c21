"""The fetcher: the thread of a worker that claims messages of all queues, and waits for their wake-ups."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial

from rqttl.checks import is_pattern, queue_names
from rqttl.errors import PoolExhausted, QueueNotFound
from rqttl.flows import registry
from rqttl.flows.steps import Read, WaitForWakeup
from rqttl.protocol.commands import BATCH
from rqttl.protocol.keys import WAKEUP
from rqttl.runtime.interrupt import Interrupt
from rqttl.store.exchanges import TEMPORARY, is_away
from rqttl.worker.in_flight import InFlight
from rqttl.worker.queue_source import Sources

logger = logging.getLogger("rqttl.worker")

#: Queues and patterns with their weights; without weights in strict order.
Weights = Mapping[str, int | None]

#: The ms after which a worker without a free slot takes its name off the waiting consumers. A ticket lasts 5 s.
PATIENT_WHILE_FULL = 1_000
#: The ms between two looks at the wake-up lists while other queues have messages.
GLANCE = 50
#: The ms between two looks for new queues that match a pattern, and for a missing queue.
SCAN, MISSING = 15_000, 5_000
#: The longest wait in ms of a worker that ends when nothing is left, or has come.
LOOK = 200
#: The ms between two looks at a queue in which nothing is due, at most. They are spread over the second half.
PERIOD = 240_000
#: The ms of one wait at most. After it the fetcher shows that it lives.
TURN = 10_000
#: The ms within which one claim at least shows that Redis hands out messages.
PROOF = 20_000
#: The bounds in seconds of the pauses while Redis is away: they double.
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
#: The end of the names of dead-letter queues, as all examples of the option `dead_letter` have it.
DEAD = "/dead"


class Fetcher:
    """Claims messages until `stop`, or until nothing is left with `burst`, or nothing came for `idle_exit` ms."""

    def __init__(
        self, sources: Sources, in_flight: InFlight, weights: Weights, burst: bool, idle_exit: int | None
    ) -> None:
        self._sources, self._in_flight = sources, in_flight
        self._driver, self._counters = sources.driver, sources.counters
        self._weights, self._burst, self._idle_exit = weights, burst, idle_exit
        self._patterns = [name for name in weights if is_pattern(name)]
        self._unmatched = set[str]()
        self._queues = Queues()
        self.stop = Interrupt()
        #: The time of the last turn, and of the last answer to a claim, in ms of the clock of this process.
        self.turned_at = self._driver.timing.now()
        self.answered_at: int | None = None
        #: True while Redis does not answer.
        self.is_away = False
        self._pause = FIRST_PAUSE
        self._worked_at = self.turned_at
        self._full_since: int | None = None
        self._glance_at = self._scan_at = 0

    def run(self) -> None:
        """Fetch until the end. Raises errors that no waiting can correct."""
        self._follow()
        while not self.stop.asked():
            self.turned_at = self._driver.timing.now()
            try:
                self._turn(self.turned_at)
            except PoolExhausted:
                raise
            except TEMPORARY as error:
                if not is_away(error):
                    raise
                if not self.is_away:
                    logger.warning("Redis is away (%s); the worker tries again", type(error).__name__)
                self.is_away = True
                longest, self._pause = self._pause * 1000, min(2 * self._pause, LONGEST_PAUSE)
                # no secret: workers must not come back together
                self._driver.timing.pause(self.stop, partial(random.uniform, 0, longest))
        self._sources.takes_acks = False
        try:
            self._pass_on()
            self._withdraw()
        except TEMPORARY as error:
            logger.info("the worker left its queues while Redis was away: %s", error)

    def _turn(self, now: int) -> None:
        if self._patterns and now >= self._scan_at:
            self._follow()
        room, ticketed = self._in_flight.room(), self._queues.ticketed
        if room < 1 and not ticketed:
            self._wait_while_full(now)
            return
        self._full_since = None
        if self._queues.noted and now >= self._glance_at and self._queues.candidates(now):
            self._glance_at = now + GLANCE
            for name in self._with_wakeup(self._queues.noted):
                self._queues[name].until, self._queues[name].is_hinted = None, True
        chosen = ticketed[0] if ticketed else self._queues.next(now)
        if chosen is not None:
            self._claim(chosen, max(1, min(room, BATCH)), now)
        elif self._is_over(now):
            self.stop.ask()
        elif not self._queues.candidates(now):  # messages that came back make their queue one
            self._wait(now)

    def _claim(self, name: str, count: int, now: int) -> None:
        """Claim messages of one queue, and hand them out.

        After a glance that has shown a wake-up, the claim does not wait: such a claim takes tickets from the list.
        """
        queue, longest = self._queues[name], random.randint(PERIOD // 2, PERIOD)
        block = 0 if queue.is_hinted else longest
        ticket, queue.ticket, queue.is_hinted = queue.ticket or b"", None, False
        try:
            deliveries, due = self._sources[name].claim(count, block, ticket)
        except QueueNotFound:
            if not queue.is_missing:
                logger.warning("queue %s does not exist any more; the worker looks for it again", name)
            queue.is_missing, queue.until, queue.is_noted = True, now + MISSING, False
            return
        except TEMPORARY:
            queue.until, queue.ticket = None, ticket  # it may still be good when Redis is back
            raise
        self.answered_at = now
        self._counters.last_claim = time.time()
        self._pause = FIRST_PAUSE
        if self.is_away:
            self.is_away = False
            self._counters.reconnects += 1
            logger.info("Redis answers again")
        queue.progress += len(deliveries) / (queue.weight or 1)
        queue.until, queue.is_missing = None, False
        if deliveries:
            self._worked_at = now
            self._in_flight.give(self._sources[name], deliveries)
        if due is not None and block:
            queue.until, queue.is_noted = now + min(longest, due), True

    # Waiting

    def _wait(self, now: int) -> None:
        noted = self._queues.noted
        if self.answered_at is not None and now - self.answered_at >= PROOF:
            self._queues.suspect()
            return
        ms = self._queues.wait(now)
        if self._burst or self._idle_exit is not None:
            ms = min(ms, LOOK)
        if not noted:
            self._driver.timing.pause(self.stop, lambda: ms)
            return
        self._sources.takes_acks = False  # before the look, so no ack is left that nobody sends
        acking = [queue for queue in noted if self._sources[queue].has_acks]
        exact = any(self._sources[queue].is_paced for queue in noted)
        step = WaitForWakeup(noted, ms, ms, interrupt=self.stop, exact=exact)
        reply = None if acking else self._driver.step(step)
        self._sources.takes_acks = True
        for name in acking:
            self._queues[name].until = None
        if acking:
            return
        self._glance_at = self._driver.timing.now() + GLANCE  # the wait has looked at all lists
        if isinstance(reply, PoolExhausted):
            raise reply
        if isinstance(reply, tuple):
            self._queues.woken(*reply)
        elif self._driver.timing.now() - now < ms // 2 and not self.stop.asked():
            self._queues.suspect()  # the connection was lost: a claim shows if Redis answers

    def _wait_while_full(self, now: int) -> None:
        """Wait for a free slot. A worker that stays full waits for no message any more."""
        if self._full_since is None:
            self._full_since = now
        if now - self._full_since >= PATIENT_WHILE_FULL and self._queues.noted:
            self._withdraw()
        self._pass_on()
        flight, seconds = self._in_flight, PATIENT_WHILE_FULL / 1000
        flight.freed.wait(self.stop, lambda: 0.0 if flight.room() > 0 else seconds)

    def _pass_on(self) -> None:
        """Leave the queues whose hints this worker has and cannot use. That wakes the next consumer of each."""
        for name, queue in self._queues.items():
            if queue.ticket == b"":  # no other consumer is woken by it, and there was no claim since then
                self._sources[name].withdraw()
                queue.ticket = None

    def _with_wakeup(self, queues: list[str]) -> list[str]:
        look = Read([("LLEN", self._driver.keyspace.key(queue, WAKEUP)) for queue in queues])
        with self._sources.lock:
            lengths = self._driver.step(look) if queues else []
        return [queue for queue, length in zip(queues, lengths, strict=True) if length]

    def _withdraw(self) -> None:
        """Wait in no queue any more. Take the messages that were handed to this worker meanwhile."""
        noted = self._queues.noted
        for name in noted:
            self._sources[name].withdraw()
            self._queues[name].until = None
        for name in dict.fromkeys([*self._queues.ticketed, *self._with_wakeup(noted)]):
            source, queue = self._sources[name], self._queues[name]
            ticket, queue.ticket = queue.ticket or b"", None
            try:
                deliveries, _ = source.claim(1, 0, ticket)
            except QueueNotFound:
                continue  # a claim of the next turn tells it
            self._in_flight.give(source, deliveries)

    # The end, and new queues

    def _is_over(self, now: int) -> bool:
        if not self._in_flight.is_idle:
            self._worked_at = now
            return False
        returned = [queue for queue in self._queues if self._sources[queue].has_returned()]
        for name in returned:
            self._queues[name].until = None
        is_idle = self._idle_exit is not None and now - self._worked_at >= self._idle_exit
        return not returned and (self._burst or is_idle)

    def _follow(self) -> None:
        """Take the queues of this moment. Forget the sources and counters of others, unless messages are at work."""
        weights = dict(self._weights)
        if self._patterns:
            with self._sources.lock:
                existing = queue_names(self._driver.perform(registry.members(self._driver.keyspace)))
            for name in self._patterns:
                if name not in self._unmatched and not any(matches(name, queue) for queue in existing):
                    self._unmatched.add(name)
                    logger.warning("no queue matches %s; the worker looks again every %d s", name, SCAN // 1000)
            living = {*existing, *weights}
            for queue in [queue for queue, source in self._sources.items() if not source.has_work]:
                if queue not in living:
                    del self._sources[queue]
            self._counters.keep(living | self._sources.keys())
            weights = selected(weights, existing)
        self._scan_at = self._driver.timing.now() + SCAN
        for queue in set(self._queues.noted) - set(weights):
            self._sources[queue].withdraw()
        self._queues.follow(weights)


@dataclass(slots=True)
class _Queue:
    """A queue: its weight, and the messages that were fetched divided by it.

    It may have messages, unless a claim has met none: then it waits `until` a time, and if `is_noted` as a consumer
    that Redis wakes. `ticket` is an element of its wake-up list: a ticket, or a hint (empty), or `None`. `is_hinted`:
    a glance has shown a wake-up.
    """

    weight: int | None = None
    progress: float = 0.0
    until: float | None = None
    is_noted: bool = False
    is_missing: bool = False
    ticket: bytes | None = None
    is_hinted: bool = False


class Queues(dict[str, _Queue]):
    """The queues of a worker: which may have messages, and which comes next. No I/O and no clock.

    Without weights the first candidate is next. With weights a queue gets a share of the fetched messages in
    proportion to its weight. A queue without messages costs the others nothing, and saves no turns.
    """

    #: The progress of the queue that came last: others begin there, however long they had no messages.
    _least = 0.0

    @property
    def noted(self) -> list[str]:
        """The queues in which the worker is noted as waiting."""
        return [name for name, queue in self.items() if queue.until is not None and queue.is_noted]

    @property
    def ticketed(self) -> list[str]:
        """The queues for which a ticket waits to be shown."""
        return [name for name, queue in self.items() if queue.ticket]

    def candidates(self, now: float) -> list[str]:
        """Return the queues that may have messages."""
        return [name for name, queue in self.items() if queue.until is None or queue.until <= now]

    def follow(self, weights: Weights) -> None:
        """Take these queues in the place of the former ones. Queues that stay keep their progress."""
        queues = {name: self.get(name) or _Queue() for name in weights}
        self.clear()
        self.update(queues)
        for name, weight in weights.items():
            self[name].weight = weight

    def next(self, now: float) -> str | None:
        """Return the next queue; `None` without candidates."""
        names = self.candidates(now)
        if not names or self[names[0]].weight is None:
            return names[0] if names else None
        for name in names:
            self[name].progress = max(self[name].progress, self._least)
        chosen = min(names, key=lambda name: self[name].progress)
        self._least = self[chosen].progress
        return chosen

    def woken(self, name: str, element: bytes) -> None:
        """Record an element of the wake-up list of a queue: a hint (empty) or a ticket."""
        if name in self:
            self[name].until, self[name].ticket = None, element

    def suspect(self) -> None:
        """Make the queue a candidate that was asked longest ago."""
        waiting = {name: queue.until for name, queue in self.items() if queue.until is not None}
        if waiting:
            self[min(waiting, key=waiting.__getitem__)].until = None

    def wait(self, now: float) -> int:
        """Return the ms to wait for a wake-up."""
        ends = [queue.until - now for queue in self.values() if queue.until is not None]
        return max(1, int(min([TURN, *ends])))


def selected(weights: Weights, existing: Iterable[str]) -> dict[str, int | None]:
    """Return the queues that names and patterns select, with their weights.

    A name selects its queue even if none exists, and stands before a pattern that matches it.
    """
    queues: dict[str, int | None] = {}
    others = [queue for queue in existing if queue not in weights]
    for name, weight in weights.items():
        for queue in [queue for queue in others if matches(name, queue)] if is_pattern(name) else [name]:
            queues.setdefault(queue, weight)
    return queues


def matches(pattern: str, queue: str) -> bool:
    """Return True if a pattern takes a queue. `w.*` leaves `w.a/dead` alone: no worker eats its own dead letters."""
    return fnmatchcase(queue, pattern) and (pattern.endswith(DEAD) or not queue.endswith(DEAD))
