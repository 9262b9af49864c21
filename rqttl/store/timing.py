"""The clock and the waiter of a driver. `rqttl.testing` hands in another one, which a test moves."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from rqttl.errors import PoolExhausted
from rqttl.flows import WaitForWakeup
from rqttl.store.store import Store


class Timing(Protocol):
    """The clock of flows, and the waiter: the object that lets time pass."""

    def now(self) -> int:
        """Return a time in ms that never goes back."""

    def sleep(self, seconds: float) -> None:
        """Let time pass."""

    def wait(self, store: Store, key: str, step: WaitForWakeup) -> bytes | PoolExhausted | None:
        """Wait for an element of the list `key`, as `step` says. See `Store.listen`."""

    def leaps(self, prepare: Callable[[int], None]) -> AbstractContextManager[object]:
        """Within this block call `prepare(ms)` before time leaps forward by `ms`, and `prepare(0)` after that.

        A thread that has something to do at certain times cannot do it within a leap.
        """


class RealTiming:
    """Real time. It never leaps."""

    def now(self) -> int:
        """See `Timing`."""
        return int(time.monotonic() * 1000)

    def sleep(self, seconds: float) -> None:
        """See `Timing`."""
        time.sleep(seconds)

    def wait(self, store: Store, key: str, step: WaitForWakeup) -> bytes | PoolExhausted | None:
        """See `Timing`."""
        return store.listen(step.queue, key, step.ms, step.interrupt)

    def leaps(self, prepare: Callable[[int], None]) -> AbstractContextManager[object]:
        """See `Timing`."""
        return nullcontext(prepare)
