"""The driver: it performs the steps of flows on Redis, for threads. It is not for users; see `driver_of`.

Scripts never use redis-py's own retries: Redis may have carried out a call whose reply was lost, and only the command
knows whether it may run again.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from copy import copy
from functools import partial
from types import GeneratorType
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

import redis
from redis.exceptions import ConnectionError, ResponseError, TimeoutError

from rqttl.checks import boolean, check_namespace
from rqttl.errors import BrokerClosed, ContractError, InvalidInput, PoolExhausted, QueueNotFound
from rqttl.events import Events, WaitEvent, timed
from rqttl.flows.queues import Memory
from rqttl.flows.steps import (
    Flow,
    HandleNotes,
    Now,
    Pipeline,
    Read,
    ReadEachNode,
    Rehearse,
    Sleep,
    Step,
    WaitForWakeup,
    Write,
    drive,
)
from rqttl.outages import Outages
from rqttl.protocol.commands import BriefCommand, Command, DiskCommand, ReplicaCommand, Reply, Word
from rqttl.protocol.keys import META, Keyspace
from rqttl.runtime.interrupt import Interrupt, Timing
from rqttl.store.addresses import Address
from rqttl.store.blocking import Listener
from rqttl.store.cluster import Cluster, Seeds, cluster_for_threads, patience_of, taken_over
from rqttl.store.connections import RedisNode, made_together
from rqttl.store.exchanges import FAIL_FAST, FAILURES, SOCKET_TIMEOUT, Exchanges, NotSent, explained, wait_outcome
from rqttl.store.sentinel import is_service
from rqttl.store.slot_waits import Pair, SlotWaits, by_slot
from rqttl.store.topology import Exchange, OneServer, Topology, Trip
from rqttl.text import format_value
from rqttl.types import Duration

if TYPE_CHECKING:
    from redis.client import PubSub

T = TypeVar("T")
#: The answer to a wait: lists with their elements, or why it has ended; see `Listener.listen` and `SlotWaits.wait`.
Woken = tuple[str, bytes] | list[Pair] | bytes | PoolExhausted | None


class Store:
    """Runs commands on Redis, each at the node of its key. Safe to share between threads."""

    def __init__(self, topology: Topology[RedisNode], keyspace: Keyspace, events: Events) -> None:
        #: Ends every `listen` from the moment at which it is asked.
        self.interrupted = Interrupt()
        self.topology = topology
        is_single = isinstance(topology, OneServer) and len(topology.nodes) == 1
        #: The one server, which need not be looked up.
        self.only = topology.nodes[0] if is_single else None
        self._listeners = WeakKeyDictionary[RedisNode, Listener]()
        self._events = events
        self.exchanges = Exchanges(topology, keyspace, events, Timing.seconds)
        #: False if a missing reply ends a call after one time-out of a node of a cluster.
        self.waits = True
        #: True if trips that fail fast have connections of their own, with shorter time-outs.
        self.rushes = not isinstance(topology, OneServer)

    def failing_fast(self, keyspace: Keyspace, patience: float, *, rushes: bool, looks: bool) -> Store:
        """The same store for a caller that leaves a node alone that does not answer at once."""
        fast = copy(self)
        fast.only = self.only and self.only.fast
        fast.exchanges = Exchanges(self.topology, keyspace, self._events, Timing.seconds)
        fast.exchanges.patience, fast.waits = patience, patience >= SOCKET_TIMEOUT
        fast.exchanges.looks, fast.rushes = looks, rushes
        return fast

    @property
    def address(self) -> Address:
        """Where the server is, or the first node that a cluster was asked at."""
        return self.topology.address if isinstance(self.topology, Cluster) else self.topology.nodes[0].address

    def run(self, command: Command) -> Reply:
        """See `Exchanges.run`."""
        if self._events.notify is not None or not self.topology.is_known:
            return drive(self.exchanges.run(command), self._perform)
        since = Timing.seconds()
        try:
            node = self.only or self.topology.node_of(command.words[1])
            return node.send_one(command, waits=self.waits)
        except FAILURES as error:
            again = self.exchanges.run(command, error, since)
        return drive(again, self._perform)  # outside of the handler: a later error has no part in this one

    def run_durable(self, command: Command) -> Reply:
        """The same for a command that Redis has to confirm."""
        since, first = Timing.seconds(), None
        if self._events.notify is None and self.topology.is_known:
            try:
                return self.topology.node_of(command.words[1]).send_durable(command, waits=self.waits)
            except FAILURES as error:
                first = error
        return drive(self.exchanges.run(command, first, since), self._perform)

    def read(self, step: Read) -> Any:
        """See `Exchanges.read`."""
        return drive(self.exchanges.read(step), self._perform)

    def performer(self, exchange: Callable[[Any], Exchange[T]]) -> Callable[[Any], T]:
        """The function that carries out an exchange for a step."""
        return lambda step: drive(exchange(step), self._perform)

    def listen(
        self,
        queues: Sequence[str],
        keys: Sequence[str],
        ms: int,
        interrupt: Interrupt | None = None,
        slot_waits: SlotWaits | None = None,
    ) -> Woken:
        """Wait for an element of one of the lists `keys` of queues; see `Listener`, and `SlotWaits` for several slots.

        Without `slot_waits`, which are kept for the next wait, the calls for several slots end with this one.
        """
        wait: Callable[[], Woken]
        if slot_waits or (len(keys) > 1 and not self.only and len(by_slot(self.topology, keys)) > 1):
            wait = partial(self._listen_slots, keys, ms, interrupt, slot_waits)
        else:
            node = self.topology.node_of(keys[0])
            listener = self._listeners.get(node) or self.listener_of(node)
            if self._events.notify is None:
                return listener.listen(keys, ms, interrupt)
            wait = partial(listener.listen, keys, ms, interrupt)
        if self._events.notify is None:
            return wait()
        with timed(self._events.notify, [("BLPOP", queues[0] if len(queues) == 1 else None)]) as outcomes:
            answer = wait()
            outcomes.append(wait_outcome(answer))
        return answer

    def _listen_slots(self, keys: Sequence[str], ms: int, interrupt: Interrupt | None, kept: SlotWaits | None) -> Woken:
        slot_waits, last = self.slot_waits() if kept is None else kept, list[Pair]()
        woken: Woken
        try:
            woken = slot_waits.wait(keys, ms, (self.interrupted, interrupt or self.interrupted))
        except PoolExhausted as error:
            woken = error
        finally:
            if slot_waits is not kept:
                last = slot_waits.end()
        if woken is None or isinstance(woken, list):
            return [*(woken or ()), *last]
        return [pair for pair in last if pair[1]] or woken  # the last look of the caller makes up for hints

    def slot_waits(self) -> SlotWaits:
        """Waits of one thread whose calls for several slots stay pending between them."""
        return SlotWaits(self.topology, self.listener_of, self.read)

    def listener_of(self, node: RedisNode) -> Listener:
        """The waits at one node."""
        return self._listeners.setdefault(node, Listener(node.connections, self.interrupted))

    def rehearse(self, calls: Sequence[Sequence[Word]]) -> list[ResponseError | None]:
        """See `RedisNode.rehearse`. Any node can tell."""
        *others, last = self.topology.nodes
        for node in others:
            with suppress(NotSent, ConnectionError, TimeoutError):
                return node.rehearse(calls)
        return last.rehearse(calls)

    def subscription(self) -> PubSub:
        """A subscription of redis-py to channels, on any node."""
        return random.choice(self.topology.nodes).subscription()  # each has all messages, and one may be away

    def renew(self) -> None:
        """Close all free connections: one of them may have an unread reply."""
        for node in self.topology.made:
            node.leave()

    def close(self) -> None:
        """Close all free connections now, and each connection in use after its call."""
        for node in self.topology.made:
            node.close()
        self.interrupted.ask()
        for listener in list(self._listeners.values()):
            listener.close()

    def _perform(self, step: Trip | list[Trip] | float) -> Any:
        if isinstance(step, Trip):
            if self.exchanges.looks or (step.fails_fast and self.rushes):
                return (step.node.fast or step.node).round_trip(step.calls, waits=False)
            return step.node.round_trip(step.calls, waits=self.waits and not step.brief)
        if isinstance(step, list):
            if self.exchanges.looks:
                step = [trip._replace(node=trip.node.fast or trip.node) for trip in step]
            return made_together(step, waits=self.waits)
        return time.sleep(step)


class Waiter(Timing):
    """A `Timing` that waits for wake-ups as well."""

    def wait(self, store: Store, keys: Sequence[str], step: WaitForWakeup) -> Woken:
        """Wait for an element of one of the lists `keys`, as `step` says. See `Store.listen`."""
        if not step.exact:
            return store.listen(step.queues, keys, step.ms, step.interrupt, step.slot_waits)
        ends = self.now() + step.ms
        ms, interrupt = step.in_redis, step.interrupt
        woken = store.listen(step.queues, keys, ms, interrupt, step.slot_waits) if ms else None
        if woken is None:
            self.pause(interrupt or store.interrupted, lambda: ends - self.now())
        return woken


def driver_of(owner: object) -> RedisDriver:
    """The driver of a broker or of a queue. Raises `InvalidInput` for anything else."""
    driver = getattr(owner, "_driver", None)
    if not isinstance(driver, RedisDriver):
        raise InvalidInput(f"broker: expected a Broker or a Queue, got {format_value(owner)}")
    return driver


class RedisDriver:
    """Performs flows for one namespace. Safe to share between threads."""

    def __init__(
        self,
        client: redis.Redis | redis.RedisCluster | Seeds,
        namespace: str,
        timing: Waiter | None = None,
        topology: Topology[RedisNode] | None = None,
        *,
        patience: Duration | None = None,
        slotted: bool = False,
    ) -> None:
        used = taken_over(client)
        self.keyspace = Keyspace(check_namespace(namespace), boolean(slotted, "slotted") or isinstance(used, Seeds))
        self.events = Events()
        if topology is None:
            topology = cluster_for_threads(used) if isinstance(used, Seeds) else OneServer(RedisNode(used))
        #: The nodes that are away, for a driver that fails fast: then queues of other nodes go on.
        self.outages: Outages | None = None
        self.store = Store(topology, self.keyspace, self.events)
        self.store.exchanges.patience = patience_of(used, patience)
        self.store.exchanges.is_service = is_service(used)
        #: The clock and the waiter of this driver.
        self.timing = timing or Waiter()
        #: The interrupt that ends each wait outside of Redis when the driver is closed.
        self.closed = Interrupt()
        self.memory = Memory(self.keyspace)
        self.configs = self.memory.configs
        self.use(self.store)

    def use(self, store: Store) -> None:
        """Perform steps on this store from now on."""
        self.store = store
        self._answers: dict[type, Callable[[Any], Any]] = {
            **self.memory.answers,
            **dict.fromkeys((ReplicaCommand, DiskCommand), store.run_durable),
            BriefCommand: store.performer(store.exchanges.run),
            Pipeline: store.performer(store.exchanges.run_together),
            **dict.fromkeys((Read, Write), store.read),
            ReadEachNode: store.performer(store.exchanges.read_each_node),
            Rehearse: lambda step: store.rehearse(step.calls),
            Now: lambda _: self.timing.now(),
            Sleep: lambda step: self.timing.sleep(step.ms / 1000),
            WaitForWakeup: self._wait,
            HandleNotes: self._follow,
        }

    def failing_fast(
        self, patience: float = FAIL_FAST, *, rushes: bool = False, looks: bool = False, reply: float | None = None
    ) -> RedisDriver:
        """The same driver for a loop that serves the queues of several nodes: one that is away must not hold it up.

        One server that is away holds up all, unless `reply` says how many seconds a reply may take.
        """
        if isinstance(self.store.topology, OneServer):
            if reply is None:
                return self
            self.store.topology.node.open_fast(reply)
        fast = copy(self)
        fast.use(self.store.failing_fast(self.keyspace, patience, rushes=rushes, looks=looks))
        usual = self.store.exchanges.patience or 0
        fast.outages = Outages(self.store.topology, self.timing.now, logging.getLogger("rqttl.consumer"), usual)
        return fast

    def perform(self, flow: Flow[T]) -> T:
        """See `Driver`."""
        try:
            return drive(flow, self.step)
        except QueueNotFound as error:
            error.namespace = self.keyspace.namespace
            raise
        except ContractError:
            self.store.renew()  # the reply may have been one to another call
            raise
        except ResponseError as error:
            raise explained(error) from error.__cause__

    def step(self, step: Step) -> Any:
        """Perform one step of a flow. Returns its answer."""
        if type(step) is Command:
            return self.store.run(step)
        try:
            answer = self._answers[type(step)]
        except KeyError:
            raise TypeError(f"not a step of a flow: {step!r}") from None
        result = answer(step)
        return self.perform(result) if type(result) is GeneratorType else result

    def _follow(self, step: HandleNotes) -> None:
        """Follow notes. The call that asked for it is done, so its caller waits for no node that is away."""
        fast = self.failing_fast(rushes=self.store.rushes)
        fast.perform(self.memory.answers[HandleNotes](step))

    def _wait(self, step: WaitForWakeup) -> Any:
        if self.events.notify is not None:
            for queue in step.queues:
                self.events.notify(WaitEvent(queue))
        keys = step.keys(self.keyspace)
        woken = self.timing.wait(self.store, list(keys), step)
        if isinstance(woken, tuple):
            return keys[woken[0]], woken[1]
        return self.keyspace.woken(woken) if isinstance(woken, list) else woken

    def node_of(self, queue: str) -> Hashable:
        """See `Driver`."""
        return self.store.topology.node_of(self.keyspace.key(queue, META))

    def name_of(self, node: Any) -> str:
        """See `Topology`."""
        return self.store.topology.name_of(node)

    @property
    def shared_node(self) -> Hashable:
        """The node of registry, policies and roster."""
        return self.store.topology.node_of(self.keyspace.registry)

    def interrupt(self) -> None:
        """End every wait, in all threads and from now on. It takes no lock, so a signal handler may call it."""
        self.store.interrupted.ask()

    def check_open(self) -> None:
        """Raise `BrokerClosed` after `close`."""
        if self.closed.asked():
            raise BrokerClosed

    def close(self) -> None:
        """Close the connections. Waiting calls and all later calls raise `BrokerClosed`."""
        self.store.close()
        self.closed.ask()
