"""The report of a reaper: totals, log lines, its state for health, and its metrics."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from redis.exceptions import ResponseError

from rqttl.errors import DataDamaged
from rqttl.metrics.table import REAPER
from rqttl.runtime.histogram import Histogram
from rqttl.store.refusals import is_away
from rqttl.text import plural
from rqttl.types import SweepResult

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family

logger = logging.getLogger("rqttl.reaper")

#: Seconds between two lines about the sweeps of a queue.
PERIOD = 5.0
#: Seconds in which a warning about refused upkeep is not repeated.
QUIET = 60.0


@dataclass(slots=True)
class Totals:
    """The totals of a reaper: messages of each duty, bounded sweeps, queues that expired, and queues that failed."""

    sweeps: int = 0
    reclaimed: int = 0
    promoted: int = 0
    expired: int = 0
    trimmed: int = 0
    compacted: int = 0
    retired: int = 0
    failed: int = 0

    def add(self, swept: SweepResult) -> None:
        """Count one bounded sweep."""
        self.sweeps += 1
        for duty in DUTIES:
            setattr(self, duty, getattr(self, duty) + getattr(swept, duty))
        self.retired += swept.retired is not None

    def merge(self, other: Totals) -> None:
        """Add other totals."""
        for name in asdict(self):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    @property
    def messages(self) -> int:
        """The number of messages of all duties."""
        return sum(self.by_duty().values())

    def by_duty(self) -> dict[str, int]:
        """Return the number of messages of each duty that did something."""
        return {duty: n for duty, n in asdict(self).items() if n and duty in DUTIES}


DUTIES = ("reclaimed", "promoted", "expired", "trimmed", "compacted")


#: The events of the log, with their fields. docs/guides/worker.md explains them.
LOG_EVENTS = {
    "pass_completed": ("queues",),
    "swept": ("queue", *DUTIES, "sweeps", "lag_ms", "more"),
    "queue_expired": ("queue", "dropped"),
    "queue_reconciled": ("queue", "options"),
    "queue_registered": ("queue",),
    "queue_unregistered": ("queue",),
    "invalid_name_removed": ("member",),
    "redis_unavailable": ("error", "message"),
    "redis_recovered": (),
    "subscribe_failed": ("error", "message"),
    "refused": ("error", "message"),
    "failed": ("queue", "error", "message"),
    "disabled": (),
    "stopped": (),
}


def log_event(level: int, event: str, text: str, **fields: object) -> None:
    """Log an event of `LOG_EVENTS`: a line for people, and `record.event` and `record.fields` for a formatter."""
    logger.log(level, "%s", text, extra={"event": event, "fields": fields})


class Refusals:
    """Warnings about upkeep that Redis refuses. The reaper goes on, and a later pass tries again."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._noted: dict[tuple[str, str], float] = {}

    @contextmanager
    def noted(self, effect: str) -> Iterator[None]:
        """Log a refusal of Redis, or damaged policies, once in `QUIET` for each effect and kind of error.

        Errors of a Redis that is away are raised.
        """
        try:
            yield
        except (ResponseError, DataDamaged) as error:
            if is_away(error):
                raise
            kind, now = (effect, type(error).__name__), self._clock()
            if now - self._noted.get(kind, -QUIET) >= QUIET:
                self._noted[kind] = now
                cause = "Redis refuses upkeep, " if isinstance(error, ResponseError) else ""
                log_event(
                    logging.WARNING,
                    "refused",
                    f"{cause}{effect}: {error}; a later pass tries again",
                    error=type(error).__name__,
                    message=str(error),
                )


@dataclass(slots=True)
class _Burst:
    """The sweeps of a queue that the next line tells, at `until` at the latest. `told`: a line came just before."""

    until: float
    told: bool = False
    done: Totals = field(default_factory=Totals)
    lag: int | None = None
    more: bool = False


class Report:
    """Logs a queue when it has caught up, and then what has come since every `PERIOD`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.totals = Totals()
        #: The delay of the oldest due work at each sweep, in seconds.
        self.lags = Histogram()
        self._clock = clock
        self._bursts: dict[str, _Burst] = {}  # by `until`, since each begins at the end of the dict

    def swept(self, queue: str, swept: SweepResult, due: int | None, *, more: bool) -> None:
        """Add a bounded sweep. `due` is the due time of its oldest work, if known."""
        self.totals.add(swept)
        burst = self._bursts.setdefault(queue, _Burst(self._clock() + PERIOD))
        burst.done.add(swept)
        burst.more = more
        if due:  # 0 means "at once", after an update of options
            burst.lag = max(burst.lag or 0, swept.now - due)
            self.lags.add(max(0, swept.now - due) / 1000)
        if not more and not burst.told:
            self._tell(queue)
        self.tell_late()
        if swept.retired is not None:
            self.gone(queue)
            self._retired(queue, swept.retired)

    def tell_late(self) -> None:
        """Log sweeps that have waited for long. The reaper calls it with each turn of its loop."""
        now = self._clock()
        while self._bursts and next(iter(self._bursts.values())).until <= now:
            self._tell(next(iter(self._bursts)))

    def _retired(self, queue: str, dropped: int) -> None:
        text = f"queue {queue}: its lifetime is over, deleted"
        if dropped:
            text += f" with {plural(dropped, 'message')}"
        log_event(logging.INFO, "queue_expired", text, queue=queue, dropped=dropped)

    def failed(self, queue: str, error: Exception) -> None:
        """Count and log a queue that could not be swept."""
        self.totals.failed += 1
        self.gone(queue)
        log_event(
            logging.ERROR,
            "failed",
            f"queue {queue}: not swept: {error}; all others go on",
            queue=queue,
            error=type(error).__name__,
            message=str(error),
        )

    def gone(self, queue: str) -> None:
        """Log the collected sweeps of a queue that is deleted or cannot be swept."""
        if queue in self._bursts:
            self._bursts[queue].more = False
            self._tell(queue)

    def close(self) -> None:
        """Log all collected sweeps."""
        for queue in list(self._bursts):
            self.gone(queue)

    def _tell(self, queue: str) -> None:
        burst = self._bursts.pop(queue)
        if not burst.done.messages:
            return
        self._bursts[queue] = _Burst(self._clock() + PERIOD, told=True)
        counts = burst.done.by_duty()
        parts = [f"{duty} {n}" for duty, n in counts.items()]
        if burst.lag is not None:
            parts.append(f"lag {burst.lag} ms")
        if burst.more:
            parts.append("more to do")
        fields = {**counts, "sweeps": burst.done.sweeps, "lag_ms": burst.lag, "more": burst.more}
        log_event(logging.INFO, "swept", f"queue {queue}: {', '.join(parts)}", queue=queue, **fields)


#: Seconds within which the loop of a reaper turns, also while it looks at very many queues.
TURNS = 300.0


@dataclass(frozen=True, slots=True)
class ReaperSnapshot:
    """The numbers of a reaper. `turned` is the age of the last turn of its loop, in seconds.

    `last_pass` is the end of its last pass over all queues, in seconds since 1970; `None` before the first one.
    """

    totals: Totals
    lags: Histogram
    queues: int
    last_pass: float | None
    turned: float
    is_away: bool

    def trouble(self) -> str:
        """Return the reason for which the reaper is not alive; empty if it is. Redis has no part in it."""
        return f"the loop of the reaper has not turned for {self.turned:.0f} s" if self.turned > TURNS else ""

    def obstacle(self) -> str:
        """Return the reason for which the reaper cannot sweep now; empty if it can."""
        if self.is_away:
            return "Redis does not answer"
        if self.last_pass is None:
            return "the reaper has not looked at all queues yet"
        return self.trouble()


def families(snapshot: ReaperSnapshot) -> Iterable[Family]:
    """The metrics of a reaper."""
    from rqttl.metrics.exposition import Families

    result, totals = Families(REAPER), snapshot.totals
    for duty in DUTIES:
        result.add("rqttl_reaper_swept_total", getattr(totals, duty), duty)
    result.add("rqttl_reaper_sweeps_total", totals.sweeps)
    result.add_histogram("rqttl_reaper_lag_seconds", snapshot.lags)
    result.add("rqttl_reaper_queues", snapshot.queues)
    result.add("rqttl_reaper_queues_expired_total", totals.retired)
    result.add("rqttl_reaper_failures_total", totals.failed)
    if snapshot.last_pass is not None:
        result.add("rqttl_reaper_last_pass_timestamp_seconds", snapshot.last_pass)
    return result
