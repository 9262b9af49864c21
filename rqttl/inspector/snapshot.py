"""A snapshot: the statistics of queues at one time by the clock of Redis, and the number of reapers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from rqttl.errors import QueueDamaged
from rqttl.inspector.select import select_names
from rqttl.types import QueueStats

if TYPE_CHECKING:
    from rqttl.broker import Broker


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The queues at one time. `reapers` is the number that runs, `None` if the user may not ask for it.

    `damaged` has the error of each queue that cannot be read.
    """

    at: datetime
    queues: Mapping[str, QueueStats]
    reapers: int | None = None
    damaged: Mapping[str, QueueDamaged] = field(default_factory=dict)


def take_snapshot(broker: Broker, patterns: Sequence[str]) -> Snapshot:
    """The queues that match, as they are now. A name without a queue is left out. The queues are not swept."""
    at, stats = broker.server_time(), broker.stats(select_names(broker, patterns), sweep=False)
    return Snapshot(at, stats, running_reapers(broker), stats.damaged)


def running_reapers(broker: Broker) -> int | None:
    """The number of reapers that run; `None` if the user may not ask for it."""
    from redis.exceptions import ResponseError

    try:
        return broker.reaper_count()
    except ResponseError:
        return None
