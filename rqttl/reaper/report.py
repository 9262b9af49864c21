"""What a reaper tells: log lines, totals, health, metrics, and the details of its heartbeat."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rqttl.metrics import REAPER, Histogram
from rqttl.runtime.memory import resident_bytes
from rqttl.text import plural
from rqttl.types import SweepResult

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family

logger = logging.getLogger("rqttl.reaper")

#: Seconds between two lines about the sweeps of a queue.
PERIOD = 5.0
#: Seconds within which the loop of a reaper turns, also while it looks at very many queues.
TURNS = 300.0
#: What a sweep does to messages.
DUTIES = ("reclaimed", "promoted", "expired", "trimmed", "compacted", "activated")


def log_event(level: int, event: str, text: str, **fields: object) -> None:
    """Log an event: a line for people, and `record.event` and `record.fields` for a formatter.

    docs/guides/worker.md has a table of all events and their fields.
    """
    logger.log(level, "%s", text, extra={"event": event, "fields": fields})


@dataclass(slots=True)
class Totals:
    """The totals of a reaper: messages of each duty, bounded sweeps, queues that expired, and queues that failed."""

    sweeps: int = 0
    reclaimed: int = 0
    promoted: int = 0
    expired: int = 0
    trimmed: int = 0
    compacted: int = 0
    activated: int = 0
    retired: int = 0
    failed: int = 0

    def add(self, swept: SweepResult) -> None:
        """Count one bounded sweep."""
        self.sweeps += 1
        for duty in DUTIES:
            setattr(self, duty, getattr(self, duty) + getattr(swept, duty))
        self.retired += swept.retired is not None

    @property
    def messages(self) -> int:
        """The number of messages of all duties."""
        return sum(self.by_duty().values())

    def by_duty(self) -> dict[str, int]:
        """Return the number of messages of each duty that did something."""
        return {duty: count for duty in DUTIES if (count := getattr(self, duty))}


def reaper_details(totals: Totals) -> dict[str, Any]:
    """Return the changing details of a reaper in its heartbeat: it has no slots and runs no handlers."""
    counts = {"handled": totals.messages, "failed": totals.failed}
    return {"queues": [], "slots": 0, "running": [], "rss": resident_bytes(), "last_claim": None, **counts}


class Report:
    """Counts sweeps. Logs what has been done in each queue since the last lines, at most once in `PERIOD`.

    Any thread may ask for health and metrics.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.totals = Totals()
        #: The delay of the oldest due work at each sweep, in seconds.
        self.lags = Histogram()
        #: The number of queues in the last pass over all, and its end in seconds since 1970.
        self.queues, self.last_pass = 0, 0.0
        #: True while Redis does not answer.
        self.is_away = False
        self._turned_at = clock()
        self._clock = clock
        self._next = clock()
        self._done: dict[str, Totals] = {}
        self._lag_ms: dict[str, int] = {}

    def turned(self) -> None:
        """Note a turn of the loop."""
        self._turned_at = self._clock()

    def swept(self, queue: str, swept: SweepResult, due: int | None) -> None:
        """Add a bounded sweep. `due` is the due time of its oldest work, if known."""
        self.totals.add(swept)
        self._done.setdefault(queue, Totals()).add(swept)
        if due:  # 0 means "at once", after an update of options
            lag = max(0, swept.now - due)
            self._lag_ms[queue] = max(self._lag_ms.get(queue, 0), lag)
            self.lags.add(lag / 1000)
        if swept.retired is not None:
            text = f"queue {queue}: deleted at the end of its lifetime"
            if swept.retired:
                text += f", with {plural(swept.retired, 'message')}"
            log_event(logging.INFO, "queue_expired", text, queue=queue, dropped=swept.retired)

    def failed(self, queue: str, error: Exception) -> None:
        """Count and log a queue that could not be swept."""
        self.totals.failed += 1
        text = f"queue {queue}: could not be swept: {error}; the others go on"
        log_event(logging.ERROR, "failed", text, queue=queue, error=type(error).__name__, message=str(error))

    def seconds_left(self) -> float:
        """Return the seconds until the next lines."""
        return self._next - self._clock() if self._done else PERIOD

    def tell(self, *, at_once: bool = False) -> None:
        """Log the sweeps since the last lines, if it is time. The reaper calls it with each turn of its loop."""
        if not at_once and self.seconds_left() > 0:
            return
        for queue, done in self._done.items():
            if counts := done.by_duty():
                lag = self._lag_ms.get(queue)
                parts = [f"{duty} {n}" for duty, n in counts.items()] + ([] if lag is None else [f"lag {lag} ms"])
                text = f"queue {queue}: {', '.join(parts)}"
                fields = {**counts, "sweeps": done.sweeps, "lag_ms": lag}
                log_event(logging.INFO, "swept", text, queue=queue, **fields)
        self._done, self._lag_ms = {}, {}
        self._next = self._clock() + PERIOD

    def trouble(self) -> str:
        """Return the reason for which the reaper is not alive; empty if it is. Redis has no part in it."""
        still = self._clock() - self._turned_at
        return f"the loop of the reaper has been stuck for {still:.0f} s" if still > TURNS else ""

    def obstacle(self) -> str:
        """Return the reason for which the reaper cannot sweep now; empty if it can."""
        if self.is_away:
            return "Redis does not answer"
        return self.trouble() if self.last_pass else "the reaper has not looked at all queues yet"

    def families(self) -> Iterable[Family]:
        """The metrics of the reaper."""
        from rqttl.metrics.collecting import Families

        result, totals = Families(REAPER), self.totals
        for duty in DUTIES:
            result.add("rqttl_reaper_swept_total", getattr(totals, duty), duty)
        result.add("rqttl_reaper_sweeps_total", totals.sweeps)
        result.add_histogram("rqttl_reaper_lag_seconds", self.lags)
        result.add("rqttl_reaper_queues", self.queues)
        result.add("rqttl_reaper_queues_expired_total", totals.retired)
        result.add("rqttl_reaper_failures_total", totals.failed)
        if self.last_pass:
            result.add("rqttl_reaper_last_pass_timestamp_seconds", self.last_pass)
        return result
