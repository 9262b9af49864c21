"""The queues of a worker: claims, leases, acks and settlements. All calls of a worker to a node share one lock."""

from __future__ import annotations

import logging
import math
import secrets
import threading
from collections import defaultdict, deque
from collections.abc import Hashable
from contextlib import suppress
from functools import partial
from time import perf_counter
from typing import TypeVar

from redis.exceptions import RedisError

from rqttl import delivery, units
from rqttl import events as hook
from rqttl.consuming import settling
from rqttl.consuming.base import Session, announce_renewal
from rqttl.consuming.consumer import Renewer, Sender
from rqttl.consuming.heartbeat import Heartbeat
from rqttl.consuming.prefetch import CONSUMER_TTL_MS, LONGEST_REST, Missed
from rqttl.delivery import LEFT, LOST, UNKNOWN, Delivered, Delivery, Settlement, Settler
from rqttl.errors import BrokerClosed, LeaseLost, OutcomeUnknown, QueueNotFound, RqttlError
from rqttl.flows.steps import Flow, Recent
from rqttl.outages import TEMPORARY, Outages, is_away
from rqttl.protocol import codec
from rqttl.protocol.commands import BATCH, Presence
from rqttl.runtime.interrupt import Interrupt
from rqttl.store.driver import RedisDriver
from rqttl.worker.health import Counters

T = TypeVar("T")

logger = logging.getLogger("rqttl.worker")

#: The number of finished messages that a worker remembers because their acks came too late.
REMEMBERED = 10_000


class _Late(Missed):
    """Acks that came too late or whose outcome is unknown. The worker remembers the finished messages."""

    def __init__(self, how: str, source: QueueSource) -> None:
        super().__init__(how)
        self._source = source

    def add(self, item: Delivered) -> None:
        """See `Missed`."""
        super().add(item)
        self._source.finished.put(item.sequence, item.checksum())
        self._source.count_lost()


class QueueSource:
    """One queue of a worker. Safe to share between its threads."""

    def __init__(self, sources: Sources, queue: str) -> None:
        self.queue = queue
        self._sources, self._driver = sources, sources.driver
        self._lock = threading.Lock()
        self._session = Session[Delivery](self._driver.keyspace, queue, BATCH, Interrupt(), self._hurry, sources.name)
        self._prefetch, self.schedule = self._session.prefetch, self._session.schedule
        #: The checksums of the newest finished messages whose acks came too late, by sequence. After a failover that
        #: loses writes, another message may get a sequence again.
        self.finished = Recent[int](REMEMBERED)
        self._prefetch.late, self._prefetch.unknown = _Late(LOST, self), _Late(UNKNOWN, self)
        self._settler: Settler[None] = Settler(lambda *_: None, self._driver.events)  # children settle
        self._server_ahead = 0
        self._pending: deque[tuple[Delivery, Settlement]] = deque()
        self._has_returned = False
        #: True while a `rate` says when the next message may go.
        self.is_paced = False
        #: True if the last turn failed.
        self.has_failed = False
        self.schedule.renewed(self._driver.timing.now())

    @property
    def node(self) -> Hashable:
        """The node of the queue. It changes when the slot of the queue moves in a cluster."""
        return self._driver.node_of(self.queue)

    def _hurry(self) -> None:
        self._sources.renewer_of(self.node).notify()

    def _perform(self, flow: Flow[T]) -> T:
        with self._lock:  # the queue may change its node meanwhile
            return Sender(self._driver, self._sources.locks[self.node]).perform(flow)

    def count_lost(self, number: int = 1) -> None:
        """Count messages whose lease had ended before their outcome was stored."""
        self._sources.counters.settled(self.queue, "lost", number)

    # Claims

    def claim(self, count: int, block: int, ticket: bytes = b"") -> tuple[list[Delivery], float | None]:
        """Send acks and take up to `count` messages. Below that the worker is noted as waiting for `block` ms.

        Messages that handlers of this worker have finished are acked once more, and not handed out. Returns also the ms
        until the next due work, which may never come; `None` if the queue may have more messages.
        """
        self._sources.asked, lease, since = self.node, self._sources.lease, perf_counter()
        presence = Presence(self._sources.name, block, CONSUMER_TTL_MS, ticket, count)
        claimed = self._perform(self._session.claim(lease, count, presence))
        fetched = delivery.delivered(Delivery, self._settler, claimed, lease)
        hook.received(self._driver.events.observer, self.queue, fetched, since)
        self._prefetch.room()  # this forgets the settled deliveries
        self._prefetch.add(fetched)
        self._prefetch.take_unseen()
        self.is_paced = claimed.config.paced
        self._server_ahead = claimed.now - self._driver.timing.now()
        self._session.follow_leases()
        if block and len(fetched) < count:
            self.schedule.begin_wait()
        else:
            self.schedule.end_wait()
        due: float | None = None
        if len(fetched) < count and not claimed.more:
            due = math.inf if claimed.due is None else max(1, claimed.due - claimed.now)
        if self.finished:
            for item in fetched:
                if item.delivery_count > 1 and self.finished.get(item.sequence) == item.checksum():
                    self.finish(item)
            fetched = [item for item in fetched if item.settled is None]
        return fetched, due

    def withdraw(self) -> None:
        """Wait no more. Take no message."""
        self._sources.asked = self.node
        with suppress(QueueNotFound):
            self._perform(self._session.claim(1, 0, Presence(self._sources.name, 0, CONSUMER_TTL_MS)))
        self.schedule.end_wait()

    def age(self, item: Delivery) -> float:
        """Return the seconds since a message came into the queue, by the clock of Redis."""
        now = self._driver.timing.now() + self._server_ahead
        return (now - codec.enqueued_at(item.entry_id)) / 1000

    # Settlements

    def finish(self, item: Delivery) -> None:
        """Collect an ack for the next claim. The renewer sends it if no claim is to come soon."""
        if item.settled == LOST:
            self._prefetch.late.add(item)
            return
        self._prefetch.finish(item)
        if not self._sources.takes_acks:
            self._hurry()

    def settle(self, item: Delivery, settlement: Settlement) -> None:
        """Collect a settlement other than an ack. The renewer carries it out at once."""
        self._pending.append((item, settlement))
        self._hurry()

    def has_returned(self) -> bool:
        """Return True while settlements wait, and once after they were carried out: messages may be ready again."""
        waits = bool(self._pending)
        returned, self._has_returned = waits or self._has_returned, waits
        return returned

    def prolong(self, item: Delivery, lease: int) -> None:
        """Give a lease another length from now on."""
        item.lease = lease
        self._session.follow_leases()
        self.schedule.renewed(float("-inf"))
        self._hurry()

    @property
    def is_urgent(self) -> bool:
        """True if a settlement waits, or an ack that no claim takes along. After a failure they wait for a turn."""
        waits = bool(self._pending) or (self.has_acks and not self._sources.takes_acks)
        return waits and not self.has_failed

    @property
    def has_acks(self) -> bool:
        """True if acks wait for a call that sends them."""
        return self._prefetch.has_acks

    @property
    def has_work(self) -> bool:
        """True if acks or settlements wait, or messages are out."""
        return bool(self._pending) or self._prefetch.has_acks or bool(self._prefetch.leases())

    def settle_pending(self) -> None:
        """Carry out the collected settlements. If Redis is away they stay collected."""
        batch = list(self._pending)  # they stay there meanwhile: `has_returned` must not overlook them
        groups: dict[Settlement, list[Delivery]] = {}
        for item, settlement in batch:
            if item.settled is None:
                groups.setdefault(settlement, []).append(item)
            elif item.settled == LOST:
                self.count_lost()
        rest = list(groups.items())
        try:
            while rest:
                self._settle(*rest[0])
                del rest[0]
        finally:
            self._pending.extend((item, settlement) for settlement, items in rest for item in items)
            if batch:
                self._has_returned = True
            for _ in batch:
                self._pending.popleft()

    def _settle(self, settlement: Settlement, items: list[Delivery]) -> None:
        how, delay, description = settlement
        time = None if delay is None else units.as_timedelta(delay)
        flow = settling.settle(self._driver.keyspace, self.queue, how, items, time, description)
        try:
            self._perform(flow)
        except (LeaseLost, OutcomeUnknown) as error:
            logger.warning("%s", error)
            self.count_lost(sum(item.settled in (LOST, UNKNOWN) for item in items))
        except (*TEMPORARY, RqttlError) as error:
            if is_away(error):
                raise
            words = "queue %s: could not settle %d messages (%s); they come again when their leases end"
            logger.warning(words, self.queue, len(items), error)
            for item in items:
                item.settled = LEFT

    # Upkeep

    def take_turn(self) -> None:
        """Settle, renew leases, send waiting acks, and show the presence of the worker, as far as it is due."""
        had_failed, self.has_failed = self.has_failed, False
        self.settle_pending()
        renewed = self._perform(self._session.upkeep())
        if had_failed:  # another turn may have made no call
            self._sources.answered(self.node)
        if renewed:
            self._sources.heartbeat.renewed()
        announce_renewal(self._driver.events, renewed)

    def in_flight(self, now: int) -> object:
        """Return what the roster says of the messages that are out; see `Prefetch`."""
        return self._prefetch.in_flight(now)

    def close(self) -> None:
        """Settle what is left, send all acks, and leave the queue."""
        self.settle_pending()
        self._perform(self._session.report(leaves=True))


class Sources(dict[str, QueueSource]):
    """The sources of all queues of a worker, which are made when they are asked for.

    A thread takes turns for those of a node, at a third of the shortest lease and once in a second at least, until
    `close`. That of the node with the roster shows that the worker lives, too.
    """

    def __init__(self, driver: RedisDriver, lease: int | None, counters: Counters, heartbeat: Heartbeat) -> None:
        super().__init__()
        self.driver, self.lease, self.counters = driver, lease, counters
        #: The name of the worker among the consumers of each queue.
        self.name = secrets.token_hex(8)
        #: Held by each call to a node.
        self.locks: defaultdict[Hashable, threading.Lock] = defaultdict(threading.Lock)
        #: False while no claim is to come soon that takes acks along.
        self.takes_acks = True
        #: The nodes that are away, for the fetcher and all renewers.
        self.outages = Outages(driver.store.topology, driver.timing.now, logger)
        self.heartbeat = heartbeat
        #: The node of the last call of the fetcher.
        self.asked: Hashable = self.shared
        self.renewers: dict[Hashable, Renewer] = {}
        self._lock = threading.Lock()

    def __missing__(self, queue: str) -> QueueSource:
        self[queue] = source = QueueSource(self, queue)
        return source

    @property
    def shared(self) -> Hashable:
        """The node of registry and roster."""
        return self.driver.shared_node

    def renewer_of(self, node: Hashable) -> Renewer:
        """Return the thread of a node. It begins with the first one."""
        with self._lock:
            if node not in self.renewers:
                turn, timing = partial(self.take_turns, node), self.driver.timing
                renewer = Renewer(timing, "rqttl-renewer", partial(self.pause, node), turn)
                if any(other.is_alive() for other in self.renewers.values()):
                    renewer.start()
                self.renewers[node] = renewer
            return self.renewers[node]

    @property
    def renewer(self) -> Renewer:
        """The thread of the node of registry and roster, which the first call to a cluster may change."""
        return self.renewer_of(self.shared)

    @property
    def is_away(self) -> bool:
        """True while no node answers."""
        return bool(self.outages) and self.outages.keys() >= {source.node for source in list(self.values())}

    def answered(self, node: Hashable) -> None:
        """End the outage of a node."""
        self.counters.reconnects += self.outages.answered(node)

    def close(self) -> None:
        """Take no further turn, and leave all queues."""
        for renewer in list(self.renewers.values()):
            renewer.close()
        for source in list(self.values()):
            try:
                source.close()
            except QueueNotFound:
                logger.debug("queue %s no longer exists", source.queue)
            except (RedisError, RqttlError) as error:
                level = logging.WARNING if source.has_work else logging.DEBUG
                text = "queue %s: could not send acks or give messages back: %s"
                logger.log(level, text, source.queue, error)

    def pause(self, node: Hashable) -> float:
        """Return the ms until the next turn at a node."""
        if rest := self.outages.rests(node):
            return rest
        now, pause = self.driver.timing.now(), float(LONGEST_REST)
        for source in [source for source in list(self.values()) if source.node == node]:
            pause = min(pause, 0.0 if source.is_urgent else source.schedule.next_turn(now))
        return max(0.0, min(pause, self.heartbeat.ms_left(now)) if node == self.shared else pause)

    def take_turns(self, node: Hashable) -> None:
        """Take a turn for each queue of a node."""
        nodes = {self.shared, *(source.node for source in list(self.values()))}
        for other in nodes:
            self.renewer_of(other)  # a slot may have moved to a new node
        if node not in nodes:
            self._forget(node)
        for source in [source for source in list(self.values()) if source.node == node]:
            try:
                source.take_turn()
            except BrokerClosed:
                raise
            except (RedisError, RqttlError) as error:
                # the next turn tries again: queue and server may come back; a later settle reports lost leases
                if source.has_work and not isinstance(error, QueueNotFound) and node not in self.outages:
                    words = "queue %s: could not renew leases or settle: %s; trying again"
                    logger.warning(words, source.queue, type(error).__name__)
                source.has_failed = True
                if is_away(error):
                    self.outages.failed(node, error)
                    return  # all these queues are on this node
        if node == self.shared:
            try:
                with self.locks[node]:  # so a second connection is not needed
                    self.driver.perform(self.heartbeat.beat())
            except (RedisError, RqttlError) as error:
                logger.info("the worker's heartbeat is late: %s", error)

    def _forget(self, node: Hashable) -> None:
        """End the outage of a node without queues, and the thread of one that the cluster has no longer."""
        self.outages.pop(node, None)
        if node not in self.driver.store.topology.nodes:
            with self._lock:
                self.renewers.pop(node).closed.ask()
            self.locks.pop(node, None)
