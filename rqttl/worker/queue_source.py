"""One queue of a worker: claims, leases, acks and settlements. All calls of a worker to Redis share one lock."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from time import perf_counter

from rqttl import delivery, units
from rqttl import events as hook
from rqttl.consuming import settling
from rqttl.consuming.handling import Settlement
from rqttl.consuming.prefetch import CONSUMER_TTL_MS, Missed, Prefetch, RenewalSchedule
from rqttl.consuming.renewer import Sender
from rqttl.consuming.turns import Turns, announce_renewal
from rqttl.delivery import LEFT, LOST, UNKNOWN, Delivered, Delivery, Settler
from rqttl.errors import LeaseLost, OutcomeUnknown, RqttlError
from rqttl.flows.steps import Driver
from rqttl.protocol import codec
from rqttl.protocol.commands import BATCH, Presence
from rqttl.runtime.interrupt import Interrupt
from rqttl.runtime.recent import Recent
from rqttl.store.refusals import TEMPORARY, is_away
from rqttl.worker.metrics import Counters

logger = logging.getLogger("rqttl.worker")

#: The number of finished messages that a worker remembers because their acks came too late.
REMEMBERED = 10_000


@dataclass(frozen=True, slots=True)
class Claim:
    """The messages of one claim, the ms until the next due work.

    `is_whole` is false if the queue may have more messages.
    """

    deliveries: list[Delivery]
    due: int | None
    is_whole: bool


class _Late(Missed):
    """Acks that came too late or whose outcome is unknown. The worker remembers the finished messages."""

    def __init__(self, how: str, finished: Recent[bool], counters: Counters, queue: str) -> None:
        super().__init__(how)
        self._finished, self._counters, self._queue = finished, counters, queue

    def add(self, item: Delivered) -> None:
        """See `Missed`."""
        super().add(item)
        self._finished.put(item.sequence, True)  # a set with a bound
        self._counters.settled(self._queue, "lost")


class QueueSource:
    """One queue of a worker. Safe to share between the fetcher and the keeper.

    `lock` is the lock of all calls of the worker, `name` its name among the consumers. `on_shorter` is called when the
    leases become shorter than they were, so that their renewal is due sooner.
    """

    def __init__(
        self,
        driver: Driver,
        queue: str,
        name: str,
        lease: int | None,
        lock: threading.Lock,
        counters: Counters,
        on_shorter: Callable[[], None] = lambda: None,
    ) -> None:
        self.queue = queue
        self._on_shorter = on_shorter
        self._driver = driver
        self._name = name
        self._lease = lease
        self._counters = counters
        self._books = Prefetch[Delivery](BATCH)
        self._finished: Recent[bool] = Recent(REMEMBERED)
        self._books.late = _Late(LOST, self._finished, counters, queue)
        self._books.unknown = _Late(UNKNOWN, self._finished, counters, queue)
        self.schedule = RenewalSchedule()
        self._turns = Turns(driver.keyspace, queue, name, self._books, self.schedule, Interrupt())
        self._sender, self._lock = Sender(driver, lock), lock
        self._settler: Settler[None] = Settler(lambda *_: None, driver.events)
        self._server_ahead = 0
        self._returns = threading.Lock()
        self._returning, self._has_returned = 0, False
        self._pending: deque[tuple[Delivery, Settlement]] = deque()
        self.schedule.renewed(driver.timing.now())

    # Claims

    def claim(self, count: int, block: int, ticket: bytes = b"") -> Claim:
        """Send acks and take up to `count` messages. Below that the worker is noted as waiting for `block` ms."""
        presence = Presence(self._name, block, CONSUMER_TTL_MS, ticket, count)
        observer, since = self._driver.events.observer, perf_counter()
        claimed = self._sender.perform(self._turns.claim(count, self._lease, presence))
        fetched = delivery.delivered(Delivery, self._settler, claimed, self._lease)
        hook.received(observer, self.queue, fetched, since)
        self._books.room()  # this forgets the settled deliveries
        self._books.add(fetched)
        self._books.take_unseen()
        self._server_ahead = claimed.now - self._driver.timing.now()
        if self.schedule.follow(self._books.leases().keys()):
            self._on_shorter()
        if block and len(fetched) < count:
            self.schedule.begin_wait()
        else:
            self.schedule.end_wait()
        due = None if claimed.due is None else max(1, claimed.due - claimed.now)
        return Claim(self._without_finished(fetched), due, len(fetched) < count and not claimed.more)

    def withdraw(self) -> None:
        """Wait no more. Take no message."""
        self._sender.perform(self._turns.claim(0, 1, Presence(self._name, 0, CONSUMER_TTL_MS)))
        self.schedule.end_wait()

    def age(self, item: Delivery) -> float:
        """Return the seconds since a message came into the queue, by the clock of Redis."""
        now = self._driver.timing.now() + self._server_ahead
        return (now - codec.enqueued_at(delivery.lease_words(item)[0])) / 1000

    def _without_finished(self, fetched: list[Delivery]) -> list[Delivery]:
        """Ack the messages that handlers of this worker have finished, and return the others."""
        if len(self._finished) == 0:
            return fetched
        new = []
        for item in fetched:
            if item.delivery_count > 1 and self._finished.get(item.sequence):
                self.finish([item])
            else:
                new.append(item)
        return new

    # Settlements

    def finish(self, items: Iterable[Delivery]) -> None:
        """Collect acks for the next claim."""
        for item in items:
            if item.settled == LOST:
                self._books.late.add(item)
            else:
                self._books.finish(item)

    def settle(self, item: Delivery, settlement: Settlement) -> None:
        """Collect a settlement other than an ack. The keeper carries it out at once."""
        with self._returns:
            self._returning += 1
        self._pending.append((item, settlement))

    def has_returned(self) -> bool:
        """Return True while settlements wait, and once after they were carried out: messages may be ready again."""
        with self._returns:
            asked, self._has_returned = self._has_returned or self._returning > 0, False
            return asked

    def prolong(self, item: Delivery, lease: int) -> None:
        """Lend a message for another length from now on."""
        delivery.lend(item, lease)
        self.schedule.follow([lease])
        self.schedule.renewed(float("-inf"))

    @property
    def is_urgent(self) -> bool:
        """True if a settlement waits."""
        return bool(self._pending)

    @property
    def has_acks(self) -> bool:
        """True if acks wait for a call that sends them."""
        return self._books.has_acks

    @property
    def has_work(self) -> bool:
        """True if acks or settlements wait, or messages are out."""
        return bool(self._pending) or self._books.has_acks or bool(self._books.unsettled())

    def settle_pending(self) -> None:
        """Carry out the collected settlements. If Redis is away they stay collected."""
        groups: dict[Settlement, list[Delivery]] = {}
        for _ in range(len(self._pending)):
            item, settlement = self._pending.popleft()
            if item.settled is None:
                groups.setdefault(settlement, []).append(item)
            else:
                self._count_returned(1)
                if item.settled == LOST:
                    self._counters.settled(self.queue, "lost")
        waiting = list(groups.items())
        while waiting:
            settlement, items = waiting[0]
            try:
                self._carry_out(settlement, items)
            except (LeaseLost, OutcomeUnknown) as error:
                logger.warning("%s", error)
                self._counters.settled(self.queue, "lost", sum(item.settled != settlement[0] for item in items))
            except TEMPORARY as error:
                if is_away(error):
                    self._pending.extend((item, how) for how, group in waiting for item in group)
                    raise
                self._leave(items, error)
            except RqttlError as error:
                self._leave(items, error)
            waiting.pop(0)
            self._count_returned(len(items))

    def _count_returned(self, number: int) -> None:
        with self._returns:
            self._returning -= number
            self._has_returned = True

    def _carry_out(self, settlement: Settlement, items: list[Delivery]) -> None:
        delay = None if settlement[1] is None else units.as_timedelta(settlement[1])
        flow = settling.settle(self._driver.keyspace, self.queue, settlement[0], items, delay, settlement[2])
        with self._lock:
            self._driver.perform(flow)

    def _leave(self, items: list[Delivery], error: Exception) -> None:
        """Give up settling: the leases end by themselves."""
        logger.warning(
            "queue %s: %d messages could not be settled (%s), and come again when their leases end",
            self.queue,
            len(items),
            error,
        )
        for item in items:
            delivery.mark(item, LEFT)

    # Upkeep

    def take_turn(self) -> None:
        """Settle, renew leases, send waiting acks, and show the presence of the worker, as far as it is due."""
        if self._pending:
            self.settle_pending()
        announce_renewal(self._driver.events, self.queue, self._sender.perform(self._turns.upkeep()))

    def prepare(self, leap: int) -> None:
        """Keep the presence of the worker and all leases throughout a leap of the clock. See `Timing.leaps`."""
        announce_renewal(self._driver.events, self.queue, self._sender.perform(self._turns.prepare(leap)))

    def close(self) -> None:
        """Settle what is left, send all acks, and leave the queue."""
        self.settle_pending()
        self._sender.perform(self._turns.report(leaves=True))
