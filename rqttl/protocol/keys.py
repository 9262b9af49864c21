"""The parts of a queue, and the names of all keys in Redis. Only this module spells a key."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rqttl.checks import is_queue_name


@dataclass(frozen=True, slots=True)
class AwayState:
    """A state other than ready. Its part is a sorted set of sequences, each by the end of the state in ms × `per_ms`.

    A field of `QueueStats` has the `name` of the state, and counts its messages; the field `end` has the time at which
    the first of them leaves the state. A sweep promotes the messages at that time, or, if it is not `promoted`, a
    fragment of the state takes them back. Messages enter it only `from_lease`: before the first lease it is empty.
    """

    name: str
    end: str = ""
    per_ms: int = 1
    promoted: bool = True
    from_lease: bool = False


@dataclass(frozen=True, slots=True)
class Part:
    """One key of each queue: its Redis type, and its contents in words.

    A dead letter touches the parts `in_target` of its target. A part that `outlives` its queue stays when the queue is
    deleted. `state` is the state of the messages that a part names.
    """

    name: str
    type: str
    holds: str
    has_messages: bool = False
    in_target: bool = False
    outlives: bool = False
    state: AwayState | None = None


META, LOG, DETACHED, ARRIVALS, WAKEUP, TOMBSTONE = "meta", "log", "detached", "arrivals", "wakeup", "tombstone"
EXPIRY, REQUEUED = "expiry", "requeued"

#: The one table of the parts of a queue. Headers of scripts with `*` have the keys in this order.
PARTS: Mapping[str, Part] = {
    part.name: part
    for part in (
        Part(META, "hash", "the record of the queue, below; the queue exists while its record does", in_target=True),
        Part(
            LOG,
            "stream",
            "messages, one pair each: packed header as field name, body as value; removed when settled or dead",
            has_messages=True,
            in_target=True,
        ),
        Part(
            DETACHED,
            "hash",
            "sequence → `<length of header>:<header><body>`: messages in any state that compaction moved out of the "
            "log",
            has_messages=True,
            in_target=True,
        ),
        Part(
            ARRIVALS,
            "zset",
            "of a dead-letter queue `<sequence> <enqueued> <letters> <letter_bytes>` by the ms in the sequence: for "
            "about every 1,024th arrival these fields of `meta`, as they were after it",
            in_target=True,
        ),
        Part(EXPIRY, "zset", "sequence by own deadline: the ready messages that have one, no others"),
        Part(
            "leases",
            "zset",
            "sequence by token, for leased messages: end of the lease in ms × 1000 + (number of the grant mod 1000)",
            state=AwayState("leased", "next_lease_end", per_ms=1000, promoted=False, from_lease=True),
        ),
        Part(
            REQUEUED,
            "zset",
            "sequence by the ms in it: ready messages behind the cursor, given back or moved to `detached`, in log "
            "order",
        ),
        Part(
            "delayed",
            "zset",
            "sequence by due time: messages given back with a delay, or delayed after a failed delivery. They "
            "are due at their deadline at the latest; a change of `message_ttl` moves it",
            state=AwayState("delayed", "next_delay_end", from_lease=True),
        ),
        Part(
            "failures",
            "hash",
            "sequence → `<failed deliveries>` or `<failed deliveries> <description>`, with the last description of a "
            "failure. Behind the number stands `@<ms>`, the end of the delay, for a delayed message whose retention "
            "ends earlier, also for one that never failed",
        ),
        Part(
            WAKEUP,
            "list",
            "at most one hint (an empty string), and tickets `<sequence> <token>` of messages handed to consumers "
            "that wait. Of a deleted queue: a hint for each consumer that waited, at most 1,000; Redis removes them "
            "after a minute",
            in_target=True,
        ),
        Part(
            "waiters",
            "zset",
            "consumers that wait, by the ms until which they count as waiting: 5 s longer than they block; and "
            "sequences of messages on the way to them, by minus the ms at which their ticket ends",
            in_target=True,
        ),
        Part("consumers", "zset", "consumers, by the ms until which they count as consumers (`stats`, `if_unused`)"),
        Part("dedup", "zset", "names of messages by the ms of their last storing, with `duplicate_window`"),
        Part(
            "dedup_ids",
            "set",
            "names of messages from calls with a window of their own, each also in one of `dedup_windows`",
        ),
        Part("dedup_windows", "zset", "the names of one call, a line each, by the end of the window of the call"),
        Part(
            TOMBSTONE,
            "hash",
            "as `deleted` the `created_at` of the last deleted queue of this name; and of the last one that lost "
            "messages its `created_at` and `trimmed_upto`, and as `last_id` its highest sequence, in any state (`0-0`: "
            "none). Redis removes it 7 days after the last deletion",
            in_target=True,
            outlives=True,
        ),
    )
}
#: The parts of a target queue that a dead letter touches, in the order in which their keys are passed.
TARGET_PARTS = tuple(part.name for part in PARTS.values() if part.in_target)
#: The states other than ready, by part.
STATES: Mapping[str, AwayState] = {part.name: part.state for part in PARTS.values() if part.state}
#: The lists of parts that scripts walk with `each`. A message of `detached` is in exactly one set `behind_cursor`; all
#: `sets` name messages.
LISTS: Mapping[str, tuple[str, ...]] = {
    "states": tuple(STATES),
    "promoted": tuple(name for name, state in STATES.items() if state.promoted),
    "behind_cursor": (*STATES, REQUEUED),
    "sets": (*STATES, REQUEUED, EXPIRY),
    "deleted": tuple(part.name for part in PARTS.values() if not part.outlives),
}


def queue_name(member: bytes) -> str | None:
    """A member of the registry as the name of a queue; `None` if no queue can have that name."""
    text = member.decode("ascii", "replace")
    return text if is_queue_name(text) else None


def queue_names(members: Iterable[bytes]) -> list[str]:
    """The names of queues in the registry, sorted. Members from other programs are left out."""
    return sorted(filter(None, map(queue_name, members)))


@dataclass(frozen=True, slots=True)
class Keyspace:
    """All keys of one namespace."""

    namespace: str = "rqttl"

    def key(self, queue: str, part: str) -> str:
        """One key of one queue.

        Its hash tag, which selects the slot on Redis Cluster, is an explicit `{tag}` at the start of the name, else the
        part before the first `/`, else the whole name.
        """
        if queue.startswith("{"):
            return f"{self.namespace}:{queue}:{part}"
        tag, slash, remainder = queue.partition("/")
        return f"{self.namespace}:{{{tag}}}{slash}{remainder}:{part}"

    def split(self, key: bytes) -> tuple[str, str] | None:
        """The queue and the part of a key of this namespace; `None` for a key that no queue can have."""
        tagged, _, part = key.decode("utf-8", "replace").removeprefix(f"{self.namespace}:").rpartition(":")
        tag, _, suffix = tagged.removeprefix("{").partition("}")
        name = tagged if suffix and not suffix.startswith("/") else tag + suffix
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
    def policies(self) -> str:
        """The hash of all policies and operator policies, and their version."""
        return f"{self.namespace}:policies"

    @property
    def workers(self) -> str:
        """The hash of all workers and reapers: a name, and the facts of the last beat as JSON."""
        return f"{self.namespace}:workers"

    @property
    def dataset(self) -> str:
        """The hash with the random name of the data, made before the first queue."""
        return f"{self.namespace}:dataset"

    @property
    def due_channel(self) -> str:
        """The channel on which scripts tell reapers that a queue has become due earlier."""
        return f"{self.namespace}:due"
