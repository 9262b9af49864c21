"""The driver: it performs the steps of flows on one Redis server, synchronously.

A broker has one driver, and its queues and consumers share it. The rest of the package and the tests get it from
`driver_of`. It is not for users.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import redis
from redis.exceptions import ResponseError

from rqttl import flows
from rqttl.errors import ContractError, InvalidInput, PoolExhausted, QueueNotFound
from rqttl.events import Events, WaitEvent
from rqttl.flows.policies import PolicyCache
from rqttl.flows.queues import ConfigCache
from rqttl.flows.steps import (
    Flow,
    ForgetConfig,
    GetConfig,
    GetPolicies,
    HandleNotes,
    Now,
    Pipeline,
    Read,
    Register,
    Rehearse,
    Sleep,
    Unregister,
    WaitForAnyWakeup,
    WaitForWakeup,
    Write,
    damage,
)
from rqttl.names import check_namespace
from rqttl.policies import PolicySet
from rqttl.protocol.commands import Command, QueueConfig
from rqttl.protocol.keys import WAKEUP, Keyspace
from rqttl.runtime.interrupt import Interrupt
from rqttl.runtime.timing import RealTiming, Timing
from rqttl.store.outcomes import is_damage
from rqttl.store.store import Store, rehearse
from rqttl.text import format_value


class Waiter(Timing, Protocol):
    """A `Timing` that waits for wake-ups as well."""

    def wait(self, store: Store, key: str, step: WaitForWakeup) -> bytes | PoolExhausted | None:
        """Wait for an element of the list `key`, as `step` says. See `Store.listen`."""

    def wait_for_any(
        self, store: Store, keys: Sequence[str], step: WaitForAnyWakeup
    ) -> tuple[str, bytes] | bytes | PoolExhausted | None:
        """Wait for an element of one of the lists `keys`, as `step` says. See `Store.listen_to_all`."""


class RealWaiter(RealTiming):
    """Waits in real time."""

    def wait(self, store: Store, key: str, step: WaitForWakeup) -> bytes | PoolExhausted | None:
        """See `Waiter`."""
        return store.listen(step.queue, key, step.ms, step.interrupt)

    def wait_for_any(
        self, store: Store, keys: Sequence[str], step: WaitForAnyWakeup
    ) -> tuple[str, bytes] | bytes | PoolExhausted | None:
        """See `Waiter`."""
        return store.listen_to_all(keys, step.ms, step.interrupt)


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
        self.store = Store(client, self.events)
        #: The clock and the waiter of this driver.
        self.timing: Waiter = timing or RealWaiter()
        #: The interrupt that ends each wait outside of Redis when the driver is closed.
        self.closed = Interrupt()
        #: The configs of the queues that were used last.
        self.configs = ConfigCache()
        #: The policies that were read last.
        self.policies = PolicyCache()
        self._performers: dict[type, Callable[[Any], Any]] = {
            GetConfig: self._config,
            ForgetConfig: lambda step: self.configs.pop(step.queue, None),
            GetPolicies: self._policies,
            Pipeline: lambda step: self.store.run_together(step.commands, tolerant=step.tolerant),
            Read: self._plain,
            Write: self._plain,
            Rehearse: lambda step: rehearse(self.store.connections, step.calls),
            Now: lambda _: self.timing.now(),
            Sleep: lambda step: self.timing.sleep(step.ms / 1000),
            WaitForWakeup: self._wait_for_wakeup,
            WaitForAnyWakeup: self._wait_for_any_wakeup,
            Register: lambda step: self.perform(flows.registry.register(self.keyspace, step.queue)),
            Unregister: lambda step: self.perform(self.configs.unregister(self.keyspace, step.queue)),
            HandleNotes: lambda step: self.perform(flows.queues.follow(self.keyspace, step.notes)),
        }

    def perform(self, flow: Flow[T]) -> T:
        """See `Driver`."""
        try:
            return flows.steps.drive(flow, self.step)
        except QueueNotFound as error:
            error.namespace = self.keyspace.namespace
            raise
        except ContractError:
            self.store.connections.renew()  # the reply may have been one to another call
            raise

    def step(self, step: flows.steps.Step) -> Any:
        """Perform one step of a flow. Returns its answer."""
        if type(step) is Command:
            try:
                return self.store.run(step)
            except ResponseError as error:
                if is_damage(error):
                    raise self.perform(damage(step, error)) from error
                raise
        try:
            performer = self._performers[type(step)]
        except KeyError:
            raise TypeError(f"not a step of a flow: {step!r}") from None
        return performer(step)

    def _config(self, step: GetConfig) -> QueueConfig:
        config = self.configs.answer(step)
        return self.perform(self.configs.ask(self.keyspace, step)) if config is None else config

    def _policies(self, step: GetPolicies) -> PolicySet:
        policies = self.policies.answer(step)
        return self.perform(self.policies.ask(self.keyspace)) if policies is None else policies

    def _plain(self, step: Read | Write) -> list[Any]:
        return self.store.execute(step.calls, keep_errors=step.keep_errors)

    def _wait_for_wakeup(self, step: WaitForWakeup) -> Any:
        if self.events.notify is not None:
            self.events.notify(WaitEvent(step.queue))
        return self.timing.wait(self.store, self.keyspace.key(step.queue, WAKEUP), step)

    def _wait_for_any_wakeup(self, step: WaitForAnyWakeup) -> Any:
        if self.events.notify is not None:
            for queue in step.queues:
                self.events.notify(WaitEvent(queue))
        keys = step.keys(self.keyspace)
        return step.answer(keys, self.timing.wait_for_any(self.store, list(keys), step))

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
