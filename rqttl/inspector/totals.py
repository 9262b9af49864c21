"""Statistics as JSON, and the statistics of several queues as those of one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from datetime import timedelta
from typing import Any

from rqttl.errors import QueueDamaged
from rqttl.types import QueueStats

#: The durations among the statistics. In JSON they are milliseconds; of several queues the longest counts.
_DURATIONS = tuple(field.name for field in fields(QueueStats) if "timedelta" in str(field.type))
#: The times among the statistics. Of several queues the earliest counts.
_TIMES = tuple(field.name for field in fields(QueueStats) if "datetime" in str(field.type))


def deaths(stats: QueueStats) -> int:
    """The number of deaths in a queue, for all reasons."""
    return sum(stats.deaths.values())


def to_json(stats: QueueStats) -> dict[str, Any]:
    """All statistics of a queue, for `json_text.dump`. A duration is named `<name>_ms`."""
    document: dict[str, Any] = {}
    for field in fields(QueueStats):
        value = getattr(stats, field.name)
        if field.name in _DURATIONS:
            document[f"{field.name}_ms"] = None if value is None else milliseconds(value)
        else:
            document[field.name] = dict(value) if isinstance(value, Mapping) else value
    return document


def damaged_to_json(damaged: Mapping[str, QueueDamaged]) -> list[dict[str, Any]]:
    """The queues that cannot be read, for `json_text.dump`."""
    return [{"queue": name, "error": error.code, "damage": error.damage} for name, error in sorted(damaged.items())]


def milliseconds(time: timedelta) -> int:
    """A duration in whole milliseconds."""
    return round(time / timedelta(milliseconds=1))


def aggregate(queues: Iterable[QueueStats]) -> QueueStats:
    """Several queues as one: numbers are added up; the longest duration and the earliest time count."""
    every = list(queues)
    totals: dict[str, Any] = {}
    for field in fields(QueueStats):
        values = [value for stats in every if (value := getattr(stats, field.name)) is not None]
        if field.name in _DURATIONS:
            totals[field.name] = max(values, default=None if "None" in str(field.type) else timedelta(0))
        elif field.name in _TIMES:
            totals[field.name] = min(values, default=None)
        elif "Mapping" in str(field.type):
            reasons = dict.fromkeys(reason for value in values for reason in value)
            totals[field.name] = {reason: sum(value.get(reason, 0) for value in values) for reason in reasons}
        else:
            totals[field.name] = sum(values)
    return QueueStats(**totals)
