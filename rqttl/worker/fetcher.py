"""The fetcher: the thread of a worker that claims messages of all queues, and waits for their wake-ups."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from zlib import crc32

from rqttl import flows
from rqttl.errors import PoolExhausted, QueueNotFound
from rqttl.flows.steps import Driver, WaitForAnyWakeup
from rqttl.names import is_pattern
from rqttl.protocol import replies
from rqttl.protocol.commands import BATCH
from rqttl.protocol.keys import WAKEUP
from rqttl.runtime.interrupt import Interrupt
from rqttl.store.refusals import TEMPORARY, is_away
from rqttl.worker.in_flight import InFlight
from rqttl.worker.metrics import Counters
from rqttl.worker.queue_source import QueueSource

logger = logging.getLogger("rqttl.worker")

#: The ms after which a worker without a free slot takes its name off the waiting consumers. A ticket lasts 5 s.
PATIENT_WHILE_FULL = 1_000
#: The ms between two looks at the wake-up lists while other queues have messages.
GLANCE = 50
#: The ms between two looks for new queues that match a pattern.
SCAN = 15_000
#: The ms after which the worker looks for a missing queue again.
MISSING = 5_000
#: The longest wait in ms of a worker that ends when nothing is left.
BURST_WAIT = 200
#: The ms between two looks at a queue in which nothing is due, at most. See `rqttl.flows.period`.
PERIOD = 240_000
#: The ms of one wait at most. After it the fetcher shows that it lives.
TURN = 10_000
#: The ms within which one claim at least shows that Redis hands out messages.
PROOF = 20_000
#: The end of the names of dead-letter queues, as all examples of the option `dead_letter` have it.
DEAD = "/dead"


class Fetcher:
    """Claims messages until `stop`, or until nothing is left with `burst`, or nothing came for `idle_exit` ms.

    `sources` returns the source of each queue by name. `scan` returns the queues and their weights; it is `None` if no
    pattern can match a new queue.
    """

    def __init__(
        self,
        driver: Driver,
        name: str,
        source_of: Callable[[str], QueueSource],
        in_flight: InFlight,
        counters: Counters,
        lock: threading.Lock,
        *,
        scan: Callable[[], Mapping[str, int | None]],
        scans: bool,
        burst: bool,
        idle_exit: int | None,
    ) -> None:
        self._driver = driver
        self._name = name
        self._source_of = source_of
        self._in_flight = in_flight
        self._counters = counters
        self._backoff = Backoff(random.random)
        self._lock = lock
        self._scan, self._scans = scan, scans
        self._burst, self._idle_exit = burst, idle_exit
        self._rotation, self._attention = Rotation({}), Attention()
        self.stop = Interrupt()
        #: The time of the last turn, and of the last answer to a claim, in ms of the clock of this process.
        self.turned_at = driver.timing.now()
        self.answered_at: int | None = None
        #: True while Redis does not answer.
        self.is_away = False
        #: False while no claim is to come soon that takes acks along.
        self.takes_acks = True
        self._worked_at = self.turned_at
        self._full_since: int | None = None
        self._glance_at = self._scan_at = 0
        self._hinted: set[str] = set()
        self._missing: set[str] = set()

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
                self._meet_outage(error)
        self.takes_acks = False
        try:
            self._pass_on()
            self._withdraw()
        except (*TEMPORARY, QueueNotFound) as error:
            logger.info("the worker left its queues while Redis was away: %s", error)

    def _turn(self, now: int) -> None:
        if self._scans and now >= self._scan_at:
            self._follow()
        room = self._in_flight.room()
        if room < 1 and not self._attention.has_tickets:
            self._wait_while_full(now)
            return
        self._full_since = None
        candidates = self._attention.candidates(now)
        if candidates and self._attention.noted and now >= self._glance_at:
            self._glance(now)
            candidates = self._attention.candidates(now)
        queue = next(self._attention.ticketed(), None) or self._rotation.next(candidates)
        if queue is not None:
            self._claim(queue, max(1, min(room, BATCH)), now)
        elif self._is_over(now):
            self.stop.ask()
        elif not self._attention.candidates(now):  # messages that came back make their queue one
            self._wait(now)

    def _claim(self, queue: str, count: int, now: int) -> None:
        """Claim messages of one queue, and hand them out.

        After a glance that has shown a wake-up, the claim does not wait: such a claim takes tickets from the list.
        """
        longest = period(self._name, queue)
        block = 0 if queue in self._hinted else longest
        self._hinted.discard(queue)
        ticket = self._attention.take_ticket(queue)
        source = self._source_of(queue)
        try:
            claimed = source.claim(count, block, ticket)
        except QueueNotFound:
            self._miss(queue, now)
            return
        except TEMPORARY:
            self._attention.woken(queue, ticket)  # it may still be good when Redis is back
            raise
        self._answered(queue, now)
        self._rotation.charge(queue, len(claimed.deliveries))
        if claimed.deliveries:
            self._worked_at = now
            self._in_flight.give(source, claimed.deliveries)
        if claimed.is_whole and block:
            self._attention.emptied(queue, now, claimed.due, noted=True, longest=longest)
        else:
            self._attention.suspect(queue)

    def _answered(self, queue: str, now: int) -> None:
        self._attention.proved(now)
        self._counters.claimed(time.time())
        self.answered_at = now
        self._missing.discard(queue)
        if self.is_away:
            self.is_away = False
            self._counters.reconnected()
            logger.info("Redis answers again")
        self._backoff.reset()

    def _miss(self, queue: str, now: int) -> None:
        """Leave a missing queue alone for some time. It may be declared again."""
        if queue not in self._missing:
            logger.warning("queue %s does not exist any more; the worker looks for it again", queue)
            self._missing.add(queue)
        self._attention.emptied(queue, now, None, noted=False, longest=MISSING)

    def _meet_outage(self, error: Exception) -> None:
        if not self.is_away:
            logger.warning("Redis is away (%s); the worker tries again until it answers", type(error).__name__)
        self.is_away = True
        pause = self._backoff.pause() * 1000
        self._driver.timing.pause(self.stop, lambda: pause)

    # Waiting

    def _wait(self, now: int) -> None:
        """Wait for a wake-up of any queue."""
        noted = self._attention.noted
        if self._attention.needs_proof(now):
            self._attention.suspect()
            return
        ms = self._attention.wait(now)
        if self._burst or self._idle_exit is not None:
            ms = min(ms, BURST_WAIT if self._burst else max(1, min(self._idle_exit or 0, BURST_WAIT * 5)))
        if not noted:
            self._driver.timing.pause(self.stop, lambda: ms)
            return
        self.takes_acks = False  # before the look, so no ack is left that nobody sends
        acking = [queue for queue in noted if self._source_of(queue).has_acks]
        reply = None if acking else self._driver.step(WaitForAnyWakeup(noted, ms, self.stop))
        self.takes_acks = True
        if acking:
            for queue in acking:
                self._attention.suspect(queue)
            return
        self._glance_at = self._driver.timing.now() + GLANCE  # the wait has looked at all lists
        if isinstance(reply, PoolExhausted):
            raise reply
        if isinstance(reply, tuple):
            self._attention.woken(*reply)
        elif self._driver.timing.now() - now < ms // 2 and not self.stop.asked():
            self._attention.suspect()  # the connection was lost: a claim shows if Redis answers

    def _wait_while_full(self, now: int) -> None:
        """Wait for a free slot. A worker that stays full waits for no message any more."""
        if self._full_since is None:
            self._full_since = now
        if now - self._full_since >= PATIENT_WHILE_FULL and self._attention.noted:
            self._withdraw()
        self._pass_on()
        self._in_flight.wait_for_room(self.stop, PATIENT_WHILE_FULL / 1000)

    def _pass_on(self) -> None:
        """Leave the queues whose hints this worker has and cannot use. That wakes the next consumer of each."""
        for queue in self._attention.hinted:
            self._leave(queue)
            self._attention.take_ticket(queue)

    def _leave(self, queue: str) -> None:
        """End the wait in a queue, which may be deleted."""
        try:
            self._source_of(queue).withdraw()
        except QueueNotFound:
            logger.debug("queue %s does not exist any more", queue)

    def _glance(self, now: int) -> None:
        """Look at the wake-up lists of the empty queues, while others have messages."""
        self._glance_at = now + GLANCE
        for queue in self._with_wakeup(self._attention.noted):
            self._hinted.add(queue)
            self._attention.suspect(queue)

    def _with_wakeup(self, queues: list[str]) -> list[str]:
        keyspace = self._driver.keyspace
        calls = [("LLEN", keyspace.key(queue, WAKEUP)) for queue in queues]
        with self._lock:
            lengths = self._driver.perform(_read(calls)) if calls else []
        return [queue for queue, length in zip(queues, lengths, strict=True) if length]

    def _withdraw(self) -> None:
        """Wait in no queue any more. Take the messages that were handed to this worker meanwhile."""
        noted = self._attention.noted
        for queue in noted:
            self._leave(queue)
        self._attention.withdrawn()
        pending = dict.fromkeys([*self._attention.ticketed(), *self._with_wakeup(noted)])
        for queue in pending:
            source = self._source_of(queue)
            try:
                claimed = source.claim(1, 0, self._attention.take_ticket(queue))
            except QueueNotFound:
                continue  # a claim of the next turn tells it
            self._in_flight.give(source, claimed.deliveries)

    # The end, and new queues

    def _is_over(self, now: int) -> bool:
        if not self._in_flight.is_idle:
            self._worked_at = now
            return False
        returned = [queue for queue in self._rotation.queues if self._source_of(queue).has_returned()]
        for queue in returned:
            self._attention.suspect(queue)
        if returned:
            return False
        return self._burst or (self._idle_exit is not None and now - self._worked_at >= self._idle_exit)

    def _follow(self) -> None:
        """Take the queues of this moment."""
        with self._lock:
            weights = self._scan()
        self._scan_at = self._driver.timing.now() + SCAN
        for queue in set(self._attention.noted) - set(weights):
            self._leave(queue)
        self._rotation.follow(weights)
        self._attention.follow(weights)
        self._hinted &= weights.keys()
        self._missing &= weights.keys()


def _read(calls: list[tuple[str, str]]) -> flows.steps.Flow[list[int]]:
    lengths = yield flows.steps.Read(calls)
    return [replies.number(length) for length in lengths]


@dataclass(slots=True)
class _Empty:
    """A queue in which a claim met no further message, and in whose `waiters` the worker may be noted."""

    until: float
    noted: bool


class Attention:
    """Remembers the queues that may have messages. A queue is a candidate until a claim shows that it is empty.

    After that it becomes a candidate by a wake-up, by its next due time, or at the end of its period.
    """

    def __init__(self, queues: Collection[str] = ()) -> None:
        self._empty: dict[str, _Empty | None] = dict.fromkeys(queues)
        self._tickets: dict[str, bytes] = {}
        self._proved_at = 0.0

    def follow(self, queues: Collection[str]) -> None:
        """Take these queues in the place of the former ones."""
        self._empty = {queue: self._empty.get(queue) for queue in queues}
        self._tickets = {queue: ticket for queue, ticket in self._tickets.items() if queue in self._empty}

    def candidates(self, now: float) -> set[str]:
        """Return the queues that may have messages."""
        return {queue for queue, empty in self._empty.items() if empty is None or empty.until <= now}

    @property
    def noted(self) -> list[str]:
        """The queues in which the worker is noted as waiting."""
        return [queue for queue, empty in self._empty.items() if empty is not None and empty.noted]

    def is_noted(self, queue: str) -> bool:
        """Return True if the worker is noted as waiting in a queue."""
        empty = self._empty.get(queue)
        return empty is not None and empty.noted

    def emptied(self, queue: str, now: float, due: int | None, *, noted: bool, longest: int) -> None:
        """Record that a claim met no further message. Work is due there in `due` ms; ask again after `longest`."""
        if queue in self._empty:
            pause = longest if due is None else max(1, min(longest, due))
            self._empty[queue] = _Empty(now + pause, noted)

    def proved(self, now: float) -> None:
        """Record that Redis answered a claim."""
        self._proved_at = now

    def woken(self, queue: str, element: bytes) -> None:
        """Record an element of the wake-up list of a queue: a hint (empty) or a ticket."""
        if queue in self._empty:
            self._empty[queue] = None
            self._tickets[queue] = element

    def suspect(self, queue: str | None = None) -> None:
        """Make a queue a candidate; without a name, the one that was asked longest ago."""
        waiting = {name: empty.until for name, empty in self._empty.items() if empty is not None}
        name = queue if queue is not None else min(waiting, key=lambda name: waiting[name], default=None)
        if name in self._empty:
            self._empty[name] = None

    def withdrawn(self) -> None:
        """Record that the worker is noted nowhere any more."""
        for queue in self._empty:
            self._empty[queue] = None

    def take_ticket(self, queue: str) -> bytes:
        """Remove and return the ticket for a queue; empty for a hint and without one."""
        return self._tickets.pop(queue, b"")

    @property
    def has_tickets(self) -> bool:
        """True if a ticket waits to be shown."""
        return any(self._tickets.values())

    def ticketed(self) -> Iterator[str]:
        """The queues for which a ticket waits to be shown."""
        yield from [queue for queue, element in self._tickets.items() if element]

    @property
    def hinted(self) -> list[str]:
        """The queues whose hint the worker has, without a claim since then. No other consumer is woken by it."""
        return [queue for queue, element in self._tickets.items() if not element]

    def wait(self, now: float) -> int:
        """Return the ms to wait for a wake-up."""
        ends = [empty.until for empty in self._empty.values() if empty is not None]
        return max(1, int(min([TURN, *(end - now for end in ends)])))

    def needs_proof(self, now: float) -> bool:
        """Return True if the last answer to a claim is so old that a claim has to show that Redis answers."""
        return now - self._proved_at >= PROOF


def period(worker: str, queue: str) -> int:
    """Return the ms after which this worker asks this queue again: between half of `PERIOD` and all of it.

    The time differs between queues, so their looks spread out.
    """
    return PERIOD - crc32(f"{worker} {queue}".encode()) % (PERIOD // 2)


class Rotation:
    """Chooses among the queues that may have messages.

    Without weights the order of the queues is strict: the first queue that may have messages is chosen. With weights a
    queue gets a share of the fetched messages in proportion to its weight. A queue without messages costs the others
    nothing, and saves no turns for later.
    """

    def __init__(self, weights: Mapping[str, int | None]) -> None:
        self._weights: dict[str, int | None] = {}
        self._progress: dict[str, float] = {}
        self._idle: set[str] = set()
        self.follow(weights)

    @property
    def queues(self) -> tuple[str, ...]:
        """All queues, in their order."""
        return tuple(self._weights)

    def follow(self, weights: Mapping[str, int | None]) -> None:
        """Take these queues in the place of the former ones. Queues that stay keep their progress."""
        least = self._least(self._weights)
        self._progress = {queue: self._progress.get(queue, least) for queue in weights}
        self._weights = dict(weights)
        self._idle &= set(weights)

    def next(self, candidates: Collection[str]) -> str | None:
        """Return the next queue of these candidates; `None` without candidates."""
        present = [queue for queue in self._weights if queue in candidates]
        if not present:
            self._idle = set(self._weights)
            return None
        if all(weight is None for weight in self._weights.values()):
            return present[0]
        least = self._least([queue for queue in present if queue not in self._idle] or present)
        for queue in present:
            if queue in self._idle:
                self._progress[queue] = max(self._progress[queue], least)
        self._idle = set(self._weights) - set(present)
        return min(present, key=lambda queue: self._progress[queue])

    def charge(self, queue: str, messages: int) -> None:
        """Record that so many messages were fetched from a queue."""
        if queue in self._weights:
            self._progress[queue] += messages / (self._weights[queue] or 1)

    def _least(self, queues: Collection[str]) -> float:
        return min((self._progress.get(queue, 0.0) for queue in queues), default=0.0)


def selected(weights: Mapping[str, int | None], existing: Iterable[str]) -> dict[str, int | None]:
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


class Backoff:
    """Pauses while Redis is away: the bound doubles from 0.1 s to 5 s, and the pause is random below it."""

    FIRST, LONGEST = 0.1, 5.0

    def __init__(self, chance: Callable[[], float]) -> None:
        self._chance = chance
        self._bound = self.FIRST

    def pause(self) -> float:
        """Return the seconds before the next try."""
        bound, self._bound = self._bound, min(2 * self._bound, self.LONGEST)
        return self._chance() * bound

    def reset(self) -> None:
        """Begin again: Redis has answered."""
        self._bound = self.FIRST
