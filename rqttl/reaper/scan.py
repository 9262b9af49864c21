"""Scans of all queues, as flows. They find due work whose hint was lost, at once or in small parts over a period."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from zlib import crc32

from rqttl.flows.steps import Flow
from rqttl.reaper.registry import Record, Registry

#: The number of queues in one part of a scan, for a scan at once and for a scan over a period. One round trip reads a
#: part.
PAGE, PART = 1_000, 100
#: The number of scans in which an unchanged queue is swept once. Old ids of duplicates and dead consumers have no due
#: time; only sweeps remove them.
UNCHANGED_EVERY = 16


@dataclass(frozen=True, slots=True)
class ScanPart:
    """A part of all queues: their due times, and the queues to sweep even if nothing is due."""

    dues: dict[str, int | None]
    sweep: list[str]


class Scan:
    """Scans over the queues of a registry, one after the other. `queues` are the existing ones of the present scan."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._parts: deque[list[str]] = deque()
        self._records: dict[str, Record] = {}
        self._number = 0
        self._thorough = True
        self._size = 0
        self.queues: set[str] = set()
        self.running = False

    def begin(self, *, thorough: bool) -> Flow[None]:
        """Begin a scan. A `thorough` scan sweeps all queues, another the changed ones and some others in turn."""
        names = yield from self._registry.names()
        size = PAGE if thorough else PART
        self._parts = deque(names[start : start + size] for start in range(0, len(names), size))
        self._size = len(self._parts)
        self._records = {queue: record for queue, record in self._records.items() if queue in self.queues}
        self._number += 1
        self._thorough, self.running, self.queues = thorough, True, set()

    def gap(self, period: float) -> float:
        """Return the seconds between two parts, so that a scan takes `period` seconds."""
        return period / max(1, self._size)

    def __contains__(self, queue: str) -> bool:
        return queue in self._records

    def ask(self, names: list[str]) -> Flow[Mapping[str, Record]]:
        """Add queues that a hint names and no scan has seen. Returns the records of the existing ones."""
        records = yield from self._registry.records(names)
        self._records |= records
        self.queues |= records.keys()
        return records

    def look(self) -> Flow[ScanPart]:
        """Read the records of the next part. The last part ends the scan."""
        names = self._parts[0] if self._parts else []
        records = yield from self._registry.look(names)
        part = ScanPart(
            {queue: record.due for queue, record in records.items()},
            [queue for queue, record in records.items() if self._is_to_sweep(queue, record)],
        )
        self._records |= records
        self.queues |= records.keys()
        if self._parts:
            self._parts.popleft()
        if not self._parts:
            yield from self._registry.tidy()
            self.running = False
        return part

    def _is_to_sweep(self, queue: str, record: Record) -> bool:
        changed = self._records.get(queue) != record
        return self._thorough or changed or (crc32(queue.encode()) + self._number) % UNCHANGED_EVERY == 0
