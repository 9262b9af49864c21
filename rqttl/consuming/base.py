"""What all consumers share: their flows, their settings, their settles, and repeated calls while Redis is away.

Threads, asyncio and workers perform the flows of `Session`, one at a time and under a lock: only one call may change
tokens (renewals) or present them (settles). No threads, no clock and no I/O here.
"""

from __future__ import annotations

import logging
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, Generic, TypeVar

from rqttl import checks, delivery, units
from rqttl import events as hook
from rqttl.consuming import prefetch, settling
from rqttl.consuming.heartbeat import Heartbeat
from rqttl.consuming.prefetch import Prefetch, RenewalSchedule, SharedPrefetch
from rqttl.consuming.several import Queues, Weights, take, with_wakeup
from rqttl.delivery import LOST, Delivered, Settler
from rqttl.errors import LeaseLost, QueueForwards, QueueNotFound, RqttlError
from rqttl.events import Events, RenewalEvent
from rqttl.flows import reading, receive
from rqttl.flows.receive import ReceiveResult, lease_ms
from rqttl.flows.steps import ENDED, Flow, Now, Read, WaitForWakeup
from rqttl.outages import TEMPORARY, doubled, is_away, refuses_for_now
from rqttl.protocol.commands import BATCH, Presence, QueueConfig
from rqttl.protocol.contract import Ok
from rqttl.protocol.keys import META, Keyspace
from rqttl.protocol.replies import milliseconds
from rqttl.runtime.interrupt import Interrupt, Timing
from rqttl.types import Duration
from rqttl.units import MAX_DURATION

logger = logging.getLogger("rqttl.consumer")

D = TypeVar("D", bound=Delivered)
R = TypeVar("R")
T = TypeVar("T")

#: The numbers of renewed leases, by queue.
Renewed = dict[str, int]

#: The first pause of a call that is repeated, in ms.
FIRST = 500
#: The ms for which due work may wait before a consumer that waits looks after it.
LATE = 5_000
#: The text of the warning before each pause.
AGAIN = "queue %s: %s, trying again"


class Session(Generic[D]):
    """A session of a consumer of one queue, which holds `limit` messages at most. `stop` ends its waits.

    `hurry` is called when a turn is due sooner: leases are shorter than before, or acks wait for no fetch.
    """

    def __init__(
        self, keyspace: Keyspace, queue: str, limit: int, stop: Interrupt, hurry: Callable[[], None], name: str = ""
    ) -> None:
        self.queue, self._hurry = queue, hurry
        #: False if acks that no fetch takes along wait for a usual turn.
        self.hurries_acks = True
        self.prefetch, self.schedule = Prefetch[D](limit), RenewalSchedule()
        #: The deliveries of each queue.
        self.parts = {queue: self.prefetch}
        self._keyspace, self._stop = keyspace, stop
        self._name = name or secrets.token_hex(8)
        self._leap = 0
        #: Ends the present wait for messages, for another look; `None` if there is no wait.
        self.again: Interrupt | None = None
        #: The entry in the roster; a worker has one for all its queues. It may be at another node than the queue.
        self.heartbeat: Heartbeat | None = None

    def enter(self, lease: int | None) -> Flow[None]:
        """Begin to renew leases, of the length `lease` or that of the queue. Raises `QueueForwards`."""
        options = yield from reading.options(self._keyspace, self.queue)
        options.check_source()
        self.schedule.follow([lease or options.number("lease") or 0])
        self.schedule.renewed((yield Now()))

    def next_turn(self, now: float) -> float:
        """Return the ms until the next `upkeep`."""
        return self.schedule.next_turn(now)

    # Calls that carry the waiting acks

    def fetch(self, count: int, lease: int | None, wait: int, room: int) -> Flow[ReceiveResult | None]:
        """Send acks and take up to `count` messages. See `receive.receive`."""
        return receive.receive(
            self.queue,
            partial(self.claim, lease),
            count,
            wait,
            self._name,
            ttl=prefetch.CONSUMER_TTL_MS,
            room=room,
            listen=self._wait,
        )

    def claim(
        self, lease: int | None, count: int, presence: Presence, config: QueueConfig | None = None
    ) -> Flow[ReceiveResult]:
        """Send acks and take up to `count` messages, without a wait. See `receive.receive_once`.

        If it fails, the acks are sent again. A deleted queue has taken its messages along, so nothing is left to ack
        there.
        """
        finished, replay = self.prefetch.next_acks(), self.prefetch.is_in_doubt
        try:
            return (
                yield from receive.receive_once(
                    self.queue,
                    count,
                    lease,
                    presence=presence,
                    finished=finished,
                    replay=replay,
                    config=config,
                    answered=lambda answer: self._record(self.prefetch.confirm(), answer),
                )
            )
        except QueueForwards:
            self.prefetch.put_back()  # what is leased is settled as ever
            raise
        except QueueNotFound:
            for ack in self.prefetch.confirm():
                self.prefetch.late.add(ack)
                logger.info("queue %s: ack of %s dropped: the queue was deleted", ack.queue, ack.id)
            raise
        except BaseException:
            self.prefetch.put_back()
            raise

    def report(self, ttl: int = 0, *, leaves: bool = False, ticket: bytes = b"") -> Flow[None]:
        """Send all waiting acks. Show that the consumer is present for `ttl` ms, or that it leaves the queue.

        Messages that were handed to a consumer that leaves go back, uncounted.
        """
        presence = Presence(self._name, 0 if leaves else -1, ttl, ticket)
        while True:
            yield from self.claim(1, 0, presence)
            if not self.prefetch.has_acks:
                return

    def _wait(self, step: WaitForWakeup) -> Flow[Any]:
        self.schedule.begin_wait()
        try:
            self.again = again = Interrupt()
            with self._stop.ending(again.ask):
                if self._stop.asked():
                    return ENDED
                self.hurry_acks()
                woken = yield WaitForWakeup(step.queues, step.longest, step.left, step.due, again, step.exact)
            return None if woken == ENDED and self.again is None else woken
        finally:
            self.again = None
            self.schedule.end_wait()

    def hurry_acks(self) -> None:
        """Send waiting acks now. Called while the consumer waits for messages: no fetch takes them along."""
        if self.hurries_acks and self.prefetch.has_acks:
            self._hurry()

    def look(self) -> Flow[int]:
        """The time of Redis. Ends a wait that Redis has forgotten, or in which work is due that nobody does."""
        queues, key = self._waits_in if self.again else [], self._keyspace.key
        calls = [
            call
            for queue in queues
            for call in (("ZSCORE", key(queue, "waiters"), self._name), ("HMGET", key(queue, META), "due_at"))
        ]
        *answers, time = yield Read([*calls, ("TIME",)], keep_errors=True, partial=True)
        if isinstance(time, Exception):
            raise time
        now = milliseconds(time)
        for queue, until, due in zip(queues, answers[::2], answers[1::2], strict=True):
            at = due[0] if isinstance(due, list) else None
            if until is None or (at and at.isdigit() and int(at) + LATE < now):
                self._look_again(queue)
        return now

    @property
    def _waits_in(self) -> list[str]:
        """The queues in which the consumer waits."""
        return [self.queue]

    def _look_again(self, queue: str) -> None:
        logger.info("queue %s: looking again: nobody would have woken this consumer", queue)
        again, self.again = self.again, None
        if again:
            again.ask()

    def _record(self, sent: Sequence[Delivered], answer: Ok) -> None:
        """Record a successful call: log and count the acks that missed."""
        self.schedule.contacted()
        for ack in prefetch.missed(sent, answer.lost):
            self.prefetch.late.add(ack)
            logger.warning("queue %s: ack of %s came after its lease had ended", ack.queue, ack.id)
        for ack in prefetch.missed(sent, answer.unknown):
            self.prefetch.unknown.add(ack)
            logger.warning(
                "queue %s: ack of %s: no reply before its lease ended; it may or may not have been applied",
                ack.queue,
                ack.id,
            )

    # Upkeep

    def upkeep(self) -> Flow[Renewed]:
        """Do the work that is due: send acks, show the presence, renew leases. Returns as `renew`."""
        renewed = yield from self._renew_if_due()
        if renewed and self.heartbeat is not None:
            self.heartbeat.renewed()
        return renewed

    def _renew_if_due(self) -> Flow[Renewed]:
        if self.prefetch.has_acks or self.schedule.is_report_due((yield Now())):
            yield from self.report(prefetch.CONSUMER_TTL_MS)
        if not self.schedule.is_renewal_due((yield Now())):
            return {}
        renewed = yield from self.renew()
        self.schedule.renewed((yield Now()))
        return renewed

    def renew(self) -> Flow[Renewed]:
        """Renew all leases for their own lengths. Returns the number of renewed ones; nothing if idle.

        A renewal in the midst of a leap of the clock adds the leap, so that the lease outlasts it.
        """
        leases = self.prefetch.leases()
        if not leases:
            return {}
        for lease, group in leases.items():
            length = units.as_timedelta(min(lease + self._leap, MAX_DURATION))
            try:
                yield from settling.settle(self._keyspace, self.queue, "renew", group, length)
            except LeaseLost as lost:
                logger.warning("%s", lost)
        return {self.queue: sum(item.settled != LOST for group in leases.values() for item in group)}

    def prepare(self, leap: int) -> Flow[Renewed]:
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
            return {}

    def log_failure(self, error: Exception) -> None:
        """Log the failure of a turn. Later turns try again."""
        if isinstance(error, (*TEMPORARY, RqttlError)):
            # queue and server may come back; a later settle reports lost leases
            logger.warning("queue %s: could not renew leases: %s; trying again", self.queue, type(error).__name__)
        else:
            # a listener of events failed: without a renewer all leases would end
            logger.error("queue %s: renewing leases failed; trying again", self.queue, exc_info=error)

    def took(self, fetched: Sequence[D]) -> None:
        """Renew messages of a fetch early enough: these are the first ones, or the queue's `lease` has changed."""
        if not self.schedule.is_for(fetched[0].lease):
            self.follow_leases()

    def follow_leases(self) -> None:
        """Renew as often as the leases at hand ask for."""
        if self.schedule.follow(self.prefetch.leases().keys()):
            self._hurry()

    # Settling at once, and the end

    def settle(self, how: str, deliveries: Sequence[D], time: Duration | None, description: str | None) -> Flow[None]:
        """Settle deliveries; see `settling.settle`. Later turns renew leases for the length of the last renewal."""
        yield from settling.settle(self._keyspace, self.queue, how, deliveries, time, description)
        if how == "renew":
            length = lease_ms(time)
            if length is not None:
                for item in deliveries:
                    item.lease = length
            if self._leap:
                yield from self.renew()
            self.follow_leases()

    def release_unseen(self) -> Flow[None]:
        """Give back, uncounted, the deliveries that the iteration has not handed out."""
        unseen = self.prefetch.take_unseen()
        if not unseen:
            return
        try:
            yield from settling.settle(self._keyspace, self.queue, "release", unseen)
        except LeaseLost as lost:
            logger.info("%s", lost)
        except BaseException:
            self.prefetch.fetched.extend(unseen)  # for the next attempt
            raise

    def leave(self) -> Flow[None]:
        """Send all acks, give back the deliveries that were not handed out, and leave the queue."""
        try:
            yield from self.leave_queue()
        except TEMPORARY as error:
            if not is_away(error) or any(part.has_acks or part.fetched for part in self.parts.values()):
                raise
            logger.info("queue %s: the consumer left while Redis was away", self.queue)
        for name, part in self.parts.items():
            unsettled = sum(map(len, part.leases().values()))
            if unsettled:
                logger.warning(
                    "queue %s: the consumer ended with %d of its messages unsettled; "
                    "they come again when their leases end",
                    name,
                    unsettled,
                )

    def leave_queue(self, ticket: bytes = b"") -> Flow[None]:
        """Leave, without a word about it."""
        yield from self.report(leaves=True, ticket=ticket)
        yield from self.release_unseen()


class SharedSession(Session[D]):
    """A session of a consumer of several queues, which share its limit and its name."""

    def __init__(self, fast: Any, weights: Weights, limit: int, stop: Interrupt, hurry: Callable[[], None]) -> None:
        super().__init__(fast.keyspace, ", ".join(weights), limit, stop, hurry)
        self._of = {name: Session[D](self._keyspace, name, limit, Interrupt(), hurry, self._name) for name in weights}
        self.parts = {name: session.prefetch for name, session in self._of.items()}
        self.prefetch = SharedPrefetch(limit, self.parts)
        self._queues = Queues(fast)
        self._queues.follow(weights)
        self._fetches = self._seen = 0
        self._is_fetching = False

    def _each(self, call: Callable[[Session[D]], Flow[Any]], *, at_end: bool = False) -> Flow[Renewed]:
        """Perform a flow for each queue. A failure ends no other one but those on a node that is away.

        Queues of such a node rest; `at_end` only those without acks, and messages to give back.
        """
        renewed: Renewed = {}
        failure: Exception | None = None
        failed: dict[Any, Exception] = {}
        queues = self._queues
        for name in sorted(self._of, key=queues.is_away):
            part, node = self.parts[name], queues.node_of(name)
            is_idle = not (part.has_acks or part.fetched)
            if node in failed:
                failure = failure if is_idle else failed[node]
                continue
            settles = queues[name].forwards and (not is_idle or bool(part.leases()))
            if (queues[name].is_missing and not settles) or (
                is_idle and queues.is_away(name) if at_end else queues.rests(name)
            ):
                continue
            try:
                with nullcontext() if at_end else queues.sparing(name):
                    renewed.update((yield from call(self._of[name])) or {})
            except QueueNotFound as error:
                self._queues.miss(error, (yield Now()), logger)
            except (*TEMPORARY, RqttlError) as error:
                failure = error
                if is_away(error):
                    failed[node] = error
        if failure is not None:
            raise failure
        return renewed

    def enter(self, lease: int | None) -> Flow[None]:
        """See `Session`."""
        yield from self._each(lambda session: session.enter(lease))

    def next_turn(self, now: float) -> float:
        """See `Session`."""
        return min(session.next_turn(now) for session in self._of.values())

    def fetch(self, count: int, lease: int | None, wait: int, room: int) -> Flow[ReceiveResult | None]:
        """Send acks of a queue and take up to `count` of its messages. `None`: no queue has any. See `several.take`."""
        del room  # it waits only while no queue has a message
        self._fetches += 1
        self._is_fetching = True
        try:
            self._queues.begin()
            self._queues.hint((yield from with_wakeup(self._keyspace, self._queues.awaited)))
            return (yield from take(self._queues, partial(self._claim_of, lease), count, wait, self._wait))
        except BaseException:
            self._queues.look_again()  # perhaps Redis has forgotten who waits
            raise
        finally:
            self._is_fetching = False

    @property
    def _waits_in(self) -> list[str]:
        """See `Session`."""
        return self._queues.awaited

    def _look_again(self, queue: str) -> None:
        self._queues[queue].until = None
        super()._look_again(queue)

    def _claim_of(
        self, lease: int | None, queue: str, count: int, block: int, ticket: bytes
    ) -> Flow[ReceiveResult | QueueNotFound]:
        session, presence = self._of[queue], Presence(self._name, block, prefetch.CONSUMER_TTL_MS, ticket)
        try:
            claimed = yield from session.claim(lease, count, presence)
        except QueueNotFound as error:
            return error
        if block and not claimed.entries:
            session.schedule.begin_wait()
        else:
            session.schedule.end_wait()
        return claimed

    def _renew_if_due(self) -> Flow[Renewed]:
        """See `Session`. A handler that takes longer than a turn lets the consumer wait in no queue."""
        renewed = yield from self._each(lambda session: session.upkeep())
        if not self._is_fetching and self._fetches == self._seen:
            yield from self._each(self._withdraw)
        self._seen = self._fetches
        return renewed

    def _withdraw(self, session: Session[D]) -> Flow[None]:
        """Wait in a queue no more. Messages that were handed over meanwhile go back."""
        queue = self._queues[session.queue]
        if queue.is_awaited:
            queue.until, queue.is_awaited = None, False
            ticket = self._queues.ask(session.queue)[1]
            try:
                yield from self._claim_of(None, session.queue, 0, 0, ticket)
            except BaseException:
                self._queues.woken(session.queue, ticket)  # it may still be good
                raise

    def report(self, ttl: int = 0, *, leaves: bool = False, ticket: bytes = b"") -> Flow[None]:
        """See `Session`."""
        yield from self._each(lambda session: session.report(ttl, leaves=leaves, ticket=ticket), at_end=True)

    def prepare(self, leap: int) -> Flow[Renewed]:
        """See `Session`."""
        renewed = yield from self._each(lambda session: session.prepare(leap))
        if self.heartbeat is not None:
            yield from self.heartbeat.write(leap)
        return renewed

    def took(self, fetched: Sequence[D]) -> None:
        """See `Session`."""
        self._of[fetched[0].queue].took(fetched)

    def settle(self, how: str, deliveries: Sequence[D], time: Duration | None, description: str | None) -> Flow[None]:
        """See `Session`. All deliveries are of one queue."""
        return self._of[deliveries[0].queue].settle(how, deliveries, time, description)

    def release_unseen(self) -> Flow[None]:
        """See `Session`."""
        yield from self._each(lambda session: session.release_unseen())

    def leave_queue(self, ticket: bytes = b"") -> Flow[None]:
        """See `Session`."""
        del ticket  # each queue has its own
        yield from self._each(lambda session: session.leave_queue(self._queues.ask(session.queue)[1]), at_end=True)


def announce_renewal(events: Events, renewed: Renewed) -> None:
    """Tell listeners of events the number of renewed leases. Not under the lock: a listener may settle."""
    if events.notify is not None:
        for queue, number in renewed.items():
            events.notify(RenewalEvent(queue, number))


class ConsumerBase(ABC, Generic[D, R]):
    """A consumer without its calls. `R` is the answer of a settle: `None`, or an awaitable of it."""

    #: Settles the deliveries of this consumer.
    _settler: Settler[R]

    def __init__(
        self, fast: Any, queue: str | Weights, prefetch: int, lease: Duration | None, wait: Duration | None
    ) -> None:
        checks.whole(prefetch, "prefetch", 1, BATCH)
        self._lease = receive.lease_ms(lease)
        #: Ms for which the iteration waits for a message.
        self.wait = int(MAX_DURATION if wait is None else units.duration(wait, "wait"))
        #: Tells how many messages could be handled at once now.
        self.idle: Callable[[], int] = lambda: 1
        self._stop = Interrupt()
        self._session: Session[D]
        if isinstance(queue, str):
            self._session = Session(fast.keyspace, queue, prefetch, self._stop, self._hurry)
        else:
            self._session = SharedSession(fast, queue, prefetch, self._stop, self._hurry)
        #: The name of the consumed queue; of several their names, with commas.
        self.queue = self._session.queue
        self._prefetch = self._session.prefetch

        def details(now: int) -> dict[str, Any]:
            held = {name: part.in_flight(now) for name, part in self._session.parts.items()}
            out = {name: words for name, words in held.items() if words}
            return {"queues": list(held), "prefetch": self.prefetch, "held": out}

        self._session.heartbeat = self._heartbeat = Heartbeat(
            fast.keyspace, "consumer", details, self._prefetch.is_empty, self._session.look
        )

    @property
    def prefetch(self) -> int:
        """The number of unsettled messages up to which the consumer fetches. A change acts within a second."""
        return self._prefetch.limit

    @prefetch.setter
    def prefetch(self, limit: int) -> None:
        checks.whole(limit, "prefetch", 1, BATCH)
        for part in (self._prefetch, *self._session.parts.values()):
            part.limit = limit

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
        """The newest 1,000 ids of messages whose ack may or may not have been applied."""
        return list(self._prefetch.unknown.newest)

    @property
    def unknown_count(self) -> int:
        """The number of messages whose ack may or may not have been applied."""
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
        """Take a turn of the renewer now: leases have got shorter, or acks wait."""

    def _collect(self, deliveries: Sequence[D]) -> None:
        for item in deliveries:
            if item.settled is not None:
                item.check_unsettled()
            self._prefetch.finish(item)
        if self._session.again is not None:  # looked at here, since a call for each ack costs
            self._session.hurry_acks()

    # Fetching

    def _take(self, kind: type[D], claimed: ReceiveResult | None, since: float) -> bool:
        """Take over the messages of a fetch, which began at `since`. Returns False if there are none."""
        if claimed is None:
            return False
        fetched = delivery.delivered(kind, self._settler, claimed, self._lease)
        events = self._settler.events
        if events is not None:
            hook.received(events.observer, claimed.config.name, fetched, since)
        self._prefetch.add(fetched)
        if fetched:
            self._session.took(fetched)
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
        pause, self._pause = self._pause, doubled(self._pause)
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
