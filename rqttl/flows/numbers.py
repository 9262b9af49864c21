"""The numbers of one queue, from plain reads: its record first, then counts, then the heads of its parts.

Nothing is asked that earlier answers rule out. A queue takes at most 7 commands, the one for its record among them. It
takes one more after a compaction (`loose`), and up to 3 more while something in it may be overdue.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from rqttl.flows.records import Record
from rqttl.protocol.commands import Word
from rqttl.protocol.keys import Keyspace
from rqttl.types import QueueStats
from rqttl.units import as_datetime

Call = tuple[Word, ...]


class Numbers:
    """One queue, as far as it was read. Raises `QueueDamaged` where the record is no record of a queue."""

    def __init__(self, keyspace: Keyspace, record: Record, now: int) -> None:
        self._keyspace = keyspace
        self._now = now
        self.queue = record.queue
        self._totals = record.totals()
        self._bytes, self._retention = record.number("ready_bytes"), record.number("message_ttl")
        self._retains = "message_ttl" in record.fields
        self._cursor, self._last = record.text("cursor"), record.text("last_id")
        self._was_leased, self._compacted = record.number("lease_grants") > 0, record.number("compacted") > 0
        due = record.due
        #: Whether something may be overdue: `due` is a lower bound.
        self._suspect = due is not None and due <= now
        self.counts: dict[str, int] = {}
        self.heads: dict[str, Any] = {}

    def ask_counts(self) -> dict[str, Call]:
        """Questions: how many messages and consumers there are."""
        asked: dict[str, Call] = {
            "log": ("XLEN", self._key("log")),
            "consumers": ("ZCOUNT", self._key("consumers"), f"({self._now}", "+inf"),
        }
        if self._compacted:
            asked["detached"] = ("HLEN", self._key("detached"))
        if self._was_leased:
            asked |= {part: ("ZCARD", self._key(part)) for part in ("leases", "delayed")}
        return asked

    def ask_heads(self, *, ends: bool) -> dict[str, Call]:
        """Questions: the oldest ready message; and what ends first, for `ends` or if something may be overdue."""
        asked: dict[str, Call] = {}
        if self.ready:
            asked["requeued"] = ("ZRANGE", self._key("requeued"), 0, 0)
            if self._last > self._cursor:
                # Redis has no command that gives the id of an entry without its body
                asked["log"] = ("XRANGE", self._key("log"), f"({self._cursor}", "+", "COUNT", 1)
        parts = [part for part in ("leases", "delayed") if self.counts.get(part) and (ends or self._suspect)]
        if self.ready and self._suspect:
            parts.append("expiry")
        return asked | {part: ("ZRANGE", self._key(part), 0, 0, "WITHSCORES") for part in parts}

    @property
    def ready(self) -> int:
        """Ready messages. The counts are read one after the other, so their difference may be wrong for a moment."""
        count = self.counts.get
        return max(0, self.counts["log"] + count("detached", 0) - count("leases", 0) - count("delayed", 0))

    @property
    def weight(self) -> int:
        """The average size of a ready message: about what the oldest one has."""
        return self._bytes // self.ready if self.ready else 0

    def statistics(self, *, ends: bool) -> QueueStats:
        """All that was read."""
        oldest, lease_end, delay_end = self._oldest(), self._score("leases", 1000), self._score("delayed")
        kept = oldest + self._retention if oldest is not None and self._retains else None
        dues = [at for at in (lease_end, delay_end, self._score("expiry"), kept) if at is not None and at <= self._now]
        return QueueStats(
            ready=self.ready,
            ready_bytes=self._bytes,
            leased=self.counts.get("leases", 0),
            delayed=self.counts.get("delayed", 0),
            oldest_ready_age=None if oldest is None else timedelta(milliseconds=max(0, self._now - oldest)),
            consumers=self.counts["consumers"],
            **self._totals,
            overdue=timedelta(milliseconds=self._now - min(dues, default=self._now)),
            next_lease_end=as_datetime(lease_end) if ends and lease_end is not None else None,
            next_delay_end=as_datetime(delay_end) if ends and delay_end is not None else None,
        )

    def _oldest(self) -> int | None:
        """When the oldest ready message arrived, in ms."""
        sequences = [*self.heads.get("requeued", ()), *(sequence for sequence, _ in self.heads.get("log", ()))]
        return min((int(sequence[:13]) for sequence in sequences), default=None)

    def _score(self, part: str, per_ms: int = 1) -> int | None:
        """The lowest score of a part, in ms. RESP2 gives `[member, score]`, RESP3 a list of such pairs."""
        head = self.heads.get(part)
        if not head:
            return None
        score = head[0][1] if isinstance(head[0], list | tuple) else head[1]
        return int(float(score)) // per_ms

    def _key(self, part: str) -> str:
        return self._keyspace.key(self.queue, part)
