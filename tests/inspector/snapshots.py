"""Statistics and snapshots for tests, made up here, without Redis and without time."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from rqttl.inspector.queues import Snapshot, Trend
from rqttl.types import QueueStats
from tests.contract.clocked import at

REASONS = {"expired": 0, "maxlen": 0, "rejected": 0, "delivery_limit": 0}


def stats(ready: int = 0, *, overdue: int = 0, deaths: Mapping[str, int] | None = None, **others: Any) -> QueueStats:
    """A queue with `ready` messages. All other numbers are 0, except `others`."""
    counters = ("leased", "delayed", "consumers", "enqueued", "delivered", "redelivered")
    others = {**dict.fromkeys((*counters, "acked", "refused", "purged", "ready_bytes"), 0), **others}
    return QueueStats(
        ready=ready,
        deaths={**REASONS, **(deaths or {})},
        dropped={**REASONS, "cycle": 0},
        overdue=timedelta(milliseconds=overdue),
        **{"oldest_ready_age": None, **others},
    )


def trend_of(*snapshots: Mapping[str, QueueStats], ms: int = 2_000, reapers: int | None = 1) -> Trend:
    """The trend of snapshots that were taken every `ms`."""
    trend = Trend(Snapshot(at(0), snapshots[0], reapers))
    for i, queues in enumerate(snapshots[1:], 1):
        trend.add(Snapshot(at(i * ms), queues, reapers))
    return trend
