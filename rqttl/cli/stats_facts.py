"""Statistics of queues as programs read them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from rqttl.types import QueueStats


def stats_facts(stats: QueueStats) -> dict[str, Any]:
    """All numbers of a queue, for `text.as_json`. Durations are `<name>_ms`, `None` where there is none."""
    facts: dict[str, Any] = {}
    for name in QueueStats.__dataclass_fields__:
        value = getattr(stats, name)
        if name in ("oldest_ready_age", "sweep_lag"):
            facts[f"{name}_ms"] = None if value is None else milliseconds(value)
        else:
            facts[name] = dict(value) if isinstance(value, Mapping) else value
    return facts


def milliseconds(time: timedelta) -> int:
    """A duration in whole milliseconds."""
    return round(time / timedelta(milliseconds=1))
