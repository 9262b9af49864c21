"""The driver: it performs the steps of flows on one Redis server, synchronously.

A broker has one driver, and its queues and consumers share it. The rest of the package and the tests get it from
`driver_of`. It is not for users.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import GeneratorType
from typing import Any, Protocol, TypeVar

import redis
from redis.exceptions import ResponseError

from rqttl.checks import check_namespace
from rqttl.errors import ContractError, InvalidInput, PoolExhausted, QueueNotFound
from rqttl.events import Events, WaitEvent
from rqttl.flows.queues import Memory
from rqttl.flows.steps import (
    Flow,
    Now,
    Pipeline,
    Read,
    Rehearse,
    Sleep,
    Step,
    WaitForWakeup,
    Write,
    drive,
)
from rqttl.protocol.commands import Command, Reply
from rqttl.protocol.keys import Keyspace
from rqttl.runtime.interrupt import Interrupt, RealTiming, Timing
from rqttl.store.store import Store
from rqttl.text import format_value

#: The answer to a wait: the list with its element, or why it has ended; see `Listener.listen`.
Woken = tuple[str, bytes] | bytes | PoolExhausted | None


class Waiter(Timing, Protocol):
    """A `Timing` that waits for wake-ups as well."""

    def wait(self, store: Store, keys: Sequence[str], step: WaitForWakeup) -> Woken:
        """Wait for an element of one of the lists `keys`, as `step` says. See `Store.listen`."""


class RealWaiter(RealTiming):
    """Waits in real time."""

    def wait(self, store: Store, keys: Sequence[str], step: WaitForWakeup) -> Woken:
        """See `Waiter`."""
        return store.listen(step.queues, keys, step.ms, step.interrupt)


T = TypeVar("T")


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
        self.store = Store(client, self.keyspace, self.events)
        #: The clock and the waiter of this driver.
        self.timing: Waiter = timing or RealWaiter()
        #: The interrupt that ends each wait outside of Redis when the driver is closed.
        self.closed = Interrupt()
        self.memory = Memory(self.keyspace)
        self.configs = self.memory.configs
        self._answers: dict[type, Callable[[Any], Any]] = {
            **self.memory.answers,
            Pipeline: self._pipeline,
            Read: self._plain,
            Write: self._plain,
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
            self.store.connections.renew()  # the reply may have been one to another call
            raise

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

    def _plain(self, step: Read | Write) -> list[Any]:
        return self.store.execute(step.calls, keep_errors=step.keep_errors)

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

    def interrupt(self) -> None:
        """End every wait, in all threads and from now on. A signal handler may call it."""
        self.store.interrupt()

    def check_open(self) -> None:
        """Raise `BrokerClosed` after `close`."""
        self.store.check_open()

    def close(self) -> None:
        """Close the connections. Waiting calls and all later calls raise `BrokerClosed`."""
        self.store.close()
        self.closed.ask()
