"""The driver: it performs the steps of flows on Redis, for threads. It is not for users; see `driver_of`.

Scripts never use redis-py's own retries: Redis may have carried out a call whose reply was lost, and only the command
knows whether it may run again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from types import GeneratorType
from typing import TYPE_CHECKING, Any, TypeVar

import redis
from redis.exceptions import ResponseError

from rqttl.checks import check_namespace
from rqttl.errors import BrokerClosed, ContractError, InvalidInput, PoolExhausted, QueueNotFound
from rqttl.events import Events, WaitEvent, timed
from rqttl.flows.queues import Memory
from rqttl.flows.steps import (
    Flow,
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
from rqttl.protocol.commands import Command, Reply, Word
from rqttl.protocol.keys import META, Keyspace
from rqttl.runtime.interrupt import Interrupt, Timing
from rqttl.store.blocking import Listener
from rqttl.store.connections import Address, RedisNode, made_together
from rqttl.store.exchanges import FAILURES, Exchanges, wait_outcome
from rqttl.store.topology import OneServer, Topology, Trip
from rqttl.text import format_value

if TYPE_CHECKING:
    from redis.client import PubSub

T = TypeVar("T")
#: The answer to a wait: the list with its element, or why it has ended; see `Listener.listen`.
Woken = tuple[str, bytes] | bytes | PoolExhausted | None


class Store:
    """Runs commands on Redis, each at the node of its key. Safe to share between threads."""

    def __init__(self, topology: Topology[RedisNode], keyspace: Keyspace, events: Events) -> None:
        #: Ends every `listen` from the moment at which it is asked.
        self.interrupted = Interrupt()
        self.topology = topology
        self._only = topology.nodes[0] if isinstance(topology, OneServer) else None  # it need not be looked up
        self._listeners = {node: Listener(node.connections, self.interrupted) for node in topology.nodes}
        self._events = events
        self.exchanges = Exchanges(topology, keyspace, events, time.monotonic)

    @property
    def address(self) -> Address:
        """Where the server is."""
        return self.topology.nodes[0].address

    def run(self, command: Command) -> Reply:
        """See `Exchanges.run`."""
        if self._events.notify is not None:
            return drive(self.exchanges.run(command), self._perform)
        since = time.monotonic()
        try:
            return (self._only or self.topology.node_of(command.words[1])).send_one(command)
        except FAILURES as error:
            again = self.exchanges.run(command, error, since)
        return drive(again, self._perform)  # outside of the handler: a later error has no part in this one

    def run_together(self, commands: Sequence[Command]) -> list[Reply]:
        """Run commands in one round trip; see `Exchanges.run_together`."""
        return drive(self.exchanges.run_together(commands), self._perform)

    def read(self, step: Read) -> Any:
        """See `Exchanges.read`."""
        return drive(self.exchanges.read(step), self._perform)

    def read_each_node(self, step: ReadEachNode) -> Mapping[Any, list[Any]]:
        """See `Exchanges.read_each_node`."""
        return drive(self.exchanges.read_each_node(step), self._perform)

    def explained(self, error: ResponseError) -> Exception:
        """See `Exchanges.explained`."""
        return drive(self.exchanges.explained(error), self._perform)

    def listen(
        self, queues: Sequence[str], keys: Sequence[str], ms: int, interrupt: Interrupt | None = None
    ) -> tuple[str, bytes] | bytes | PoolExhausted | None:
        """Wait for an element of one of the lists `keys` of queues; see `Listener`."""
        listener = self._listeners[self.topology.node_of(keys[0])]
        if self._events.notify is None:
            return listener.listen(keys, ms, interrupt)
        with timed(self._events.notify, [("BLPOP", queues[0] if len(queues) == 1 else None)]) as outcomes:
            answer = listener.listen(keys, ms, interrupt)
            outcomes.append(wait_outcome(answer))
        return answer

    def rehearse(self, calls: Sequence[Sequence[Word]]) -> list[ResponseError | None]:
        """See `RedisNode.rehearse`."""
        return self.topology.nodes[0].rehearse(calls)

    def subscription(self) -> PubSub:
        """A subscription of redis-py to channels, on any node."""
        return self.topology.nodes[0].subscription()

    def renew(self) -> None:
        """Close all free connections: one of them may have an unread reply."""
        for node in self.topology.nodes:
            node.leave()

    def close(self) -> None:
        """Close all free connections now, and each connection in use after its call."""
        for node in self.topology.nodes:
            node.close()
        self.interrupted.ask()
        for listener in self._listeners.values():
            listener.close()

    def _perform(self, step: Trip | list[Trip] | float) -> Any:
        if isinstance(step, Trip):
            return step.node.round_trip(step.calls)
        return made_together(step) if isinstance(step, list) else time.sleep(step)


class Waiter(Timing):
    """A `Timing` that waits for wake-ups as well."""

    def wait(self, store: Store, keys: Sequence[str], step: WaitForWakeup) -> Woken:
        """Wait for an element of one of the lists `keys`, as `step` says. See `Store.listen`."""
        if not step.exact:
            return store.listen(step.queues, keys, step.ms, step.interrupt)
        ends = self.now() + step.ms
        woken = store.listen(step.queues, keys, step.in_redis, step.interrupt) if step.in_redis else None
        if woken is None:
            self.pause(step.interrupt or store.interrupted, lambda: ends - self.now())
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
        client: redis.Redis,
        namespace: str,
        timing: Waiter | None = None,
        topology: Topology[RedisNode] | None = None,
    ) -> None:
        self.keyspace = Keyspace(check_namespace(namespace))
        self.events = Events()
        self.store = Store(topology or OneServer(RedisNode(client)), self.keyspace, self.events)
        #: The clock and the waiter of this driver.
        self.timing = timing or Waiter()
        #: The interrupt that ends each wait outside of Redis when the driver is closed.
        self.closed = Interrupt()
        self.memory = Memory(self.keyspace)
        self.configs = self.memory.configs
        self._answers: dict[type, Callable[[Any], Any]] = {
            **self.memory.answers,
            Pipeline: self._pipeline,
            Read: self.store.read,
            Write: self.store.read,
            ReadEachNode: self.store.read_each_node,
            Rehearse: self._rehearse,
            Now: self._now,
            Sleep: self._sleep,
            WaitForWakeup: self._wait,
        }

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
            raise self.store.explained(error) from error.__cause__

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

    def _pipeline(self, step: Pipeline) -> list[Reply]:
        return self.store.run_together(step.commands)

    def _rehearse(self, step: Rehearse) -> list[ResponseError | None]:
        return self.store.rehearse(step.calls)

    def _now(self, _: Now) -> int:
        return self.timing.now()

    def _sleep(self, step: Sleep) -> None:
        self.timing.sleep(step.ms / 1000)

    def _wait(self, step: WaitForWakeup) -> Any:
        if self.events.notify is not None:
            for queue in step.queues:
                self.events.notify(WaitEvent(queue))
        keys = step.keys(self.keyspace)
        woken = self.timing.wait(self.store, list(keys), step)
        return (keys[woken[0]], woken[1]) if isinstance(woken, tuple) else woken

    def node_of(self, queue: str) -> Hashable:
        """See `Driver`."""
        return self.store.topology.node_of(self.keyspace.key(queue, META))

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
