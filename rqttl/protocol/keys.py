"""Names: which ones are allowed, and the Redis keys that follow from them. The one place that spells a key."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rqttl.names import is_queue_name

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
    return text if is_queue_name(text) else None


def queue_names(members: Iterable[bytes]) -> list[str]:
    """The names of queues in the registry, sorted. Other members, which somebody else has added, are left out."""
    return sorted(name for name in map(queue_name, members) if name is not None)


@dataclass(frozen=True, slots=True)
class Keyspace:
    """All keys of one namespace."""

    namespace: str = "rqttl"

    def key(self, queue: str, part: str) -> str:
        """One key of one queue.

        Its hash tag, the text in braces, selects the slot on Redis Cluster. The hash tag is an explicit `{tag}` at the
        start of the name, else the part before the first `/`, else the whole name.
        """
        if queue.startswith("{"):
            return f"{self.namespace}:{queue}:{part}"
        tag, slash, rest = queue.partition("/")
        return f"{self.namespace}:{{{tag}}}{slash}{rest}:{part}"

    def split(self, key: bytes) -> tuple[str, str] | None:
        """The queue and the part of a key of this namespace; `None` for a key that no queue can have."""
        tagged, _, part = key.decode("utf-8", "replace").removeprefix(f"{self.namespace}:").rpartition(":")
        tag, _, rest = tagged.removeprefix("{").partition("}")
        name = tagged if rest and not rest.startswith("/") else tag + rest
        return (name, part) if is_queue_name(name) and self.key(name, part).encode() == key else None

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
