"""Looking at all queues, in case a hint was lost: at once, or part by part so that it never costs much at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING
from zlib import crc32

if TYPE_CHECKING:
    from rqttl.reaper.registry import Record, Registry

#: Queues that one part of a scan looks at, in one round trip: of a scan at once, and of one that takes its time.
PAGE, PART = 1_000, 100
#: A queue in which nothing has changed is swept in one of so many scans: names for duplicates and consumers that died
#: are forgotten in sweeps, and have no due time.
REST = 16


@dataclass(frozen=True, slots=True)
class Part:
    """Some queues: when something is due in them, and those to sweep whether anything is due or not."""

    dues: dict[str, int | None]
    sweep: list[str]


class Scan:
    """One scan after the other over the queues of a registry. `queues` are those that the present one has found."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._parts: deque[list[str]] = deque()
        self._records: dict[str, Record] = {}
        self._number = 0
        self._thorough = True
        self._size = 0
        self.queues: set[str] = set()
        self.running = False

    def begin(self, *, thorough: bool) -> None:
        """Begin a scan. A `thorough` one sweeps all queues; others those that have changed, and some in turn."""
        names = self._registry.names()
        size = PAGE if thorough else PART
        self._parts = deque(names[start : start + size] for start in range(0, len(names), size))
        self._size = len(self._parts)
        self._records = {queue: record for queue, record in self._records.items() if queue in self.queues}
        self._number += 1
        self._thorough, self.running, self.queues = thorough, True, set()

    def gap(self, period: float) -> float:
        """Seconds from one part to the next, if all queues are to be seen once in `period` seconds."""
        return period / max(1, self._size)

    def __contains__(self, queue: str) -> bool:
        return queue in self._records

    def ask(self, names: list[str]) -> Mapping[str, Record]:
        """Look at queues that a hint names and no scan has found. Those that are there count as found."""
        found = self._registry.records(names)
        self._records |= found
        self.queues |= found.keys()
        return found

    def look(self) -> Part:
        """Look at the next part. The last one ends the scan."""
        names = self._parts[0] if self._parts else []
        found = self._registry.look(names)
        part = Part(
            {queue: record.due for queue, record in found.items()},
            [queue for queue, record in found.items() if self._is_to_sweep(queue, record)],
        )
        self._records |= found
        self.queues |= found.keys()
        if self._parts:
            self._parts.popleft()
        if not self._parts:
            self._registry.tidy()
            self.running = False
        return part

    def _is_to_sweep(self, queue: str, record: Record) -> bool:
        changed = self._records.get(queue) != record
        return self._thorough or changed or (crc32(queue.encode()) + self._number) % REST == 0
