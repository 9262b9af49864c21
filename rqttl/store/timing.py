"""The waiter of a driver: a clock, and the wait for a wake-up. `rqttl.testing` hands in one that a test moves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rqttl.errors import PoolExhausted
from rqttl.flows.steps import WaitForAnyWakeup, WaitForWakeup
from rqttl.runtime.timing import RealTiming, Timing
from rqttl.store.store import Store


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
