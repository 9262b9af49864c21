"""The numbers of one queue, from plain reads: its record first, then counts, then the heads of its parts.

Nothing is asked that earlier answers rule out. A queue takes at most 5 commands, the one for its record among them (4
until its first message is delivered), and one for each state other than ready. It takes one more after a compaction
(`detached`). While something in it may be overdue, it takes one more for each of these states, and one for `expiry`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from rqttl.flows.records import Record
from rqttl.protocol.commands import Word
from rqttl.protocol.keys import STATES, Keyspace
from rqttl.types import QueueStats
from rqttl.units import as_datetime

Call = tuple[Word, ...]

#: The cursor of a queue before its first delivery: no message is behind it.
_START = "0-0"


def state_fields(counts: Mapping[str, int], ends: Mapping[str, int | None]) -> dict[str, Any]:
    """The fields of `QueueStats` for the states other than ready.

    `counts` has the number of messages in the part of each state, and `ends` the time in ms at which the first of them
    leaves the state. A missing part is empty.
    """
    fields: dict[str, Any] = {}
    for part, state in STATES.items():
        fields[state.name], end = counts.get(part, 0), ends.get(part)
        if state.end:
            fields[state.end] = as_datetime(end) if end is not None else None
    return fields


class Numbers:
    """The numbers of one queue that were read so far. Raises `QueueDamaged` if the record is damaged."""

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
        #: True if work may be overdue. `due` is only a lower bound.
        self._suspect = due is not None and due <= now
        self.counts: Mapping[str, int] = {}
        #: Ready messages.
        self.ready = 0
        self.heads: dict[str, Any] = {}

    def ask_counts(self) -> dict[str, Call]:
        """Calls for the numbers of messages and consumers."""
        asked: dict[str, Call] = {
            "log": ("XLEN", self._key("log")),
            "consumers": ("ZCOUNT", self._key("consumers"), f"({self._now}", "+inf"),
        }
        if self._compacted:
            asked["detached"] = ("HLEN", self._key("detached"))
        parts = [part for part, state in STATES.items() if self._was_leased or not state.from_lease]
        return asked | {part: ("ZCARD", self._key(part)) for part in parts}

    def count(self, counts: Mapping[str, int]) -> None:
        """Take the answers to `ask_counts`. Redis gave one after the other, so their sum may be wrong for a moment."""
        self.counts = counts
        away = sum([counts.get(part, 0) for part in STATES])
        self.ready = max(0, counts["log"] + counts.get("detached", 0) - away)

    def ask_heads(self, *, ends: bool) -> dict[str, Call]:
        """Calls for the oldest ready message; with `ends`, or if work may be overdue, also for the earliest ends."""
        asked: dict[str, Call] = {}
        if self.ready:
            if self._cursor != _START:
                asked["requeued"] = ("ZRANGE", self._key("requeued"), 0, 0)
            if self._last > self._cursor:
                # Redis has no command that gives the id of an entry without its body
                asked["log"] = ("XRANGE", self._key("log"), f"({self._cursor}", "+", "COUNT", 1)
        parts = [part for part in STATES if self.counts.get(part) and (ends or self._suspect)]
        if self.ready and self._suspect:
            parts.append("expiry")
        return asked | {part: ("ZRANGE", self._key(part), 0, 0, "WITHSCORES") for part in parts}

    @property
    def weight(self) -> int:
        """The average size of a ready message, as an estimate for the oldest one."""
        return self._bytes // self.ready if self.ready else 0

    def statistics(self, *, ends: bool) -> QueueStats:
        """The statistics from all answers."""
        first_ends = {part: self._score(part, state.per_ms) for part, state in STATES.items()}
        oldest = self._oldest()
        kept = oldest + self._retention if oldest is not None and self._retains else None
        dues = [at for at in (*first_ends.values(), self._score("expiry"), kept) if at is not None and at <= self._now]
        return QueueStats(
            ready=self.ready,
            ready_bytes=self._bytes,
            oldest_ready_age=None if oldest is None else timedelta(milliseconds=max(0, self._now - oldest)),
            consumers=self.counts["consumers"],
            **self._totals,
            **state_fields(self.counts, first_ends if ends else {}),
            overdue=timedelta(milliseconds=self._now - min(dues, default=self._now)),
        )

    def _oldest(self) -> int | None:
        """The time at which the oldest ready message arrived, in ms."""
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
