"""What can be said from one look at the queues to the next: rates, depths over time, whether due work waits.

Nothing here asks Redis or a clock: a look says at what time, by the clock of Redis, it was taken.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from rqttl.cli import text
from rqttl.cli.stats_facts import together
from rqttl.types import QueueStats

#: So many looks back the depths are remembered, and the lags.
DEPTHS, LAGS = 60, 5
#: Work that is due and waits for less is no sign of a missing reaper.
LATE = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class Look:
    """The queues at one time. `reapers` is how many run, `None` where Redis does not let us know."""

    at: datetime
    queues: Mapping[str, QueueStats]
    reapers: int | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One queue, or all together. `rates` are per second, `None` where there is nothing to compare with."""

    name: str
    stats: QueueStats
    rates: Mapping[str, float] | None = None
    depths: Sequence[int] = ()


def depth(stats: QueueStats) -> int:
    """All messages of a queue, in whatever state."""
    return stats.ready + stats.leased + stats.delayed + stats.scheduled


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
        self._lags: deque[timedelta] = deque(maxlen=LAGS)
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
        self._lags.append(max((stats.sweep_lag for stats in look.queues.values()), default=timedelta(0)))

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
        """Whether due work waits because nobody but this watch sweeps, as far as that can be told.

        A look sweeps, so it finds as late only what became due since the one before. Without a reaper one late look is
        proof enough; where there is one, or where that is unknown, most of the last ones have to be late.
        """
        late = [lag for lag in self._lags if lag >= LATE]
        reapers = self.look.reapers
        if not late or (reapers != 0 and len(late) <= LAGS // 2):
            return None
        waited = f"due work waited up to {text.age(max(late))}"
        if reapers:
            return f"{waited} although {'a reaper runs' if reapers == 1 else f'{reapers} reapers run'}: look at its log"
        return f"{waited}: {'no reaper runs' if reapers == 0 else 'does a reaper run?'} (`rqttl reaper`)"
