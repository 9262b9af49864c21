"""The whole state of all queues, raw from Redis in one transaction, and the invariants that must always hold in it."""

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import redis

from rqttl.protocol import codec
from rqttl.protocol.keys import Keyspace
from tests.model.queues import PICKUP

COUNTERS = (
    *("enqueued", "delivered", "redelivered", "acked", "refused", "purged", "redriven", "activated", "cancelled"),
    *("copies", "unrouted"),
)


@lru_cache(maxsize=4096)
def unpack_header(header: bytes) -> codec.ParsedHeader:
    return codec.unpack_header(header)


def mapping(flat: list[bytes]) -> dict[bytes, bytes]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


def numbers(flat: list[bytes]) -> dict[bytes, int]:
    return {member: int(score) for member, score in mapping(flat).items()}


def unpacked(flat: list[bytes]) -> dict[bytes, tuple[bytes, bytes]]:
    """The two parts of each value `<length of the first>:<first><second>`."""
    parts = {name: value.partition(b":") for name, value in mapping(flat).items()}
    return {name: (rest[: int(length)], rest[int(length) :]) for name, (length, _, rest) in parts.items()}


def log_entries(found: list[Any]) -> dict[bytes, tuple[bytes, bytes]]:
    return {seq: (header, body) for seq, (header, body) in found}


#: The commands that read one queue, in the order of the fields that they fill, and what makes a field of a reply.
READS: tuple[tuple[Callable[[list[Any]], Any], tuple[Any, ...]], ...] = (
    (mapping, ("HGETALL", "meta")),
    (log_entries, ("XRANGE", "log", "-", "+")),
    (unpacked, ("HGETALL", "detached")),
    (numbers, ("ZRANGE", "expiry", 0, -1, "WITHSCORES")),
    (mapping, ("ZRANGE", "leases", 0, -1, "WITHSCORES")),
    (numbers, ("ZRANGE", "requeued", 0, -1, "WITHSCORES")),
    (numbers, ("ZRANGE", "delayed", 0, -1, "WITHSCORES")),
    (mapping, ("HGETALL", "failures")),
    (list, ("LRANGE", "wakeup", 0, -1)),
    (numbers, ("ZRANGE", "waiters", 0, -1, "WITHSCORES")),
    (numbers, ("ZRANGE", "arrivals", 0, -1, "WITHSCORES")),
    (numbers, ("ZRANGE", "scheduled", 0, -1, "WITHSCORES")),
    (unpacked, ("HGETALL", "upcoming")),
    (mapping, ("HGETALL", "scheduled_ids")),
    (numbers, ("ZRANGE", "scheduled_more", 0, -1, "WITHSCORES")),
)
WAKEUP = [part for _, (_, part, *_) in READS].index("wakeup")


@dataclass
class RawQueue:
    """One queue as Redis keeps it. `entries` are all messages in order, from the log and from `detached`."""

    meta: dict[bytes, bytes]
    entries: dict[bytes, tuple[bytes, bytes]]
    expiry: dict[bytes, int]
    leases: dict[bytes, bytes]
    requeued: dict[bytes, int]
    delayed: dict[bytes, int]
    all_failures: dict[bytes, bytes]
    wakeup: list[bytes]
    waiters: dict[bytes, int]
    #: The marks of the index of arrivals.
    arrivals: dict[bytes, int]
    scheduled: dict[bytes, int]
    #: The envelope and the body of each scheduled message.
    upcoming: dict[bytes, tuple[bytes, bytes]]
    scheduled_ids: dict[bytes, bytes]
    scheduled_more: dict[bytes, int]

    @property
    def named(self) -> dict[bytes, list[bytes]]:
        """The first sequences of scheduled messages by id, in order."""
        found = {id: seqs.split(b" ") for id, seqs in self.scheduled_ids.items()}
        for member in self.scheduled_more:
            length, _, rest = member[1:].partition(b";;")
            found.setdefault(rest[: int(length)], []).append(rest[int(length) :])
        return {id: sorted(seqs) for id, seqs in found.items()}

    @property
    def due(self) -> int | None:
        due = self.meta.get(b"due_at")
        return int(due) if due else None

    @property
    def counters(self) -> Counter[str]:
        """All counters; a field of the record that is one has a known name or says a reason."""
        found = {name.decode(): value for name, value in self.meta.items()}
        return Counter({n: int(v) for n, v in found.items() if n in COUNTERS or n.startswith(("deaths:", "dropped:"))})

    @property
    def away(self) -> dict[bytes, int]:
        """Until when each delayed message is to be away, also where its retention ends earlier."""
        ends = {seq: value.partition(b" ")[0].partition(b"@")[2] for seq, value in self.all_failures.items()}
        assert all(seq in self.delayed for seq, end in ends.items() if end), "a message that is not away has an end"
        return {seq: int(ends.get(seq) or score) for seq, score in self.delayed.items()}

    @property
    def failures(self) -> dict[bytes, bytes]:
        """The failed deliveries of those messages that have some, and the last description."""
        parts = {seq: value.partition(b" ") for seq, value in self.all_failures.items()}
        numbers = {seq: (told.partition(b"@")[0], gap + text) for seq, (told, gap, text) in parts.items()}
        return {seq: n + text for seq, (n, text) in numbers.items() if n != b"0"}


def free(ends: Collection[int], now: int) -> int:
    """The number of waiting consumers without a message under way: such messages have negative times.

    One with a later time than any has is from before a step back of the clock.
    """
    return max(0, sum(until > now for until in ends) - sum(now < -until <= now + PICKUP for until in ends))


def raw_queue(found: list[Any]) -> RawQueue:
    meta, log, detached, *others = (read(one) for (read, _), one in zip(READS, found, strict=True))
    assert not log.keys() & detached.keys(), "a message is in the log and in detached"
    return RawQueue(meta, dict(sorted((log | detached).items())), *others)


class Reader:
    """Reads all queues of a fixed set of names in one round trip."""

    def __init__(self, client: redis.Redis, names: tuple[str, ...]) -> None:
        self._names = names
        self._keyspace = Keyspace()
        # protocol 2: flat lists and scores as text, so that nothing is rounded
        pool = client.connection_pool
        self._connection = pool.connection_class(**{**pool.connection_kwargs, "protocol": 2})
        words: list[tuple[Any, ...]] = [("MULTI",)]
        for name in names:
            words += [(command, self._keyspace.key(name, part), *rest) for _, (command, part, *rest) in READS]
        words += [("HGETALL", self._trace(name)) for name in names]
        words += [("HGETALL", self._keyspace.policies), ("SMEMBERS", self._keyspace.registry), ("KEYS", "*"), ("EXEC",)]
        self._packed = self._connection.pack_commands(words)
        #: The traces of queues that were deleted, by name.
        self.gone: dict[str, dict[bytes, bytes]] = {}
        #: The stored policies, and their version.
        self.policies: dict[bytes, bytes] = {}
        self._replies = len(words)

    def read(self) -> tuple[dict[str, RawQueue], set[str]]:
        """The queues that exist, and the registry."""
        self._connection.send_packed_command(self._packed)
        *parts, policies, registry, keys = [self._connection.read_response() for _ in range(self._replies)][-1]
        parts, gone = parts[: -len(self._names)], parts[-len(self._names) :]
        queues, hints = {}, set()
        for i, name in enumerate(self._names):
            part = parts[i * len(READS) : (i + 1) * len(READS)]
            if part[0]:
                queues[name] = raw_queue(part)
            elif set(part[WAKEUP]) == {b""}:  # for the consumers that waited at the deletion
                hints.add(self._keyspace.key(name, "wakeup"))
        self.gone = {name: mapping(found) for name, found in zip(self._names, gone, strict=True) if found}
        self.policies = mapping(policies)
        shared = {self._keyspace.registry, self._keyspace.policies, self._keyspace.dataset}
        strays = {key.decode() for key in keys} - {*shared, *hints, *map(self._trace, self._names)}
        for name in queues:
            prefix = self._keyspace.key(name, "")
            strays = {key for key in strays if not key.startswith(prefix)}
        assert not strays, f"keys that belong to no queue: {strays}"
        return queues, {name.decode() for name in registry}

    def close(self) -> None:
        self._connection.disconnect()

    def _trace(self, name: str) -> str:
        return self._keyspace.key(name, "tombstone")


def check_places(raw: RawQueue) -> None:
    """Every message is in exactly one place, and no index names a message that is not there."""
    cursor = raw.meta[b"cursor"]
    aside = (raw.leases.keys(), raw.delayed.keys(), raw.requeued.keys())
    assert sum(map(len, aside)) == len(set().union(*aside)), "a message is in two places"
    assert raw.scheduled.keys() == raw.upcoming.keys(), "half of a scheduled message"
    assert not raw.scheduled.keys() & raw.entries.keys(), "a message has arrived and is still scheduled"
    named = [seq for seqs in raw.named.values() for seq in seqs]
    assert len(named) == len(set(named)), "a scheduled message has two ids"
    for name in ("expiry", "leases", "requeued", "delayed", "failures"):
        strays = getattr(raw, name).keys() - raw.entries.keys()
        assert not strays, f"{name} names messages that are not there: {strays}"
    out = raw.leases.keys() | raw.delayed.keys()
    for seq in raw.entries:
        if seq <= cursor:
            assert seq in out or seq in raw.requeued, f"{seq!r} is behind the cursor and nowhere else: lost"
        else:
            assert seq not in out, f"{seq!r} is ahead of the cursor and taken"
            assert seq not in raw.requeued, f"{seq!r} is ahead of the cursor and behind it"
    assert cursor <= raw.meta[b"last_id"] or cursor == b"0-0"
    assert all(score == int(seq[:13]) for seq, score in raw.requeued.items())
