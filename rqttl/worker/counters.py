"""The counters of a worker, for collectors of metrics. The worker writes them; `snapshot` may be called at any time."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

from rqttl.runtime.histogram import Histogram


@dataclass(frozen=True, slots=True)
class CountersSnapshot:
    """The counters at one moment. `messages` is by queue and outcome; times of day are seconds since 1970.

    Outcomes: `ack`, `nack`, `reject`, `release`, `lost` (the lease had ended), `timeout`, `crashed`.
    """

    messages: Mapping[tuple[str, str], int]
    handling: Mapping[str, Histogram]
    waiting: Mapping[str, Histogram]
    running: Mapping[str, int]
    slots: int
    last_claim: float | None
    leases_lost: Mapping[str, int]
    restarts: Mapping[str, int]
    reconnects: int


class Counters:
    """The counters of a worker. Safe to share between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._messages: Counter[tuple[str, str]] = Counter()
        self._outcomes: Counter[str] = Counter()
        self._handling: dict[str, Histogram] = {}
        self._waiting: dict[str, Histogram] = {}
        self._running: Counter[str] = Counter()
        self._leases_lost: Counter[str] = Counter()
        self._restarts: Counter[str] = Counter()
        self._reconnects = 0
        self._slots = 0
        self._last_claim: float | None = None

    def begun(self, queue: str, waited: float) -> None:
        """A handler has begun a message that was ready for `waited` seconds by the clock of Redis."""
        with self._lock:
            self._running[queue] += 1
            self._waiting.setdefault(queue, Histogram()).add(max(0.0, waited))

    def ended(self, queue: str, seconds: float) -> None:
        """A handler has ended after so many seconds."""
        with self._lock:
            self._running[queue] -= 1
            self._handling.setdefault(queue, Histogram()).add(seconds)

    def acked(self, queue: str, handling: Sequence[float], waiting: Sequence[float]) -> None:
        """Handlers have ended after so many seconds, and their messages are done.

        `waiting` is as in `begun`, for the messages whose begin was not recorded before.
        """
        with self._lock:
            self._running[queue] += len(waiting) - len(handling)
            if waiting:
                self._waiting.setdefault(queue, Histogram()).add_all(waiting)
            self._handling.setdefault(queue, Histogram()).add_all(handling)
            self._messages[queue, "ack"] += len(handling)
            self._outcomes["ack"] += len(handling)

    def settled(self, queue: str, outcome: str, number: int = 1) -> None:
        """Messages have an outcome."""
        with self._lock:
            self._messages[queue, outcome] += number
            self._outcomes[outcome] += number
            if outcome == "lost":
                self._leases_lost[queue] += number

    def claimed(self, at: float) -> None:
        """Redis has answered a claim, at a time in seconds since 1970."""
        self._last_claim = at

    def restarted(self, cause: str) -> None:
        """A child is replaced."""
        with self._lock:
            self._restarts[cause] += 1

    def reconnected(self) -> None:
        """Redis answers again after an outage."""
        self._reconnects += 1

    def has_slots(self, number: int) -> None:
        """The worker has so many slots for handlers."""
        self._slots = number

    def keep(self, queues: Container[str]) -> None:
        """Drop the counters of all other queues, unless handlers work on their messages. Sums of all queues stay."""
        with self._lock:
            met = {*self._waiting, *self._handling, *self._running, *(queue for queue, _ in self._messages)}
            gone = {queue for queue in met if queue not in queues and not self._running[queue]}
            for counters in (self._waiting, self._handling, self._running, self._leases_lost):
                for queue in gone & counters.keys():
                    del counters[queue]
            for key in [key for key in self._messages if key[0] in gone]:
                del self._messages[key]

    @property
    def handled(self) -> int:
        """The number of messages that were acked."""
        return self._sum(("ack",))

    @property
    def failed(self) -> int:
        """The number of messages that failed or were refused."""
        return self._sum(("nack", "reject", "timeout", "crashed"))

    @property
    def lost(self) -> int:
        """The number of messages whose lease had ended before their outcome was stored."""
        return self._sum(("lost",))

    @property
    def last_claim(self) -> float | None:
        """The time of the last claim that Redis answered, in seconds since 1970."""
        return self._last_claim

    def snapshot(self) -> CountersSnapshot:
        """Return all counters at this moment."""
        with self._lock:
            return CountersSnapshot(
                dict(self._messages),
                {queue: histogram.copy() for queue, histogram in self._handling.items()},
                {queue: histogram.copy() for queue, histogram in self._waiting.items()},
                dict(self._running),
                self._slots,
                self._last_claim,
                dict(self._leases_lost),
                dict(self._restarts),
                self._reconnects,
            )

    def _sum(self, outcomes: tuple[str, ...]) -> int:
        with self._lock:
            return sum(self._outcomes[outcome] for outcome in outcomes)
