"""The parts of a queue, and the names of all keys in Redis. Only this module spells a key."""

from __future__ import annotations

from binascii import crc_hqx
from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AwayState:
    """A state other than ready. Its part is a sorted set of sequences, each by the end of the state in ms × `per_ms`.

    A field of `QueueStats` has the `name` of the state, and counts its messages; the field `end` has the time at which
    the first of them leaves the state. A sweep promotes the messages at that time, or, if it is not `promoted`, a
    fragment of the state takes them back. Before `begun` is set in the record, the state is empty. Messages of a state
    that is not `inside` are in neither `log` nor `detached`.
    """

    name: str
    end: str = ""
    per_ms: int = 1
    promoted: bool = True
    begun: str = "lease_grants"
    inside: bool = True


@dataclass(frozen=True, slots=True)
class Part:
    """One key of each queue. What it holds: `lua/README.md`.

    A dead letter touches the parts `in_target` of its target. A part that `outlives` its queue stays when the queue is
    deleted. `state` is the state of the messages that a part names.
    """

    name: str
    type: str
    in_target: bool = False
    outlives: bool = False
    state: AwayState | None = None


META, LOG, DETACHED, ARRIVALS, WAKEUP, TOMBSTONE = "meta", "log", "detached", "arrivals", "wakeup", "tombstone"
EXPIRY, REQUEUED, SCHEDULED, UPCOMING = "expiry", "requeued", "scheduled", "upcoming"
SCHEDULED_IDS, SCHEDULED_MORE, OUTGOING = "scheduled_ids", "scheduled_more", "outgoing"
#: Parts that a queue has for each other one in another slot, as `outbox>dead`: its dead letters on the way there, and
#: the last page that came from there; and both for a redrive.
PAIRED = (OUTBOX := "outbox", "sender", "redrive", "redriver")
_LEASED = AwayState("leased", "next_lease_end", per_ms=1000, promoted=False)
_SCHEDULED = AwayState("scheduled", "next_scheduled", promoted=False, begun="arrival_at", inside=False)

#: The one table of the parts of a queue. Headers of scripts with `*` have the keys in this order.
PARTS: Mapping[str, Part] = {
    part.name: part
    for part in (
        Part(META, "hash", in_target=True),
        Part(LOG, "stream", in_target=True),
        Part(DETACHED, "hash", in_target=True),
        Part(ARRIVALS, "zset", in_target=True),
        Part(EXPIRY, "zset"),
        Part("leases", "zset", state=_LEASED),
        Part(REQUEUED, "zset"),
        Part("delayed", "zset", state=AwayState("delayed", "next_delay_end")),
        Part("failures", "hash"),
        Part(SCHEDULED, "zset", state=_SCHEDULED),
        Part(UPCOMING, "hash"),
        Part(SCHEDULED_IDS, "hash"),
        Part(SCHEDULED_MORE, "zset"),
        Part(WAKEUP, "list", in_target=True),
        Part("waiters", "zset", in_target=True),
        Part("consumers", "zset"),
        Part("dedup", "zset"),
        Part("dedup_ids", "set"),
        Part("dedup_windows", "zset"),
        Part(OUTGOING, "hash", outlives=True),
        Part(TOMBSTONE, "hash", in_target=True, outlives=True),
    )
}
#: The parts of a target queue that a dead letter touches, in the order in which their keys are passed.
TARGET_PARTS = tuple(part.name for part in PARTS.values() if part.in_target)
#: The states other than ready, by part.
STATES: Mapping[str, AwayState] = {part.name: part.state for part in PARTS.values() if part.state}
#: The states of messages in `log` or `detached`.
INSIDE = tuple(name for name, state in STATES.items() if state.inside)
#: The lists of parts that scripts walk with `each`. A message of `detached` is in exactly one set `behind_cursor`; all
#: `sets` name messages.
LISTS: Mapping[str, tuple[str, ...]] = {
    "states": INSIDE,
    "counted": tuple(STATES),
    "promoted": tuple(name for name, state in STATES.items() if state.promoted),
    "behind_cursor": (*INSIDE, REQUEUED),
    "sets": (*INSIDE, REQUEUED, EXPIRY),
    "deleted": tuple(part.name for part in PARTS.values() if not part.outlives),
}
#: The keys of a whole namespace.
SHARED = ("queues", "dataset", "policies", "workers", "routes")
#: The keys of results, one each: no part of a queue, and each in a slot of its own.
RESULT = "result"


#: The number of hash slots of a Redis Cluster.
SLOTS = 16384


def slot_of(key: str) -> int:
    """The hash slot of a key of rqttl. Each has a hash tag."""
    start = key.index("{") + 1
    return crc_hqx(key[start : key.index("}", start)].encode(), 0) % SLOTS


@dataclass(frozen=True, slots=True)
class Keyspace:
    """All keys of one namespace. On a cluster it is `slotted`: no script may touch keys of two slots."""

    namespace: str = "rqttl"
    slotted: bool = False

    def key(self, queue: str, part: str) -> str:
        """One key of one queue.

        Its hash tag, which selects the slot on Redis Cluster, is an explicit `{tag}` at the start of the name, else the
        part before the first `/`, else the whole name.
        """
        if queue.startswith("{"):
            return f"{self.namespace}:{queue}:{part}"
        tag, slash, remainder = queue.partition("/")
        return f"{self.namespace}:{{{tag}}}{slash}{remainder}:{part}"

    def in_another_slot(self, queue: str, other: str) -> bool:
        """Return True if no script may touch both queues."""
        return self.slotted and slot_of(self.key(queue, META)) != slot_of(self.key(other, META))

    def split(self, key: bytes) -> tuple[str, str] | None:
        """The queue and the part of a key of this namespace; `None` for a key of another form."""
        text, mark, other = key.decode("utf-8", "replace").removeprefix(f"{self.namespace}:").partition(">")
        tagged, _, part = text.rpartition(":")
        part += mark + other
        tag, _, suffix = tagged.removeprefix("{").partition("}")
        name = tagged if suffix and not suffix.startswith("/") else tag + suffix
        return (name, part) if name and self.key(name, part).encode() == key else None

    def woken(self, pairs: Iterable[tuple[str, bytes | None]]) -> list[tuple[str, bytes | None]]:
        """The queues of wake-up lists with their elements."""
        return [(split[0], element) for key, element in pairs if (split := self.split(key.encode()))]

    def _shared(self, name: str) -> str:
        """A key of the whole namespace. All of them have one hash tag, so they lie in one slot."""
        return f"{self.namespace}:{name}{{{self.namespace}}}"

    def place(self, queue: str, name: str) -> str:
        """The key of a part of a queue, here also if the part is for another queue; or the shared key of this name."""
        part = f"{name}>{queue}" if name in PAIRED else name
        return self._shared(name) if name in SHARED else self.key(queue, part)

    def pattern(self, name: str) -> str:
        """The pattern of a part of all queues, of all their parts (`{*`), or of everything (`*`); or a shared key."""
        if name in SHARED:
            return self._shared(name)
        if name == RESULT:
            return self.result("*").removesuffix("}")
        every = f"{{*:{name}{'>*' * (name in PAIRED)}"
        return f"{self.namespace}:{name if name.endswith('*') else every}"

    def result(self, id: str) -> str:
        """The key of the result of a task."""
        return f"{self.namespace}:{RESULT}{{{id}}}"

    @property
    def everything(self) -> str:
        """The pattern that all keys of the namespace match."""
        return f"{self.namespace}:*"

    @property
    def registry(self) -> str:
        """The set of all queue names."""
        return self._shared("queues")

    @property
    def policies(self) -> str:
        """The hash of all policies and operator policies, and their version."""
        return self._shared("policies")

    @property
    def workers(self) -> str:
        """The hash of all consumers, workers and reapers: a name, and the facts of the last beat as JSON."""
        return self._shared("workers")

    @property
    def dataset(self) -> str:
        """The hash with the random name of the data, made before the first queue."""
        return self._shared("dataset")

    @property
    def routes(self) -> str:
        """The sorted set of all bindings of kombu: an exchange, a queue and a routing key each."""
        return self._shared("routes")

    @property
    def due_channel(self) -> str:
        """The channel on which scripts tell reapers that a queue has become due earlier."""
        return f"{self.namespace}:due"
