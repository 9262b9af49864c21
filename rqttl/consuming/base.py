"""What all consumers share: their flows, their settings, their settles, and repeated calls while Redis is away.

Threads, asyncio and workers perform the flows of `Turns`, one at a time and under a lock: only one call may change
tokens (renewals) or present them (settles). No threads, no clock and no I/O here.
"""

from __future__ import annotations

import logging
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Generic, TypeVar

from rqttl import checks, delivery, units
from rqttl import events as hook
from rqttl.consuming import prefetch, settling
from rqttl.consuming.heartbeat import Heartbeat
from rqttl.consuming.prefetch import Prefetch, RenewalSchedule
from rqttl.delivery import LOST, Delivered, Settler, check_unsettled
from rqttl.errors import LeaseLost, QueueNotFound, RqttlError
from rqttl.events import Events, RenewalEvent
from rqttl.flows import receive
from rqttl.flows.receive import ReceiveResult, lease_ms
from rqttl.flows.steps import ENDED, Flow, Now, WaitForWakeup
from rqttl.protocol.commands import BATCH, Command, Presence
from rqttl.protocol.keys import Keyspace
from rqttl.runtime.interrupt import Interrupt, Timing
from rqttl.store.exchanges import TEMPORARY, is_away, refuses_for_now
from rqttl.types import Duration
from rqttl.units import MAX_DURATION

logger = logging.getLogger("rqttl.consumer")

D = TypeVar("D", bound=Delivered)
R = TypeVar("R")
T = TypeVar("T")

#: The first pause, which each attempt doubles, and the longest pause, in ms.
FIRST, LONGEST = 500, 5_000
#: The text of the warning before each pause.
AGAIN = "queue %s: %s, trying again"


class Turns(Generic[D]):
    """The turns of a consumer of one queue, which holds `limit` messages at most. `stop` ends its waits.

    `hurry` is called when leases are shorter than before, so that their renewal is due sooner.
    """

    def __init__(
        self, keyspace: Keyspace, queue: str, limit: int, stop: Interrupt, hurry: Callable[[], None], name: str = ""
    ) -> None:
        self.queue, self._hurry = queue, hurry
        self.books, self.schedule = Prefetch[D](limit), RenewalSchedule()
        self._keyspace, self._stop = keyspace, stop
        self._name = name or secrets.token_hex(8)
        self._leap = 0
        #: The entry in the roster; a worker has one for all its queues.
        self.heartbeat: Heartbeat | None = None

    # Calls that carry the waiting acks

    def fetch(self, count: int, lease: int | None, wait: int, room: int) -> Flow[ReceiveResult]:
        """Send acks and take up to `count` messages. See `receive.receive`."""
        flow = receive.receive(
            self.queue,
            count,
            lease,
            wait,
            auto_ack=False,
            consumer=self._name,
            ttl=prefetch.CONSUMER_TTL_MS,
            room=room,
            finished=self.books.next_acks,
        )
        return self._carrying(flow)

    def claim(self, count: int, lease: int | None, presence: Presence) -> Flow[ReceiveResult]:
        """Send acks and take up to `count` messages, without a wait. See `receive.receive_once`."""
        finished = self.books.next_acks()
        flow = receive.receive_once(self.queue, count, lease, presence=presence, finished=finished)
        return (yield from self._carrying(flow))

    def report(self, ttl: int = 0, *, leaves: bool = False) -> Flow[None]:
        """Send all waiting acks. Show that the consumer is present for `ttl` ms, or that it leaves the queue."""
        presence = Presence(self._name, 0 if leaves else -1, ttl)
        while True:
            yield from self.claim(0, 1, presence)
            if not self.books.has_acks:
                return

    def _carrying(self, flow: Flow[ReceiveResult]) -> Flow[ReceiveResult]:
        """Wrap a flow whose commands send acks, and record their outcomes. If it fails, they are sent again.

        A deleted queue has taken its messages along, so nothing is left to ack there.
        """
        sent: list[Delivered] = []
        try:
            claimed = yield from self._with_replays(flow, sent)
        except QueueNotFound:
            for ack in self.books.confirm():
                self.books.late.add(ack)
                logger.info("queue %s: the ack of %s was given up: the queue is deleted", ack.queue, ack.id)
            raise
        except BaseException:
            self.books.put_back()
            raise
        self._record(sent, claimed)
        return claimed

    def _with_replays(self, flow: Flow[ReceiveResult], sent: list[Delivered]) -> Flow[ReceiveResult]:
        """Mark commands as repeated if an earlier call may have carried out their acks. Adds these acks to `sent`."""
        answer: Any = None
        failure: Exception | None = None
        while True:
            try:
                step = flow.send(answer) if failure is None else flow.throw(failure)
            except StopIteration as done:
                claimed: ReceiveResult = done.value
                return claimed
            failure = None
            try:
                if type(step) is Command:
                    answer = yield step.as_replay() if self.books.is_in_doubt else step
                    if answer[0] == b"ok":
                        sent += self.books.confirm()
                elif type(step) is WaitForWakeup:
                    answer = yield from self._wait(step)
                else:
                    answer = yield step
            except Exception as error:  # noqa: BLE001  # the flow decides about it
                failure = error

    def _wait(self, step: WaitForWakeup) -> Flow[Any]:
        self.schedule.begin_wait()
        try:
            return ENDED if self._stop.asked() else (yield replace(step, interrupt=self._stop))
        finally:
            self.schedule.end_wait()

    def _record(self, sent: Sequence[Delivered], claimed: ReceiveResult) -> None:
        """Record a successful call: log and count the acks that missed."""
        self.schedule.contacted()
        for ack in prefetch.missed(sent, claimed.lost):
            self.books.late.add(ack)
            logger.warning("queue %s: the ack of %s came after its lease had ended", ack.queue, ack.id)
        for ack in prefetch.missed(sent, claimed.unknown):
            self.books.unknown.add(ack)
            logger.warning(
                "queue %s: the ack of %s got no reply until its lease had ended: it may have been carried out",
                ack.queue,
                ack.id,
            )

    # Upkeep

    def upkeep(self) -> Flow[int | None]:
        """Do the work that is due: send acks, show the presence, renew leases, beat. Returns as `renew`."""
        renewed = yield from self._renew_if_due()
        if self.heartbeat is not None:
            if renewed is not None:
                self.heartbeat.renewed()
            yield from self.heartbeat.beat()
        return renewed

    def _renew_if_due(self) -> Flow[int | None]:
        if self.books.has_acks or self.schedule.is_report_due((yield Now())):
            yield from self.report(prefetch.CONSUMER_TTL_MS)
        if not self.schedule.is_renewal_due((yield Now())):
            return None
        renewed = yield from self.renew()
        self.schedule.renewed((yield Now()))
        return renewed

    def renew(self) -> Flow[int | None]:
        """Renew all leases for their own lengths. Returns the number of renewed ones; `None` if idle.

        A renewal in the midst of a leap of the clock adds the leap, so that the lease outlasts it.
        """
        leases = self.books.leases()
        if not leases:
            return None
        for lease, group in leases.items():
            length = units.as_timedelta(min(lease + self._leap, MAX_DURATION))
            try:
                yield from settling.settle(self._keyspace, self.queue, "renew", group, length)
            except LeaseLost as lost:
                logger.warning("%s", lost)
        return sum(item.settled != LOST for group in leases.values() for item in group)

    def prepare(self, leap: int) -> Flow[int | None]:
        """Keep the presence and all leases throughout a leap of the clock by `leap` ms. See `Timing.leaps`."""
        self._leap = leap
        try:
            yield from self.report(prefetch.CONSUMER_TTL_MS + leap)
            renewed = yield from self.renew()
            if self.heartbeat is not None:
                yield from self.heartbeat.write(leap)
            return renewed
        except (*TEMPORARY, RqttlError) as error:  # the loop tells it when it goes on
            self.log_failure(error)
            return None

    def log_failure(self, error: Exception) -> None:
        """Log the failure of a turn. Later turns try again."""
        if isinstance(error, (*TEMPORARY, RqttlError)):
            # queue and server may come back; a later settle reports lost leases
            logger.warning("queue %s: could not renew leases: %s", self.queue, type(error).__name__)
        else:
            # a listener of events failed: without a renewer all leases would end
            logger.error("queue %s: the renewer of leases goes on after an error", self.queue, exc_info=error)

    def follow_leases(self) -> None:
        """Renew as often as the leases at hand ask for."""
        if self.schedule.follow(self.books.leases().keys()):
            self._hurry()

    # Settling at once, and the end

    def settle(self, how: str, deliveries: Sequence[D], time: Duration | None, description: str | None) -> Flow[None]:
        """Settle deliveries; see `settling.settle`. Later turns renew leases for the length of the last renewal."""
        yield from settling.settle(self._keyspace, self.queue, how, deliveries, time, description)
        if how == "renew":
            length = lease_ms(time)
            for item in deliveries if length is not None else ():
                item._lease = length
            if self._leap:
                yield from self.renew()
            self.follow_leases()

    def release_unseen(self) -> Flow[None]:
        """Give back, uncounted, the deliveries that the iteration has not handed out."""
        unseen = self.books.take_unseen()
        if not unseen:
            return
        try:
            yield from settling.settle(self._keyspace, self.queue, "release", unseen)
        except LeaseLost as lost:
            logger.info("%s", lost)
        except BaseException:
            self.books.fetched.extend(unseen)  # for the next attempt
            raise

    def leave(self) -> Flow[None]:
        """Send all acks, give back the deliveries that were not handed out, and leave the queue."""
        try:
            yield from self.report(leaves=True)
            if self.heartbeat is not None:
                yield from self.heartbeat.leave()
        except TEMPORARY as error:
            if self.books.has_acks or self.books.fetched or not is_away(error):
                raise
            logger.info("queue %s: the consumer left while Redis was away", self.queue)
        yield from self.release_unseen()
        unsettled = sum(map(len, self.books.leases().values()))
        if unsettled:
            logger.warning(
                "queue %s: the consumer ended before %d of its deliveries were settled; "
                "unsettled messages come again when their leases end",
                self.queue,
                unsettled,
            )


def announce_renewal(events: Events, queue: str, number: int | None) -> None:
    """Tell listeners of events the number of renewed leases. Not under the lock: a listener may settle."""
    if number is not None and events.notify is not None:
        events.notify(RenewalEvent(queue, number))


class ConsumerBase(ABC, Generic[D, R]):
    """A consumer without its calls. `R` is the answer of a settle: `None`, or an awaitable of it."""

    #: Settles the deliveries of this consumer.
    _settler: Settler[R]

    def __init__(
        self, keyspace: Keyspace, queue: str, prefetch: int, lease: Duration | None, wait: Duration | None
    ) -> None:
        prefetch = checks.whole(prefetch, "prefetch", 1, BATCH)
        #: The name of the consumed queue.
        self.queue = queue
        self._keyspace = keyspace
        self._lease = receive.lease_ms(lease)
        self._wait = int(MAX_DURATION if wait is None else units.duration(wait, "wait"))
        self._idle: Callable[[], int] = lambda: 1
        self._stop = Interrupt()
        self._turns = Turns[D](keyspace, queue, prefetch, self._stop, self._hurry)
        self._prefetch, self._schedule = self._turns.books, self._turns.schedule

        def details(now: int) -> dict[str, Any]:
            held = self._prefetch.in_flight(now)
            return {"queues": [queue], "prefetch": prefetch, "held": {queue: held} if held else {}}

        self._turns.heartbeat = Heartbeat(keyspace, "consumer", details, self._prefetch.is_empty)

    @property
    def lost(self) -> list[str]:
        """The newest 1,000 ids of messages whose ack came after their lease, or their queue, had ended."""
        return list(self._prefetch.late.newest)

    @property
    def lost_count(self) -> int:
        """The number of messages whose ack came after their lease, or their queue, had ended."""
        return self._prefetch.late.count

    @property
    def unknown(self) -> list[str]:
        """The newest 1,000 ids of messages whose ack may or may not have been carried out."""
        return list(self._prefetch.unknown.newest)

    @property
    def unknown_count(self) -> int:
        """The number of messages whose ack may or may not have been carried out."""
        return self._prefetch.unknown.count

    def stop(self) -> None:
        """End the iteration after the present message, and a wait for the next one at once.

        Leases are renewed until the context is left. Any thread and any signal handler may call this.
        """
        self._stop.ask()

    # Settling

    @abstractmethod
    def _settle(self, how: str, deliveries: Sequence[D], time: Duration | None, description: str | None) -> R:
        """Settle deliveries; see `settling.settle`. An ack is collected for the next fetch."""

    @abstractmethod
    def _hurry(self) -> None:
        """Renew leases early enough: they have got shorter."""

    def _collect(self, deliveries: Sequence[D]) -> None:
        for item in deliveries:
            if item._settled is not None:
                check_unsettled(item)
            self._prefetch.finish(item)

    # Fetching

    def _take(self, kind: type[D], claimed: ReceiveResult, since: float) -> bool:
        """Take over the messages of a fetch, which began at `since`. Returns False if there are none."""
        fetched = delivery.delivered(kind, self._settler, claimed, self._lease)
        events = self._settler.events
        if events is not None:
            hook.received(events.observer, self.queue, fetched, since)
        self._prefetch.add(fetched)
        if fetched and not self._schedule.is_for(self._lease or claimed.config.lease):
            self._turns.follow_leases()  # these are the first messages, or the queue's `lease` has changed
        return bool(fetched)


# While Redis is away


class Patience:
    """Decides after each failed attempt of a call that is repeated while Redis is away, for `wait` ms at most.

    No clock and no sleep: sync and asyncio consumers share it.
    """

    def __init__(self, queue: str, wait: int, started: int, logger: logging.Logger) -> None:
        self._queue = queue
        self._ends = started + wait
        self._pause = FIRST
        self._logger = logger

    def pause_after(self, error: Exception, now: int) -> int:
        """Return the ms to wait before the next attempt. Raises the error if there is none."""
        if not is_away(error) or now >= self._ends:
            raise error
        refused = refuses_for_now(error)
        reason = f"Redis refuses for now ({error})" if refused else f"Redis is away ({type(error).__name__})"
        self._logger.warning(AGAIN, self._queue, reason)
        pause, self._pause = self._pause, min(2 * self._pause, LONGEST)
        return pause


def patiently(
    call: Callable[[], T], queue: str, wait: int, stop: Interrupt, timing: Timing, logger: logging.Logger
) -> T | None:
    """Repeat a call while Redis is away, for `wait` ms at most. Returns its result; `None` after `stop`."""
    patience = Patience(queue, wait, timing.now(), logger)
    while True:
        try:
            return call()
        except TEMPORARY as error:
            pause = patience.pause_after(error, timing.now())
        timing.pause(stop, partial(float, pause))
        if stop.asked():
            return None
