"""The fetcher: the thread of a worker that claims messages of all queues, and waits for their wake-ups."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from fnmatch import fnmatchcase

from rqttl.checks import is_pattern, queue_names
from rqttl.consuming.several import Queues, Weights, with_wakeup
from rqttl.errors import PoolExhausted, QueueNotFound
from rqttl.flows import reading, registry
from rqttl.flows.steps import WaitForWakeup
from rqttl.outages import TEMPORARY, is_away
from rqttl.protocol.commands import BATCH
from rqttl.runtime.interrupt import Interrupt
from rqttl.worker.in_flight import InFlight
from rqttl.worker.queue_source import Sources

logger = logging.getLogger("rqttl.worker")

#: The ms after which a worker without a free slot takes its name off the waiting consumers. A ticket lasts 5 s.
PATIENT_WHILE_FULL = 1_000
#: The ms between two looks at the wake-up lists while other queues have messages.
GLANCE = 50
#: The ms between two looks for new queues that match a pattern.
SCAN = 15_000
#: The longest wait in ms of a worker that ends when nothing is left, or has come.
LOOK = 200
#: The ms of one wait at most. After it the fetcher shows that it lives.
TURN = 10_000
#: The ms within which one claim at least shows that Redis hands out messages.
PROOF = 20_000
#: The ms for which a worker that ends by itself waits for a node that is away.
GIVE_UP = 30_000
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
        self._ends = burst or idle_exit is not None
        self._patterns = [name for name in weights if is_pattern(name)]
        self._unmatched = set[str]()
        self._queues = Queues()
        self._queues.follow(selected(weights, ()))  # a turn takes those that match patterns
        self._slot_waits = self._driver.store.slot_waits()
        self.stop = Interrupt()
        #: The time of the last turn, and of the last answer to a claim, in ms of the clock of this process.
        self.turned_at = self._driver.timing.now()
        self.answered_at: int | None = None
        self._error: Exception | None = None
        self._worked_at = self.turned_at
        self._full_since: int | None = None
        self._glance_at = self._scan_at = self._rests_until = 0

    def miss(self, errors: Iterable[QueueNotFound]) -> None:
        """Look for the queues of these errors later, as after a claim that raises one."""
        for error in errors:
            self._queues.miss(error, self.turned_at, logger)

    def run(self) -> None:
        """Fetch until the end. Raises errors that no waiting can correct."""
        while not self.stop.asked():
            self.turned_at = self._driver.timing.now()
            try:
                self._turn(self.turned_at)
            except PoolExhausted:
                raise
            except TEMPORARY as error:
                if not is_away(error):
                    raise
                self._let_rest(error)
        self._sources.takes_acks = False
        try:
            self._withdraw()
            self._pass_on()
        except TEMPORARY as error:
            logger.info("the worker left its queues while Redis was away: %s", error)
        if self._error is not None:
            raise self._error

    def _let_rest(self, error: Exception) -> None:
        """Leave the queues of a node that is away alone for a while."""
        node = self._sources.asked
        self._sources.outages.failed(node, error)
        until = self._driver.timing.now() + int(self._sources.outages.rests(node)) + 1
        self._rests_until = max(self._rests_until, until)
        if node == self._sources.shared:
            self._scan_at = max(self._scan_at, until)
        for queue in [queue for name, queue in self._queues.items() if self._driver.node_of(name) == node]:
            queue.until, queue.ticket, queue.is_awaited = until, queue.ticket or None, False

    def _turn(self, now: int) -> None:
        if self._patterns and now >= self._scan_at:
            self._follow()
        room, ticketed = self._in_flight.room(), self._queues.ticketed
        if room < 1 and not ticketed:
            self._wait_while_full(now)
            return
        self._full_since = None
        if self._queues.awaited and now >= self._glance_at and self._queues.candidates(now):
            self._glance_at = now + GLANCE
            self._wake(self._driver.keyspace.woken(self._slot_waits.collect()))
            self._queues.hint(self._with_wakeup(self._queues.awaited))
        chosen = ticketed[0] if ticketed else self._queues.next(now)
        if chosen is not None:
            self._claim(chosen, max(1, min(room, BATCH)), now)
        elif self._is_over(now):
            self.stop.ask()
            for held in self._driver.perform(reading.held_back(self._driver.keyspace, list(self._queues))):
                logger.info("the worker ends: %s", held)
        elif not self._queues.candidates(now):  # messages that came back make their queue one
            self._wait(now)

    def _claim(self, name: str, count: int, now: int) -> None:
        """Claim messages of one queue, and hand them out.

        After a glance that has shown a wake-up, the claim does not wait: such a claim takes tickets from the list.
        """
        block, ticket = self._queues.ask(name)
        try:
            deliveries, due = self._sources[name].claim(count, block, ticket)
        except QueueNotFound as error:
            self._sources.answered(self._sources.asked)
            self._queues.miss(error, now, logger)
            return
        except TEMPORARY:
            self._queues.woken(name, ticket)  # it may still be good when Redis is back
            raise
        self.answered_at = now
        self._counters.last_claim = time.time()
        if self._sources.outages:
            self._sources.answered(self._sources.asked)
        self._queues.answered(name, len(deliveries), due, block, now)
        if deliveries:
            self._worked_at = now
            self._in_flight.give(self._sources[name], deliveries)

    # Waiting

    def _wait(self, now: int) -> None:
        awaited = self._queues.awaited
        if awaited and self.answered_at is not None and now - self.answered_at >= PROOF:
            self._queues.suspect()
            return
        ms = self._queues.wait(now, LOOK if self._ends else TURN)
        if not awaited:
            self._driver.timing.pause(self.stop, lambda: ms if self._queues else min(ms, max(1, self._scan_at - now)))
            return
        self._sources.takes_acks = False  # before the look, so no ack is left that nobody sends
        acking = [queue for queue in awaited if self._sources[queue].has_acks]
        exact = any(self._sources[queue].is_paced for queue in awaited)
        step = WaitForWakeup(awaited, ms, ms, interrupt=self.stop, exact=exact, slot_waits=self._slot_waits)
        reply = None if acking else self._driver.step(step)
        self._sources.takes_acks = True
        for name in acking:
            self._queues[name].until = None
        if acking:
            return
        self._glance_at = self._driver.timing.now() + GLANCE  # the wait has looked at all lists
        if isinstance(reply, PoolExhausted):
            raise reply
        if isinstance(reply, tuple | list):
            self._wake([reply] if isinstance(reply, tuple) else reply)
        elif self._driver.timing.now() - now < ms // 2 and not self.stop.asked():
            self._queues.suspect()  # the connection was lost: a claim shows if Redis answers

    def _wait_while_full(self, now: int) -> None:
        """Wait for a free slot. A worker that stays full waits for no message any more."""
        if self._full_since is None:
            self._full_since = now
        if now - self._full_since >= PATIENT_WHILE_FULL and self._queues.awaited:
            self._withdraw()
        self._wake(self._driver.keyspace.woken(self._slot_waits.collect()))
        self._pass_on()
        flight, seconds = self._in_flight, (GLANCE if self._slot_waits else PATIENT_WHILE_FULL) / 1000
        flight.freed.wait(self.stop, lambda: 0.0 if flight.room() > 0 else seconds)

    def _wake(self, elements: Iterable[tuple[str, bytes | None]]) -> None:
        for name, element in elements:
            self._queues.woken(name, element or b"")

    def _pass_on(self) -> None:
        """Leave the queues whose hints this worker has and cannot use. That wakes the next consumer of each."""
        for name, queue in self._queues.items():
            if queue.ticket == b"":  # no other consumer is woken by it, and there was no claim since then
                self._sources[name].withdraw()
                queue.ticket = None

    def _with_wakeup(self, queues: list[str]) -> list[str]:
        found: list[str] = []
        for node in dict.fromkeys(map(self._driver.node_of, queues)):
            here = [queue for queue in queues if self._driver.node_of(queue) == node]
            self._sources.asked = node
            with self._sources.locks[node]:
                found += self._driver.perform(with_wakeup(self._driver.keyspace, here))
        return found

    def _withdraw(self) -> None:
        """Wait in no queue any more. Take the messages that were handed to this worker meanwhile."""
        awaited = self._queues.awaited
        self._wake(self._driver.keyspace.woken(self._slot_waits.end()))
        woken = {*self._queues.ticketed, *self._with_wakeup(awaited)}
        for name in dict.fromkeys([*awaited, *woken]):
            source, queue = self._sources[name], self._queues[name]
            ticket, queue.ticket, queue.until = queue.ticket or b"", None, None
            if name not in woken:
                source.withdraw()
                continue
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
            if not self._sources.outages.rests(self._driver.node_of(name)):
                self._queues[name].until = None
        if returned or now < self._rests_until:  # the queues that rest are asked again
            for outage in list(self._sources.outages.values()):
                if self._ends and now - outage.since >= GIVE_UP:
                    self._error = outage.error
                    self.stop.ask()
            return False
        is_idle = self._idle_exit is not None and now - self._worked_at >= self._idle_exit
        return self._burst or is_idle

    def _follow(self) -> None:
        """Take the queues of this moment. Forget the sources and counters of others, unless messages are at work."""
        weights = dict(self._weights)
        if self._patterns:
            self._sources.asked = shared = self._sources.shared
            with self._sources.locks[shared]:
                existing = queue_names(self._driver.perform(registry.members(self._driver.keyspace)))
            if shared not in map(self._driver.node_of, self._queues):
                self._sources.answered(shared)
            for name in self._patterns:
                if name not in self._unmatched and not any(matches(name, queue) for queue in existing):
                    self._unmatched.add(name)
                    logger.warning("no queue matches %s; looking again every %d s", name, SCAN // 1000)
            living = {*existing, *weights}
            for queue in [queue for queue, source in self._sources.items() if not source.has_work]:
                if queue not in living:
                    del self._sources[queue]
            self._counters.keep(living | self._sources.keys())
            weights = selected(weights, existing)
        self._scan_at = self._driver.timing.now() + SCAN
        for queue in set(self._queues.awaited) - set(weights):
            self._sources[queue].withdraw()
        self._queues.follow(weights)


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
