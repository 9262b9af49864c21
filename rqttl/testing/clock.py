"""The clock of a broker in a test. It stands still until the test moves it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import datetime

from rqttl import units
from rqttl.errors import InvalidInput
from rqttl.units import Duration, Instant, Ms

#: Sequences of messages hold 13 digits of milliseconds: from the year 2001 to 2286.
_FIRST, _LAST = 10**12, 10**13 - 1


#: A function that is called with ms before the clock leaps forward by them, and with 0 after that.
ClockListener = Callable[[int], object]


class Clock:
    """A clock that stands still until `advance`. Safe to share between threads.

    `start` is an aware datetime, ISO 8601 text with a zone, or milliseconds since 1970, from 2001 to 2286; without it,
    the time of this machine.
    A move of the clock does nothing to queues. The next call that touches the queue does the work that is due then, as
    on a server without a reaper, or by `FakeBroker.run_reaper()`.
    """

    def __init__(self, start: Instant | None = None) -> None:
        self._ms = _checked(int(time.time() * 1000) if start is None else units.instant(start, "start"), "start")
        self._owner = threading.get_ident()
        self._moving = threading.RLock()
        self._listeners: list[ClockListener] = []

    def __repr__(self) -> str:
        return f"<Clock {self.now.isoformat(timespec='milliseconds')}>"

    @property
    def now(self) -> datetime:
        """The time, as an aware datetime in UTC."""
        return units.as_datetime(self._ms)

    @property
    def ms(self) -> int:
        """The time, in milliseconds since 1970."""
        return self._ms

    def is_of_this_thread(self) -> bool:
        """Return True in the thread that made the clock. Its waits move the clock; waits of other threads are real."""
        return threading.get_ident() == self._owner

    def advance(self, duration: Duration) -> None:
        """Let time pass: a `timedelta`, or text such as `"5s"`.

        A `consume` loop keeps its leases, however far the clock goes, as in reality. Raises `InvalidDuration`.
        """
        ms = units.duration(duration, "duration")
        with self._moving:
            arrival = _checked(self._ms + ms, "duration")
            listeners = list(self._listeners)
            for listener in listeners:
                listener(ms)
            self._ms = arrival
            for listener in listeners:
                listener(0)

    def set(self, now: Instant) -> None:
        """Set the clock, forward or back, as if the process had been stopped meanwhile.

        Leases that `consume` would have renewed end. Raises `InvalidInput`.
        """
        with self._moving:
            self._ms = _checked(units.instant(now, "now"), "now")

    def subscribe(self, listener: ClockListener) -> None:
        """Call `listener` at each later `advance`."""
        with self._moving:
            self._listeners.append(listener)

    def unsubscribe(self, listener: ClockListener) -> None:
        """Stop calling `listener`."""
        with self._moving:
            if listener in self._listeners:
                self._listeners.remove(listener)


def _checked(ms: int, name: str) -> Ms:
    if not _FIRST <= ms <= _LAST:
        raise InvalidInput(f"{name}: expected a time from 2001-09-09 to 2286-11-20, got {ms} ms since 1970")
    return Ms(ms)
