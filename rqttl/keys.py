"""Names: which ones are allowed, and the Redis keys that follow from them. The one place that spells a key."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from rqttl.errors import InvalidName
from rqttl.text import plain_text, shown

#: The parts of a queue, in no particular order; `lua/README.md` says what each one holds.
PARTS = (
    "meta", "log", "loose", "expiry", "leases", "returned", "delayed", "redelivered", "bell", "waiting", "consumers",
    "seen", "named", "windows", "gone",
)  # fmt: skip
#: The part that outlives its queue, for a week.
TRACE = "gone"

_WORD = r"[A-Za-z0-9][A-Za-z0-9._:/-]*"
_NAME = re.compile(rf"(?:{_WORD}|\{{{_WORD}\}}[A-Za-z0-9._:/-]+)", re.ASCII)
_NAMESPACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_MAX_NAME = 128


def check_queue_name(name: object, argument: str = "queue name") -> str:
    """Return `name` if a queue may be called so, raise `InvalidName` otherwise, which names the `argument`.

    A name has 1 to 128 of `A-Z a-z 0-9 . _ : / -` and starts with a letter or digit. It may begin with a hash tag,
    as in `{billing}.orders`, to share a Redis Cluster slot with others of that tag.
    """
    text = plain_text(name)
    if text is None or len(text) > _MAX_NAME or not _NAME.fullmatch(text):
        rule = f"1 to {_MAX_NAME} of A-Z a-z 0-9 . _ : / -, first a letter or digit"
        raise InvalidName(f"{argument}: expected {rule}, got {shown(name)}")
    return text


def queue_name(member: bytes) -> str | None:
    """The name that a member of the registry is; None if no queue can have it."""
    text = member.decode("ascii", "replace")
    return text if len(text) <= _MAX_NAME and _NAME.fullmatch(text) else None


def queue_names(members: Iterable[bytes]) -> list[str]:
    """The names of queues in the registry, sorted. Other members, which somebody else has added, are left out."""
    return sorted(name for name in map(queue_name, members) if name is not None)


def check_namespace(namespace: object) -> str:
    """Return `namespace` if keys may start with it, raise `InvalidName` otherwise."""
    text = plain_text(namespace)
    if text is None or not _NAMESPACE.fullmatch(text):
        raise InvalidName(f"namespace: expected 1 to 64 of A-Z a-z 0-9 . _ -, got {shown(namespace)}")
    return text


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
