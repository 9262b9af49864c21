"""The record of a queue (`meta`) as a value. Its fields come from a script or from a plain read of Redis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rqttl.errors import QueueDamaged
from rqttl.options import REASONS
from rqttl.units import as_datetime

COUNTERS = ("enqueued", "delivered", "redelivered", "acked", "refused", "purged", "redriven")
_DEATHS = {reason: f"deaths:{reason}" for reason in REASONS}
_DROPPED = {reason: f"dropped:{reason}" for reason in (*REASONS, "cycle")}
#: Pairs of a field with the start of a lifetime, and the option with its length.
_LIVES = (("last_used_at", "expires"), ("last_active_at", "auto_delete_on_idle"))
#: The fields that show the existence of the queue and its end.
LIFETIME = (
    "version",
    "last_used_at",
    "expires",
    "last_active_at",
    "auto_delete_on_idle",
    "on_expire",
    "emptied_last_id",
    "last_id",
)
#: The fields that statistics need.
STATISTICS = (
    *LIFETIME,
    "ready_bytes",
    "due_at",
    "cursor",
    "lease_grants",
    "compacted",
    "message_ttl",
    *COUNTERS,
    *_DEATHS.values(),
    *_DROPPED.values(),
)


@dataclass(frozen=True, slots=True)
class Record:
    """The fields of a record that are set."""

    queue: str
    fields: Mapping[str, bytes]

    @classmethod
    def read(cls, queue: str, names: Sequence[str], values: Sequence[Any]) -> Record | None:
        """Read the answer of HMGET for the fields `names`. Returns `None` if the queue does not exist."""
        fields = {name: value for name, value in zip(names, values, strict=True) if value is not None}
        return cls(queue, fields) if "version" in fields else None

    def text(self, name: str) -> str:
        """The text of a field that every record has. Raises `QueueDamaged` if it is missing."""
        if name not in self.fields:
            raise QueueDamaged(self.queue, f"its record lacks the field {name}")
        return self.fields[name].decode("utf-8", "backslashreplace")

    def number(self, name: str) -> int:
        """The number in a field, 0 if the field is not set. Raises `QueueDamaged` if the field holds no number."""
        value = self.fields.get(name, b"0")
        try:
            return int(value or 0)
        except ValueError:
            text = value[:40].decode("utf-8", "backslashreplace")
            raise QueueDamaged(self.queue, f"the field {name} of its record is no number: {text!r}") from None

    @property
    def end(self) -> int | None:
        """The end of the lifetime of the queue, in ms; `None` for a queue without a lifetime."""
        ends = [self.number(since) + self.number(time) for since, time in _LIVES if time in self.fields]
        return min(ends, default=None)

    @property
    def keeps(self) -> bool:
        """True if `on_expire=keep` extends the lifetime: messages came after its last end."""
        return self.fields.get("on_expire") == b"keep" and self.fields.get("last_id") != self.fields.get(
            "emptied_last_id", b"0-0"
        )

    @property
    def due(self) -> int | None:
        """A lower bound of the next due time, in ms. `None`: nothing can become due. 0: the time is unknown."""
        return self.number("due_at") if self.fields.get("due_at") else None

    def totals(self) -> dict[str, Any]:
        """The fields of `QueueStats` that follow from the record alone."""
        end = self.end
        return {
            **{name: self.number(name) for name in COUNTERS},
            "deaths": {reason: self.number(field) for reason, field in _DEATHS.items()},
            "dropped": {reason: self.number(field) for reason, field in _DROPPED.items()},
            "ends_at": None if end is None else as_datetime(end),
        }
