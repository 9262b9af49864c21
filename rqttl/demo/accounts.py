"""What became of the calls: counted by the queues, by the consumers and by the producer, who have to agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rqttl import Broker
from rqttl.demo.names import boarding, missed
from rqttl.errors import QueueNotFound


@dataclass(frozen=True, slots=True)
class Counts:
    """What the queues have counted for one carrier, or for several together."""

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


def ask(broker: Broker, carrier: str) -> Counts:
    """What the queue of a carrier says now, without its dead letters."""
    stats = broker.queue(boarding(carrier)).stats()
    return Counts(
        sent=stats.enqueued,
        handled=stats.acked,
        expired=stats.deaths.get("expired", 0),
        rejected=stats.deaths.get("rejected", 0),
        waiting=stats.ready + stats.leased + stats.delayed,
    )


def count_dead_letters(broker: Broker, carrier: str) -> int:
    """How many messages lie in the dead-letter queue of a carrier, which does not exist before there is one."""
    try:
        return broker.queue(missed(carrier)).stats().ready
    except QueueNotFound:
        return 0


def settle_accounts(broker: Broker, carriers: Sequence[str]) -> dict[str, Counts]:
    """The final counts of each carrier."""
    return {
        carrier: ask(broker, carrier) + Counts(dead_lettered=count_dead_letters(broker, carrier))
        for carrier in carriers
    }


def disagreements(carrier: str, counts: Counts, sent: int, tallies: Sequence[Mapping[str, int]]) -> list[str]:
    """Each sum that does not add up, in words; nothing, if all is well.

    `sent` is the producer's own count, `tallies` are the consumers'.
    """
    handled, rejected = (sum(tally[name] for tally in tallies) for name in ("handled", "rejected"))
    ends = counts.handled + counts.expired + counts.rejected
    claims = (
        ("sent, by the producer and by the queue", sent, counts.sent),
        ("sent, and what became of it", counts.sent, ends + counts.waiting),
        ("handled, by the consumers and by the queue", handled, counts.handled),
        ("rejected, by the consumers and by the queue", rejected, counts.rejected),
        ("expired or rejected, and dead letters", counts.expired + counts.rejected, counts.dead_lettered),
        ("still waiting, and nothing", counts.waiting, 0),
    )
    return [f"{carrier}: {what}: {one:,} is not {other:,}" for what, one, other in claims if one != other]


def as_document(counts: Mapping[str, Counts], total: Counts, **facts: Any) -> dict[str, Any]:
    """The table, for programs."""
    return {"carriers": {carrier: asdict(one) for carrier, one in counts.items()}, "total": asdict(total), **facts}
