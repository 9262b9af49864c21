"""A flow that reads the queues for one scrape. It changes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from rqttl import flows
from rqttl.flows.reading import Record
from rqttl.flows.steps import Flow
from rqttl.protocol.keys import Keyspace
from rqttl.types import PerQueue, QueueStats

#: The fields of a record with its limits, and with its traffic.
_LIMITS = ("max_length", "max_length_bytes")
_TRAFFIC = ("version", "enqueued", "delivered")


@dataclass(frozen=True, slots=True)
class Reading:
    """The queues of one scrape. `limits` has the limits of messages and of bytes of each queue that has one."""

    stats: PerQueue[QueueStats]
    limits: Mapping[str, tuple[int | None, int | None]]
    left_out: int


def read_queues(keyspace: Keyspace, patterns: Sequence[str], limit: int) -> Flow[Reading]:
    """Read the queues that match. If there are more than `limit`, read those with the most traffic."""
    names = [name for name in (yield from flows.reading.registered(keyspace)) if _matches(name, patterns)]
    left_out = 0
    if len(names) > limit:
        traffic = _existing((yield from flows.registry.records(keyspace, names, _TRAFFIC)))
        left_out = max(0, len(traffic) - limit)
        names = sorted(sorted(traffic, key=lambda name: (-traffic[name], name))[:limit])
    looks = yield from flows.reading.look_closely(keyspace, names, _LIMITS)
    stats = PerQueue({name: look.stats for name, look in looks.items()}, looks.damaged)
    limits = {name: _limits(look.record) for name, look in looks.items() if _limits(look.record) != (None, None)}
    return Reading(stats, limits, left_out)


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)


def _existing(records: Mapping[str, Any]) -> dict[str, int]:
    """The traffic of each existing queue. A damaged record has none."""
    traffic = {}
    for name, fields in records.items():
        if isinstance(fields, Exception):
            traffic[name] = 0
        elif fields[0] is not None:
            traffic[name] = sum(_number(field) or 0 for field in fields[1:])
    return traffic


def _limits(record: Record) -> tuple[int | None, int | None]:
    """The limits of messages and of bytes in a record."""
    messages, size = (_number(record.fields.get(field)) for field in _LIMITS)
    return messages, size


def _number(field: bytes | None) -> int | None:
    """The number in a field; `None` for a field that is not set or holds no number."""
    return int(field) if field is not None and field.isdigit() else None
