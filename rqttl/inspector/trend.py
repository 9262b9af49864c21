"""The change from one snapshot of the queues to the next: rates, depths over time, and late work.

Nothing here asks Redis or a clock: a snapshot has its time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple

from rqttl import text
from rqttl.inspector.snapshot import Snapshot
from rqttl.inspector.totals import aggregate, deaths
from rqttl.types import QueueStats

#: The number of snapshots whose depths, and whose late work, a trend remembers.
DEPTHS, WAITS = 60, 5
#: Due work is late from this age on. Younger work is no sign of a missing reaper.
LATE = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class Row:
    """A queue, or all queues together. `rates` are per second, `None` without an earlier snapshot."""

    name: str
    stats: QueueStats
    rates: Mapping[str, float] | None = None
    depths: Sequence[int] = ()


class LateWork(NamedTuple):
    """Due work that no reaper has done. `overdue` is the age of the oldest, `reapers` is `None` if unknown."""

    overdue: timedelta
    reapers: int | None

    @property
    def advice(self) -> str:
        """A line with the age of the oldest due work, and with the thing to do."""
        waits = f"oldest due work waits {text.format_age(self.overdue)}"
        if self.reapers:
            run = "a reaper runs" if self.reapers == 1 else f"{self.reapers} reapers run"
            return f"{run}, but {waits}: look at its log"
        return f"{'no reaper runs' if self.reapers == 0 else 'no reaper?'}: {waits} (`rqttl reaper` does it)"


def counters(stats: QueueStats) -> dict[str, int]:
    """The counters that have rates: arrivals, deliveries, deaths, refusals."""
    return {
        "in": stats.enqueued,
        "out": stats.delivered,
        "acked": stats.acked,
        "expired": stats.deaths.get("expired", 0),
        "dead": deaths(stats),
        "refused": stats.refused,
    }


def rates(before: QueueStats, now: QueueStats, seconds: float) -> dict[str, float] | None:
    """The growth of each counter per second. `None` if a counter fell: then the queue is a new one of the same name."""
    past, present = counters(before), counters(now)
    if seconds <= 0 or any(present[name] < past[name] for name in present):
        return None
    return {name: (present[name] - past[name]) / seconds for name in present}


class Trend:
    """The newest snapshot, and its comparison with the earlier ones."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        #: Seconds between the newest snapshot and the one before.
        self.elapsed: float | None = None
        self._rates: dict[str, dict[str, float]] = {}
        self._depths: dict[str, deque[int]] = {}
        self._all_depths: deque[int] = deque(maxlen=DEPTHS)
        self._overdue: deque[timedelta] = deque(maxlen=WAITS)
        self._remember(snapshot)

    def add(self, snapshot: Snapshot) -> None:
        """Compare a new snapshot with the newest one, and replace that."""
        past, self.snapshot = self.snapshot, snapshot
        self.elapsed = (snapshot.at - past.at).total_seconds()
        self._rates = {}
        for name, stats in snapshot.queues.items():
            growth = rates(past.queues[name], stats, self.elapsed) if name in past.queues else None
            if growth is not None:
                self._rates[name] = growth
            elif self.elapsed > 0:  # a clock that stands still or steps back says nothing about the queue
                self._depths.pop(name, None)
        self._remember(snapshot)

    def _remember(self, snapshot: Snapshot) -> None:
        before, self._depths = self._depths, {}
        for name, stats in snapshot.queues.items():
            self._depths[name] = before.get(name, deque(maxlen=DEPTHS))
            self._depths[name].append(stats.depth)
        self._all_depths.append(sum(stats.depth for stats in snapshot.queues.values()))
        self._overdue.append(max((stats.overdue for stats in snapshot.queues.values()), default=timedelta(0)))

    def rows(self) -> list[Row]:
        """The queues, sorted by name."""
        queues = self.snapshot.queues
        return [Row(name, queues[name], self._rates.get(name), tuple(self._depths[name])) for name in sorted(queues)]

    def total(self, name: str) -> Row:
        """All queues together; the rates are the sums of all known rates."""
        known = self._rates.values()
        sums = {counter: sum(growth[counter] for growth in known) for counter in next(iter(known), {})}
        return Row(name, aggregate(self.snapshot.queues.values()), sums or None, tuple(self._all_depths))

    def late_work(self) -> LateWork | None:
        """Due work that nobody does, as far as a trend shows it.

        Without a reaper one late snapshot is proof. Where a reaper runs, or where that is unknown, most of the last
        snapshots must be late.
        """
        reapers = self.snapshot.reapers
        late = [overdue for overdue in self._overdue if overdue >= LATE]
        if reapers == 0:
            return LateWork(self._overdue[-1], 0) if self._overdue[-1] >= LATE else None
        return LateWork(max(late), reapers) if len(late) > WAITS // 2 else None
