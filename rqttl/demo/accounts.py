"""Accounts of the calls: the counts of the queues, of the consumers and of the producer, which must agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rqttl import Broker
from rqttl.demo.names import boarding, dead_letters
from rqttl.errors import QueueNotFound


@dataclass(frozen=True, slots=True)
class Counts:
    """The counts of queues, for one carrier or for several together."""

    sent: int = 0
    handled: int = 0
    expired: int = 0
    rejected: int = 0
    dead_lettered: int = 0
    waiting: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(*(a + b for a, b in zip(self.values(), other.values(), strict=True)))

    def __sub__(self, other: Counts) -> Counts:
        return Counts(*(a - b for a, b in zip(self.values(), other.values(), strict=True)))

    def values(self) -> tuple[int, ...]:
        """All counts, in the order of the table."""
        return tuple(asdict(self).values())


def count_calls(broker: Broker, carrier: str) -> Counts:
    """The present counts of a carrier's queue, without its dead letters."""
    stats = broker.queue(boarding(carrier)).stats()
    return Counts(
        sent=stats.enqueued,
        handled=stats.acked,
        expired=stats.deaths.get("expired", 0),
        rejected=stats.deaths.get("rejected", 0),
        waiting=stats.depth,
    )


def count_dead_letters(broker: Broker, carrier: str) -> int:
    """The number of messages in the dead-letter queue of a carrier. Without a letter there is no such queue."""
    try:
        return broker.queue(dead_letters(carrier)).stats().ready
    except QueueNotFound:
        return 0


def final_counts(broker: Broker, carriers: Sequence[str]) -> dict[str, Counts]:
    """The final counts of each carrier."""
    return {
        carrier: count_calls(broker, carrier) + Counts(dead_lettered=count_dead_letters(broker, carrier))
        for carrier in carriers
    }


def disagreements(carrier: str, counts: Counts, sent: int, tallies: Sequence[Mapping[str, int]]) -> list[str]:
    """A line for each sum that does not add up.

    `sent` is the count of the producer, `tallies` are the counts of the consumers.
    """
    handled, rejected = (sum(tally[name] for tally in tallies) for name in ("handled", "rejected"))
    ends = counts.handled + counts.expired + counts.rejected
    claims = (
        ("sent, by the producer and by the queue", sent, counts.sent),
        ("sent, and the sum of all outcomes", counts.sent, ends + counts.waiting),
        ("handled, by the consumers and by the queue", handled, counts.handled),
        ("rejected, by the consumers and by the queue", rejected, counts.rejected),
        ("expired or rejected, and dead letters", counts.expired + counts.rejected, counts.dead_lettered),
        ("still waiting, and nothing", counts.waiting, 0),
    )
    return [f"{carrier}: {claim}: {left:,} is not {right:,}" for claim, left, right in claims if left != right]


def to_json(counts: Mapping[str, Counts], total: Counts) -> dict[str, Any]:
    """The table of counts as JSON."""
    return {"carriers": {carrier: asdict(row) for carrier, row in counts.items()}, "total": asdict(total)}
