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
from rqttl._interrupt import Interrupt
from rqttl._redis import Store
from rqttl.commands import Command, Known
from rqttl.errors import InvalidInput, QueueNotFound, RegistryDamaged
from rqttl.events import Events
from rqttl.flows import Clock, Enter, Flow, Follow, Listen, Look, Read, Together
from rqttl.keys import Keyspace, check_namespace
from rqttl.text import shown
from rqttl.units import Ms

if TYPE_CHECKING:
    from rqttl.broker import Broker
    from rqttl.queue import Queue

T = TypeVar("T")

logger = logging.getLogger("rqttl")


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
        self._known: dict[str, Known] = {}

    def perform(self, flow: Flow[T]) -> T:
        """Carry out a flow: perform each step and send its answer back."""
        answer: Any = None
        try:
            while True:
                answer = self.step(flow.send(answer))
        except StopIteration as done:
            result: T = done.value
            return result

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
            return self.store.listen(step.queue, self.keyspace.key(step.queue, "bell"), step.ms, step.interrupt)
        if type(step) is Enter:
            return self._enter(step.queue, step.gone)
        if type(step) is Follow:
            return self._follow(step.notes)
        raise TypeError(f"not a step of a flow: {step!r}")

    def server_time(self) -> Ms:
        """The time by the clock of Redis."""
        seconds, micros = self.store.run_plain("TIME", lambda client: client.time())
        return Ms(seconds * 1000 + micros // 1000)

    def members(self, key: str, page: int = 1000) -> set[bytes]:
        """All members of the registry, read in pages. Raises `RegistryDamaged` where it is no set."""
        found: set[bytes] = set()
        cursor: bytes | int = 0
        while True:
            (answer,) = self.store.read([("SSCAN", key, cursor, "COUNT", page)])
            if isinstance(answer, Exception):
                raise RegistryDamaged(key)
            cursor, some = answer
            found.update(some)
            if int(cursor) == 0:
                return found

    def reapers(self) -> int:
        """The number of reapers that listen for due work."""
        found: Any = self.store.run_plain(
            "PUBSUB NUMSUB", lambda client: client.pubsub_numsub(self.keyspace.due_channel)
        )
        return int(found[0][1])

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
            self._known.pop(queue, None)
            removed = self.store.run_plain("SREM", lambda c: c.srem(registry, queue))
            if not self.store.run_plain("EXISTS", lambda c: c.exists(self.keyspace.key(queue, "meta"))):
                return removed
            # somebody has made it again after it ended and before it was taken out
        return self.store.run_plain("SADD", lambda c: c.sadd(registry, queue))

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
            self._known[step.queue] = step.newest
            return step.newest
        known = None if step.fresh else self._known.get(step.queue)
        if known is None:
            try:
                known = self.perform(flows.known_options(self.keyspace, step.queue))
            except QueueNotFound:
                self._known.pop(step.queue, None)
                raise
            self._known[step.queue] = known
        return known
