"""The driver: performs the steps of flows on one Redis server, synchronously.

A broker has one driver; its queues and consumers share it. The rest of the package, and the tests, get it from
`driver_of`. Users do not.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import redis

from rqttl import flows
from rqttl.errors import ContractError, InvalidInput, QueueNotFound
from rqttl.events import Events, WaitEvent
from rqttl.flows import Flow, GetConfig, HandleNotes, Now, Pipeline, Read, Register, Unregister, WaitForWakeup, Write
from rqttl.names import check_namespace
from rqttl.protocol.commands import Command, QueueConfig
from rqttl.protocol.keys import Keyspace
from rqttl.runtime.interrupt import Interrupt
from rqttl.runtime.recent import Recent
from rqttl.store.store import Store
from rqttl.store.timing import RealWaiter, Waiter
from rqttl.text import format_value

T = TypeVar("T")

logger = logging.getLogger("rqttl")

#: So many queues a client remembers. About any other it asks Redis again.
KNOWN = 10_000


def driver_of(owner: object) -> RedisDriver:
    """The driver of a broker or of a queue. Raises `InvalidInput` for anything else."""
    driver = getattr(owner, "_driver", None)
    if not isinstance(driver, RedisDriver):
        raise InvalidInput(f"broker: expected a Broker or a Queue, got {format_value(owner)}")
    return driver


class RedisDriver:
    """Performs flows for one namespace of one Redis server. Safe to share between threads."""

    def __init__(self, client: redis.Redis, namespace: str, timing: Waiter | None = None) -> None:
        self.keyspace = Keyspace(check_namespace(namespace))
        self.events = Events()
        self.store = Store(client, self.events)
        #: The clock and the waiter of this driver.
        self.timing: Waiter = timing or RealWaiter()
        #: Ends what waits outside of Redis when the driver is closed.
        self.closed = Interrupt()
        #: The queues that were used last.
        self.configs: Recent[QueueConfig] = Recent(KNOWN)
        self._performers: dict[type, Callable[[Any], Any]] = {
            GetConfig: self._config,
            Pipeline: lambda step: self.store.run_together(step.commands, tolerant=step.tolerant),
            Read: self._plain,
            Write: self._plain,
            Now: lambda _: self.timing.now(),
            WaitForWakeup: self._wait_for_wakeup,
            Register: lambda step: self.perform(flows.register(self.keyspace, step.queue)),
            Unregister: self._unregister,
            HandleNotes: lambda step: self._handle(step.notes),
        }

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
        """Perform one step of a flow. Returns its answer."""
        if type(step) is Command:
            return self.store.run(step)
        performer = self._performers.get(type(step))
        if performer is None:
            raise TypeError(f"not a step of a flow: {step!r}")
        return performer(step)

    def _plain(self, step: Read | Write) -> list[Any]:
        return self.store.execute(step.calls, keep_errors=step.keep_errors)

    def _wait_for_wakeup(self, step: WaitForWakeup) -> Any:
        if self.events.notify is not None:
            self.events.notify(WaitEvent(step.queue))
        return self.timing.wait(self.store, self.keyspace.key(step.queue, "wakeup"), step)

    def _unregister(self, step: Unregister) -> int:
        self.configs.forget(step.queue)
        return self.perform(flows.unregister(self.keyspace, step.queue))

    def interrupt(self) -> None:
        """End every wait, in all threads and from now on. A signal handler may call it."""
        self.store.interrupt()

    def check_open(self) -> None:
        """Raise `BrokerClosed` after `close`."""
        self.store.check_open()

    def close(self) -> None:
        """Close the connections. Whoever waits, and whoever calls from now on, gets `BrokerClosed`."""
        self.store.close()
        self.closed.ask()

    def _handle(self, notes: Sequence[bytes]) -> None:
        """The caller's own call has succeeded and must not seem to have failed: what fails here is left to reapers."""
        for i in range(0, len(notes), 2):
            try:
                self.perform(flows.follow(notes[i : i + 2]))
            except QueueNotFound:
                continue  # deleted meanwhile, so there is nothing left to do
            except redis.RedisError as error:
                what, queue = (note.decode() for note in notes[i : i + 2])
                logger.warning("queue %s: %s was not followed up, a reaper will: %s", queue, what, error)

    def _config(self, step: GetConfig) -> QueueConfig:
        if step.newest is not None:
            self.configs.put(step.queue, step.newest)
            return step.newest
        config = None if step.fresh else self.configs.get(step.queue)
        if config is None:
            try:
                config = self.perform(flows.config_of(self.keyspace, step.queue))
            except QueueNotFound:
                self.configs.forget(step.queue)
                raise
            self.configs.put(step.queue, config)
        return config
