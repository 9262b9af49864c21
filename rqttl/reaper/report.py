"""The report of a reaper: totals, and one log line for each queue and burst of work of any number of steps."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from dataclasses import fields as fields_of

from redis.exceptions import ResponseError

from rqttl.errors import PoliciesDamaged
from rqttl.runtime.histogram import Histogram
from rqttl.store.refusals import is_away
from rqttl.text import plural
from rqttl.types import SweepResult

logger = logging.getLogger("rqttl.reaper")

#: Seconds between two reports on a queue that has endless work.
PERIOD = 1.0
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
        for field in fields_of(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))

    @property
    def messages(self) -> int:
        """The number of messages of all duties."""
        return sum(self.by_duty().values())

    def by_duty(self) -> dict[str, int]:
        """Return the number of messages of each duty that did something."""
        return {duty: n for duty, n in asdict(self).items() if n and duty in DUTIES}


DUTIES = ("reclaimed", "promoted", "expired", "trimmed", "compacted")


#: The events of the log, with their fields. deploy/README.md explains them.
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
        except (ResponseError, PoliciesDamaged) as error:
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


class Report:
    """Collects the sweeps of a queue until the queue has caught up, then logs them in one line."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.totals = Totals()
        #: The delay of the oldest due work at each sweep, in seconds.
        self.lags = Histogram()
        self._clock = clock
        self._bursts: dict[str, tuple[float, Totals, int | None]] = {}

    def swept(self, queue: str, swept: SweepResult, due: int | None, *, more: bool) -> None:
        """Add a bounded sweep. `due` is the due time of its oldest work, if known."""
        self.totals.add(swept)
        started, done, lag = self._bursts.pop(queue, (self._clock(), Totals(), None))
        done.add(swept)
        if due:  # 0 means "at once", after an update of options
            lag = max(lag or 0, swept.now - due)
            self.lags.add(max(0, swept.now - due) / 1000)
        if more and self._clock() - started < PERIOD:
            self._bursts[queue] = started, done, lag
        elif done.messages:
            self._say(queue, done, lag, more)
        if swept.retired is not None:
            self._retired(queue, swept.retired)

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
        _, done, lag = self._bursts.pop(queue, (0.0, Totals(), None))
        if done.messages:
            self._say(queue, done, lag, more=False)

    def close(self) -> None:
        """Log all collected sweeps."""
        for queue in list(self._bursts):
            self.gone(queue)

    def _say(self, queue: str, done: Totals, lag: int | None, more: bool) -> None:
        counts = done.by_duty()
        parts = [f"{duty} {n}" for duty, n in counts.items()]
        if lag is not None:
            parts.append(f"lag {lag} ms")
        if more:
            parts.append("more to do")
        fields: dict[str, object] = {"queue": queue, **counts, "sweeps": done.sweeps, "lag_ms": lag, "more": more}
        log_event(logging.INFO, "swept", f"queue {queue}: {', '.join(parts)}", **fields)
