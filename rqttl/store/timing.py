"""The waiter of a driver: a clock, and the wait for a wake-up. `rqttl.testing` hands in one that a test moves."""

from __future__ import annotations

from typing import Protocol

from rqttl.errors import PoolExhausted
from rqttl.flows import WaitForWakeup
from rqttl.runtime.timing import RealTiming, Timing
from rqttl.store.store import Store


class Waiter(Timing, Protocol):
    """A `Timing` that waits for wake-ups as well."""

    def wait(self, store: Store, key: str, step: WaitForWakeup) -> bytes | PoolExhausted | None:
        """Wait for an element of the list `key`, as `step` says. See `Store.listen`."""


class RealWaiter(RealTiming):
    """Waits in real time."""

    def wait(self, store: Store, key: str, step: WaitForWakeup) -> bytes | PoolExhausted | None:
        """See `Waiter`."""
        return store.listen(step.queue, key, step.ms, step.interrupt)
