"""The knowledge of a worker about its queues: which may have messages, and when to ask again. No I/O and no clock."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from zlib import crc32

#: The ms between two looks at a queue in which nothing is due, at most. See `rqttl.flows.period`.
PERIOD = 240_000
#: The ms of one wait at most. After it the fetcher shows that it lives.
TURN = 10_000
#: The ms within which one claim at least shows that Redis hands out messages.
PROOF = 20_000


@dataclass(slots=True)
class _Empty:
    """A queue in which a claim met no further message, and in whose `waiters` the worker may be noted."""

    until: float
    noted: bool


class Attention:
    """Remembers the queues that may have messages. A queue is a candidate until a claim shows that it is empty.

    After that it becomes a candidate by a wake-up, by its next due time, or at the end of its period.
    """

    def __init__(self, queues: Collection[str] = ()) -> None:
        self._empty: dict[str, _Empty | None] = dict.fromkeys(queues)
        self._tickets: dict[str, bytes] = {}
        self._proved_at = 0.0

    def follow(self, queues: Collection[str]) -> None:
        """Take these queues in the place of the former ones."""
        self._empty = {queue: self._empty.get(queue) for queue in queues}
        self._tickets = {queue: ticket for queue, ticket in self._tickets.items() if queue in self._empty}

    def candidates(self, now: float) -> set[str]:
        """Return the queues that may have messages."""
        return {queue for queue, empty in self._empty.items() if empty is None or empty.until <= now}

    @property
    def noted(self) -> list[str]:
        """The queues in which the worker is noted as waiting."""
        return [queue for queue, empty in self._empty.items() if empty is not None and empty.noted]

    def is_noted(self, queue: str) -> bool:
        """Return True if the worker is noted as waiting in a queue."""
        empty = self._empty.get(queue)
        return empty is not None and empty.noted

    def emptied(self, queue: str, now: float, due: int | None, *, noted: bool, longest: int) -> None:
        """Record that a claim met no further message. Work is due there in `due` ms; ask again after `longest`."""
        if queue in self._empty:
            pause = longest if due is None else max(1, min(longest, due))
            self._empty[queue] = _Empty(now + pause, noted)

    def proved(self, now: float) -> None:
        """Record that Redis answered a claim."""
        self._proved_at = now

    def woken(self, queue: str, element: bytes) -> None:
        """Record an element of the wake-up list of a queue: a hint (empty) or a ticket."""
        if queue in self._empty:
            self._empty[queue] = None
            self._tickets[queue] = element

    def suspect(self, queue: str | None = None) -> None:
        """Make a queue a candidate; without a name, the one that was asked longest ago."""
        waiting = {name: empty.until for name, empty in self._empty.items() if empty is not None}
        name = queue if queue is not None else min(waiting, key=lambda name: waiting[name], default=None)
        if name in self._empty:
            self._empty[name] = None

    def withdrawn(self) -> None:
        """Record that the worker is noted nowhere any more."""
        for queue in self._empty:
            self._empty[queue] = None

    def take_ticket(self, queue: str) -> bytes:
        """Remove and return the ticket for a queue; empty for a hint and without one."""
        return self._tickets.pop(queue, b"")

    @property
    def has_tickets(self) -> bool:
        """True if a ticket waits to be shown."""
        return any(self._tickets.values())

    def ticketed(self) -> Iterator[str]:
        """The queues for which a ticket waits to be shown."""
        yield from [queue for queue, element in self._tickets.items() if element]

    @property
    def hinted(self) -> list[str]:
        """The queues whose hint the worker has, without a claim since then. No other consumer is woken by it."""
        return [queue for queue, element in self._tickets.items() if not element]

    def wait(self, now: float) -> int:
        """Return the ms to wait for a wake-up."""
        ends = [empty.until for empty in self._empty.values() if empty is not None]
        return max(1, int(min([TURN, *(end - now for end in ends)])))

    def needs_proof(self, now: float) -> bool:
        """Return True if the last answer to a claim is so old that a claim has to show that Redis answers."""
        return now - self._proved_at >= PROOF


def period(worker: str, queue: str) -> int:
    """Return the ms after which this worker asks this queue again: between half of `PERIOD` and all of it.

    The time differs between queues, so their looks spread out.
    """
    return PERIOD - crc32(f"{worker} {queue}".encode()) % (PERIOD // 2)
