"""Names: which ones are allowed, and the Redis keys that follow from them. The one place that spells a key."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rqttl.names import _MAX_NAME, _NAME

#: The parts of a queue, in no particular order; `lua/README.md` says what each one holds.
PARTS = (
    "meta", "log", "detached", "expiry", "leases", "requeued", "delayed", "failures", "wakeup", "waiters", "consumers",
    "dedup", "dedup_ids", "dedup_windows", "tombstone",
)  # fmt: skip
#: The part that outlives its queue, for a week.
TOMBSTONE = "tombstone"


def queue_name(member: bytes) -> str | None:
    """The name that a member of the registry is; None if no queue can have it."""
    text = member.decode("ascii", "replace")
    return text if len(text) <= _MAX_NAME and _NAME.fullmatch(text) else None


def queue_names(members: Iterable[bytes]) -> list[str]:
    """The names of queues in the registry, sorted. Other members, which somebody else has added, are left out."""
    return sorted(name for name in map(queue_name, members) if name is not None)


@dataclass(frozen=True, slots=True)
class Keyspace:
    """All keys of one namespace."""

    namespace: str = "rqttl"

    def key(self, queue: str, part: str) -> str:
        """One key of one queue. The braces make Redis Cluster put all keys of a queue into one slot."""
        tagged = queue if queue.startswith("{") else f"{{{queue}}}"
        return f"{self.namespace}:{tagged}:{part}"

    def split(self, key: bytes) -> tuple[str, str] | None:
        """The queue and the part that a key belongs to, if it is formed like one of a queue of this namespace."""
        tagged, _, part = key.decode("utf-8", "replace").removeprefix(f"{self.namespace}:").rpartition(":")
        name = tagged[1:-1] if tagged.endswith("}") else tagged
        return (name, part) if _NAME.fullmatch(name) and self.key(name, part).encode() == key else None

    @property
    def everything(self) -> str:
        """The pattern that all keys of the namespace match."""
        return f"{self.namespace}:*"

    @property
    def registry(self) -> str:
        """The set of all queue names."""
        return f"{self.namespace}:queues"

    @property
    def due_channel(self) -> str:
        """Where scripts tell reapers that a queue has become due earlier."""
        return f"{self.namespace}:due"
