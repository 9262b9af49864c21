"""The driver: performs the steps of flows on one Redis server, synchronously.

A broker has one driver; its queues and consumers share it. The rest of the package, and the tests, get it from
`driver_of`. Users do not.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import redis

from rqttl import flows
from rqttl.errors import ContractError, InvalidInput, QueueNotFound, RegistryDamaged
from rqttl.events import Events
from rqttl.flows import Clock, Enter, Flow, Follow, Listen, Look, Read, Together
from rqttl.names import check_namespace
from rqttl.protocol import replies
from rqttl.protocol.commands import Command, Known
from rqttl.protocol.keys import Keyspace
from rqttl.runtime.interrupt import Interrupt
from rqttl.runtime.recent import Recent
from rqttl.store.store import Store
from rqttl.text import shown
from rqttl.units import Ms

if TYPE_CHECKING:
    from rqttl.broker import Broker
    from rqttl.queue import Queue

T = TypeVar("T")

logger = logging.getLogger("rqttl")

#: So many queues a client remembers. About any other it asks Redis again.
KNOWN = 10_000


def driver_of(owner: Broker | Queue) -> Driver:
    """The driver of a broker, or of the broker of a queue. Raises `InvalidInput` where it is neither."""
    driver = getattr(owner, "_driver", None)
    if not isinstance(driver, Driver):
        raise InvalidInput(f"broker: expected a Broker or a Queue, got {shown(owner)}")
    return driver


class Driver:
    """Performs flows for one namespace of one Redis server. Safe to share between threads."""

    def __init__(self, client: redis.Redis, namespace: str) -> None:
        self.keyspace = Keyspace(check_namespace(namespace))
        self.events = Events()
        self.store = Store(client, self.events)
        #: Ends what waits outside of Redis when the driver is closed.
        self.closed = Interrupt()
        #: The queues that were used last.
        self.known: Recent[Known] = Recent(KNOWN)

    def perform(self, flow: Flow[T]) -> T:
        """Carry out a flow: perform each step and send its answer back."""
        answer: Any = None
        try:
            while True:
                answer = self.step(flow.send(answer))
        except StopIteration as done:
            result: T = done.value
            return result
        except ContractError:
            self.store.connections.renew()  # it may have been the reply to another call
            raise

    def step(self, step: flows.Step) -> Any:
        """Carry out one step of a flow."""
        if type(step) is Command:
            return self.store.run(step)
        if type(step) is Look:
            return self._look(step)
        if type(step) is Together:
            return self.store.run_together(step.commands, tolerant=step.tolerant)
        if type(step) is Read:
            return self.store.read(step.calls)
        if type(step) is Clock:
            return int(time.monotonic() * 1000)
        if type(step) is Listen:
            for listener in self.events.on_waiting:
                listener(step.queue)
            return self.store.listen(step.queue, self.keyspace.key(step.queue, "wakeup"), step.ms, step.interrupt)
        if type(step) is Enter:
            return self._enter(step.queue, step.gone)
        if type(step) is Follow:
            return self._follow(step.notes)
        raise TypeError(f"not a step of a flow: {step!r}")

    def server_time(self) -> Ms:
        """The time by the clock of Redis."""
        seconds, micros = self.store.call(replies.moment, "TIME")
        return Ms(seconds * 1000 + micros // 1000)

    def members(self, key: str, page: int = 1000) -> set[bytes]:
        """All members of the registry, read in pages. Raises `RegistryDamaged` where it is no set."""
        found: set[bytes] = set()
        cursor = 0
        while True:
            try:
                cursor, some = self.store.call(replies.page, "SSCAN", key, cursor, "COUNT", page)
            except redis.ResponseError as error:
                if "WRONGTYPE" in str(error):
                    raise RegistryDamaged(key) from error
                raise
            found.update(some)
            if cursor == 0:
                return found

    def reaper_count(self) -> int:
        """The number of reapers that listen for due work."""
        channel = self.keyspace.due_channel
        counts = self.store.call(replies.pairs, "PUBSUB", "NUMSUB", channel)
        return int(counts[channel.encode()])

    def interrupt(self) -> None:
        """End every wait, in all threads and from now on. A signal handler may call it."""
        self.store.interrupt()

    def require_server(self, what: str) -> None:
        """Do nothing: a server is there that can do `what`. The driver of a fake broker raises."""

    def check_open(self) -> None:
        """Raise `BrokerClosed` after `close`."""
        self.store.check_open()

    def close(self) -> None:
        """Close the connections. Whoever waits, and whoever calls from now on, gets `BrokerClosed`."""
        self.store.close()
        self.closed.ask()

    def _enter(self, queue: str, gone: bool) -> Any:
        registry = self.keyspace.registry
        if gone:
            self.known.forget(queue)
            removed = self.store.call(replies.number, "SREM", registry, queue)
            if not self.store.call(replies.number, "EXISTS", self.keyspace.key(queue, "meta")):
                return removed
            # somebody has made it again after it ended and before it was taken out
        return self.store.call(replies.number, "SADD", registry, queue)

    def _follow(self, notes: Sequence[bytes]) -> None:
        """The caller's own call has succeeded and must not seem to have failed: what fails here is left to reapers."""
        for i in range(0, len(notes), 2):
            try:
                self.perform(flows.follow(notes[i : i + 2]))
            except QueueNotFound:
                continue  # deleted meanwhile, so there is nothing left to do
            except redis.RedisError as error:
                what, queue = (note.decode() for note in notes[i : i + 2])
                logger.warning("queue %s: %s was not followed up, a reaper will: %s", queue, what, error)

    def _look(self, step: Look) -> Known:
        if step.newest is not None:
            self.known.put(step.queue, step.newest)
            return step.newest
        known = None if step.fresh else self.known.get(step.queue)
        if known is None:
            try:
                known = self.perform(flows.known_options(self.keyspace, step.queue))
            except QueueNotFound:
                self.known.forget(step.queue)
                raise
            self.known.put(step.queue, known)
        return known
