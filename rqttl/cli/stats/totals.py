"""Statistics of queues as programs read them, and of several queues together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from datetime import timedelta
from typing import Any

from rqttl.types import QueueStats

#: The durations among the statistics: programs get them as milliseconds.
_DURATIONS = tuple(one.name for one in fields(QueueStats) if "timedelta" in str(one.type))
#: The moments: of several queues, the earliest counts.
_MOMENTS = tuple(one.name for one in fields(QueueStats) if "datetime" in str(one.type))


def stats_facts(stats: QueueStats) -> dict[str, Any]:
    """All numbers of a queue, for `text.as_json`. Durations are `<name>_ms`, `None` where there is none."""
    facts: dict[str, Any] = {}
    for one in fields(QueueStats):
        value = getattr(stats, one.name)
        if one.name in _DURATIONS:
            facts[f"{one.name}_ms"] = None if value is None else milliseconds(value)
        else:
            facts[one.name] = dict(value) if isinstance(value, Mapping) else value
    return facts


def milliseconds(time: timedelta) -> int:
    """A duration in whole milliseconds."""
    return round(time / timedelta(milliseconds=1))


def together(many: Iterable[QueueStats]) -> QueueStats:
    """Several queues as one: numbers are added up; of durations the longest counts, of moments the earliest."""
    every = list(many)
    sums: dict[str, Any] = {}
    for one in fields(QueueStats):
        values = [value for stats in every if (value := getattr(stats, one.name)) is not None]
        if one.name in _DURATIONS:
            sums[one.name] = max(values, default=None if "None" in str(one.type) else timedelta(0))
        elif one.name in _MOMENTS:
            sums[one.name] = min(values, default=None)
        elif "Mapping" in str(one.type):
            reasons = dict.fromkeys(reason for value in values for reason in value)
            sums[one.name] = {reason: sum(value.get(reason, 0) for value in values) for reason in reasons}
        else:
            sums[one.name] = sum(values)
    return QueueStats(**sums)
