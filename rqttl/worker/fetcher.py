"""The fetcher: the thread of a worker that claims messages of all queues, and waits for their wake-ups."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Hashable, Iterable
from fnmatch import fnmatchcase
from functools import partial

from rqttl.checks import is_pattern, queue_names
from rqttl.consuming.several import Queues, Weights, with_wakeup
from rqttl.errors import PoolExhausted, QueueNotFound
from rqttl.flows import reading, registry
from rqttl.flows.steps import WaitForWakeup
from rqttl.outages import TEMPORARY, is_away, outage
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
#: The bounds in seconds of the pauses while Redis is away: they double.
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
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
        self._patterns = [name for name in weights if is_pattern(name)]
        self._unmatched = set[str]()
        self._queues = Queues()
        self._slot_waits = self._driver.store.slot_waits()
        self.stop = Interrupt()
        #: The time of the last turn, and of the last answer to a claim, in ms of the clock of this process.
        self.turned_at = self._driver.timing.now()
        self.answered_at: int | None = None
        #: True while no node answers.
        self.is_away = False
        #: Of each node that is away: its longest pause in seconds, the time of its first error, and the last error.
        self._pauses: dict[Hashable, tuple[float, int, Exception]] = {}
        self._error: Exception | None = None
        self._worked_at = self.turned_at
        self._full_since: int | None = None
        self._glance_at = self._scan_at = 0

    def run(self) -> None:
        """Fetch until the end. Raises errors that no waiting can correct."""
        self._queues.follow(selected(self._weights, ()))  # a turn takes those that match patterns
        while not self.stop.asked():
            self.turned_at = self._driver.timing.now()
            try:
                self._turn(self.turned_at)
            except PoolExhausted:
                raise
            except TEMPORARY as error:
                if not is_away(error):
                    raise
                self._pause(error)
        self._sources.takes_acks = False
        try:
            self._withdraw()
            self._pass_on()
        except TEMPORARY as error:
            logger.info("the worker left its queues while Redis was away: %s", error)
        if self._error is not None:
            raise self._error

    @property
    def away(self) -> list[Hashable]:
        """The nodes that have answered no claim since the last failed one."""
        return list(self._pauses)

    def _nodes(self) -> set[Hashable]:
        return {self._driver.node_of(name) for name in self._queues}

    def _pause(self, error: Exception) -> None:
        """Leave the queues of a node that is away alone for a while. Without others the worker waits."""
        node, others = self._sources.asked, self._nodes() - {self._sources.asked}
        if node not in self._pauses:
            logger.warning("%s", outage(self._driver.name_of(node), error))
        here, now = self._driver.store.topology.nodes, self._driver.timing.now()
        self._pauses = {other: pause for other, pause in self._pauses.items() if other in here}
        longest, since, _ = self._pauses.get(node, (FIRST_PAUSE / 2, now, error))
        longest = min(2 * longest, LONGEST_PAUSE)
        self._pauses[node] = longest, since, error
        pause = partial(random.uniform, 0, longest * 1000)  # no secret: workers must not come back together
        self.is_away = self._pauses.keys() >= others
        if not others:
            if (self._burst or self._idle_exit is not None) and self._in_flight.is_idle:
                self._give_up(now)
            self._driver.timing.pause(self.stop, pause)
            return
        until = now + int(pause())
        if node == self._sources.shared:
            self._scan_at = max(self._scan_at, until)
        for queue in [queue for name, queue in self._queues.items() if self._driver.node_of(name) == node]:
            queue.until, queue.ticket, queue.is_awaited = until, None, False

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
        except QueueNotFound:
            self._pauses.pop(self._sources.asked, None)
            self._queues.miss(name, now, logger)
            return
        except TEMPORARY:
            self._queues.woken(name, ticket)  # it may still be good when Redis is back
            raise
        self.answered_at = now
        self._counters.last_claim = time.time()
        if self._pauses.pop(self._sources.asked, None) or self.is_away:
            self.is_away = False
            self._counters.reconnects += 1
            logger.info("%s answers again", self._driver.name_of(self._sources.asked))
        self._queues.answered(name, len(deliveries), due, block, now)
        if deliveries:
            self._worked_at = now
            self._in_flight.give(self._sources[name], deliveries)

    # Waiting

    def _wait(self, now: int) -> None:
        awaited = self._queues.awaited
        if self.answered_at is not None and now - self.answered_at >= PROOF:
            self._queues.suspect()
            return
        ms = self._queues.wait(now, TURN)
        if self._burst or self._idle_exit is not None:
            ms = min(ms, LOOK)
        if not awaited:
            self._driver.timing.pause(self.stop, lambda: ms)
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
            self._queues[name].until = None
        is_idle = self._idle_exit is not None and now - self._worked_at >= self._idle_exit
        if returned or not (self._burst or is_idle):
            return False
        needed = self._nodes() | ({self._sources.shared} if self._patterns else set())
        if not self._pauses.keys() & needed:
            return True
        self._give_up(now)
        return False

    def _give_up(self, now: int) -> None:
        """End with the error of a node that has been away for too long."""
        for _, since, error in self._pauses.values():
            if now - since >= GIVE_UP:
                self._error = error
                self.stop.ask()

    def _follow(self) -> None:
        """Take the queues of this moment. Forget the sources and counters of others, unless messages are at work."""
        weights = dict(self._weights)
        if self._patterns:
            self._sources.asked = shared = self._sources.shared
            with self._sources.locks[shared]:
                existing = queue_names(self._driver.perform(registry.members(self._driver.keyspace)))
            if shared not in self._nodes():
                self._pauses.pop(shared, None)
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
