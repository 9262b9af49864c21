"""The choice of the next queue to fetch from: strict order, or weighted turns. No I/O and no clock."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from fnmatch import fnmatchcase

from rqttl.names import is_pattern

#: The end of the names of dead-letter queues, as all examples of the option `dead_letter` have it.
DEAD = "/dead"


class Rotation:
    """Chooses among the queues that may have messages.

    Without weights the order of the queues is strict: the first queue that may have messages is chosen. With weights a
    queue gets a share of the fetched messages in proportion to its weight. A queue without messages costs the others
    nothing, and saves no turns for later.
    """

    def __init__(self, weights: Mapping[str, int | None]) -> None:
        self._weights: dict[str, int | None] = {}
        self._progress: dict[str, float] = {}
        self._idle: set[str] = set()
        self.follow(weights)

    @property
    def queues(self) -> tuple[str, ...]:
        """All queues, in their order."""
        return tuple(self._weights)

    def follow(self, weights: Mapping[str, int | None]) -> None:
        """Take these queues in the place of the former ones. Queues that stay keep their progress."""
        least = self._least(self._weights)
        self._progress = {queue: self._progress.get(queue, least) for queue in weights}
        self._weights = dict(weights)
        self._idle &= set(weights)

    def next(self, candidates: Collection[str]) -> str | None:
        """Return the next queue of these candidates; `None` without candidates."""
        present = [queue for queue in self._weights if queue in candidates]
        if not present:
            self._idle = set(self._weights)
            return None
        if all(weight is None for weight in self._weights.values()):
            return present[0]
        least = self._least([queue for queue in present if queue not in self._idle] or present)
        for queue in present:
            if queue in self._idle:
                self._progress[queue] = max(self._progress[queue], least)
        self._idle = set(self._weights) - set(present)
        return min(present, key=lambda queue: self._progress[queue])

    def charge(self, queue: str, messages: int) -> None:
        """Record that so many messages were fetched from a queue."""
        if queue in self._weights:
            self._progress[queue] += messages / (self._weights[queue] or 1)

    def _least(self, queues: Collection[str]) -> float:
        return min((self._progress.get(queue, 0.0) for queue in queues), default=0.0)


def selected(weights: Mapping[str, int | None], existing: Iterable[str]) -> dict[str, int | None]:
    """Return the queues that names and patterns select, with their weights.

    A name selects its queue even if none exists, and stands before a pattern that matches it.
    """
    queues: dict[str, int | None] = {}
    others = [queue for queue in existing if queue not in weights]
    for name, weight in weights.items():
        for queue in [queue for queue in others if matches(name, queue)] if is_pattern(name) else [name]:
            queues.setdefault(queue, weight)
    return queues


def matches(pattern: str, queue: str) -> bool:
    """Return True if a pattern takes a queue. `w.*` leaves `w.a/dead` alone: no worker eats its own dead letters."""
    return fnmatchcase(queue, pattern) and (pattern.endswith(DEAD) or not queue.endswith(DEAD))
