"""The clock of a driver, and the way in which time passes. `rqttl.testing` hands in another one, which a test moves."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from rqttl.runtime.interrupt import Interrupt, Wakeup


class Timing(Protocol):
    """The clock that flows and consumers go by, and the way in which time passes during a wait."""

    def now(self) -> int:
        """Return a time in ms that never goes back. Times of two threads may not be compared."""

    def sleep(self, seconds: float) -> None:
        """Let time pass."""

    def pause(self, end: Interrupt, ms: Callable[[], float], sooner: Wakeup | None = None) -> None:
        """Let `ms()` ms pass. `end` and `sooner` end the pause early; see `Wakeup.wait`."""

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

    def pause(self, end: Interrupt, ms: Callable[[], float], sooner: Wakeup | None = None) -> None:
        """See `Timing`."""
        (sooner or Wakeup()).wait(end, lambda: ms() / 1000)

    def leaps(self, prepare: Callable[[int], None]) -> AbstractContextManager[object]:
        """See `Timing`."""
        return nullcontext(prepare)
