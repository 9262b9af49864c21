"""What can be said from one look at the queues to the next: rates, depths over time, whether due work waits.

Nothing here asks Redis or a clock: a look says at what time, by the clock of Redis, it was taken.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from rqttl.cli.common import text
from rqttl.cli.stats.totals import together
from rqttl.errors import QueueDamaged
from rqttl.types import QueueStats

#: So many looks back the depths are remembered, and how long due work waited.
DEPTHS, WAITS = 60, 5
#: Work that is due and waits for less is no sign of a missing reaper.
LATE = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class Look:
    """The queues at one time. `reapers` is how many run, `None` where Redis does not let us know.

    `damaged` says of queues that cannot be read why.
    """

    at: datetime
    queues: Mapping[str, QueueStats]
    reapers: int | None = None
    damaged: Mapping[str, QueueDamaged] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Row:
    """One queue, or all together. `rates` are per second, `None` where there is nothing to compare with."""

    name: str
    stats: QueueStats
    rates: Mapping[str, float] | None = None
    depths: Sequence[int] = ()


def depth(stats: QueueStats) -> int:
    """All messages of a queue, in whatever state."""
    return stats.ready + stats.leased + stats.delayed


def counters(stats: QueueStats) -> dict[str, int]:
    """The counters that are watched: what came in and went out, and what died, moved or dropped."""
    return {
        "in": stats.enqueued,
        "out": stats.delivered,
        "acked": stats.acked,
        "expired": stats.deaths.get("expired", 0),
        "dead": sum(stats.deaths.values()),
        "refused": stats.refused,
    }


def rates(before: QueueStats, now: QueueStats, seconds: float) -> dict[str, float] | None:
    """What happened per second. `None` if the queue is another one of the same name, so that its counters went back."""
    past, present = counters(before), counters(now)
    if seconds <= 0 or any(present[name] < past[name] for name in present):
        return None
    return {name: (present[name] - past[name]) / seconds for name in present}


class Trend:
    """The newest look, and what the ones before it make of it."""

    def __init__(self, look: Look) -> None:
        self.look = look
        #: Seconds between the newest look and the one before.
        self.elapsed: float | None = None
        self._rates: dict[str, dict[str, float]] = {}
        self._depths: dict[str, deque[int]] = {}
        self._all_depths: deque[int] = deque(maxlen=DEPTHS)
        self._overdue: deque[timedelta] = deque(maxlen=WAITS)
        self._remember(look)

    def take(self, look: Look) -> None:
        """Compare a new look with the one before."""
        past, self.look = self.look, look
        self.elapsed = (look.at - past.at).total_seconds()
        self._rates = {}
        for name, stats in look.queues.items():
            found = rates(past.queues[name], stats, self.elapsed) if name in past.queues else None
            if found is not None:
                self._rates[name] = found
            elif self.elapsed > 0:  # a clock that stands still or steps back says nothing about the queue
                self._depths.pop(name, None)
        self._remember(look)

    def _remember(self, look: Look) -> None:
        before, self._depths = self._depths, {}
        for name, stats in look.queues.items():
            self._depths[name] = before.get(name, deque(maxlen=DEPTHS))
            self._depths[name].append(depth(stats))
        self._all_depths.append(sum(map(depth, look.queues.values())))
        self._overdue.append(max((stats.overdue for stats in look.queues.values()), default=timedelta(0)))

    def rows(self) -> list[Row]:
        """The queues, by name."""
        every = self.look.queues
        return [Row(name, every[name], self._rates.get(name), tuple(self._depths[name])) for name in sorted(every)]

    def total(self, name: str) -> Row:
        """All queues together; the rates are those that are known."""
        known = self._rates.values()
        summed = {word: sum(one[word] for one in known) for word in next(iter(known), {})}
        return Row(name, together(self.look.queues.values()), summed or None, tuple(self._all_depths))

    def warning(self) -> str | None:
        """A line if due work waits and nobody sweeps it, as far as that can be told.

        Without a reaper one late look is proof enough. Where a reaper runs, or where that is unknown, most of the last
        looks have to be late.
        """
        reapers = self.look.reapers
        late = [overdue for overdue in self._overdue if overdue >= LATE]
        if reapers == 0:
            return waiting(self._overdue[-1], 0) if self._overdue[-1] >= LATE else None
        return waiting(max(late), reapers) if len(late) > WAITS // 2 else None


def waiting(overdue: timedelta, reapers: int | None) -> str:
    """A line that says for how long the oldest due work waits, and what to do. `reapers` is `None` if unknown."""
    waits = f"oldest due work waits {text.age(overdue)}"
    if reapers:
        return f"{'a reaper runs' if reapers == 1 else f'{reapers} reapers run'}, but {waits}: look at its log"
    return f"{'no reaper runs' if reapers == 0 else 'no reaper?'}: {waits} (`rqttl reaper` does it)"
