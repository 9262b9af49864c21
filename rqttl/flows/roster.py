"""Flows about the roster: the consumers, workers and reapers that live, each with an entry that it writes itself."""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Mapping
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from typing import Any

from rqttl.errors import QueueNotFound
from rqttl.flows.steps import Flow, Read, Write
from rqttl.protocol import replies
from rqttl.protocol.keys import META, Keyspace
from rqttl.text import escape, load_object
from rqttl.types import ConsumerInfo, WorkerInfo
from rqttl.units import as_datetime

logger = logging.getLogger("rqttl")

#: The time after its last entry after which another process removes it.
FORGOTTEN = timedelta(hours=1)
#: The number of entries that each one that ends looks through, on average, so that many may end at once.
LOOKED_THROUGH = 100
#: The ms for which an entry counts that does not say it.
ALIVE = 30_000
#: What the entry of another version, or of another program, may raise.
_UNREADABLE = (ValueError, TypeError, KeyError, AttributeError, OverflowError, OSError)
#: The facts of an entry, with `beat` as a time and `lives` as a duration; `None` for one that cannot be read.
_Facts = dict[str, Any] | None


def enter(keyspace: Keyspace, name: str, entry: Mapping[str, Any]) -> Flow[None]:
    """Write an entry. Its `beat` is the time by the clock of Redis, `lives` the ms for which it counts."""
    yield Write([("HSET", keyspace.workers, name, json.dumps(entry))])


def leave(keyspace: Keyspace, name: str) -> Flow[None]:
    """Remove the entry of one that ends, and old and unreadable ones: where many are left, only now and then."""
    _, left = yield Write([("HDEL", keyspace.workers, name), ("HLEN", keyspace.workers)])
    if random.random() * left >= LOOKED_THROUGH:
        return
    entries, now = yield from _read(keyspace)
    for field in (field for field, facts in entries.items() if facts is None):
        logger.warning("workers: removed the entry %s, which cannot be read", escape(field, 100))
    old = [field for field, facts in entries.items() if facts is None or now - facts["beat"] > FORGOTTEN]
    if old:
        yield Write([("HDEL", keyspace.workers, *old)])


def workers(keyspace: Keyspace, *, consumers: bool = False) -> Flow[list[WorkerInfo]]:
    """See `Broker.workers`. Entries that cannot be read are left out."""
    entries, now, *_ = yield from _read(keyspace)
    infos = [_worker(name, facts) for name, facts in _living(entries, now) if consumers or not _consumes(facts)]
    return sorted([one for one in infos if one], key=lambda one: (one.role, one.name))


def reaper_count(keyspace: Keyspace) -> Flow[int]:
    """The number of reapers that live. Channels have no database: the hints of one reach the reapers of all."""
    return sum(one.role == "reaper" for one in (yield from workers(keyspace)))


def consumers(keyspace: Keyspace, queue: str) -> Flow[list[ConsumerInfo]]:
    """The consumers and workers of a queue that live, the oldest first. Raises `QueueNotFound`."""
    entries, now, exists = yield from _read(keyspace, ("EXISTS", keyspace.key(queue, META)))
    if not exists:
        raise QueueNotFound(queue)
    infos = [_consumer(name, facts, queue) for name, facts in _living(entries, now)]
    return sorted([one for one in infos if one], key=lambda one: (one.started, one.name))


def _living(entries: Mapping[bytes, _Facts], now: datetime) -> list[tuple[str, dict[str, Any]]]:
    return [
        (field.decode("utf-8", "replace"), facts)
        for field, facts in entries.items()
        if facts is not None and now - facts["beat"] <= facts["lives"]
    ]


def _read(keyspace: Keyspace, *calls: tuple[str, ...]) -> Flow[Any]:
    """All entries, the time, and the replies of further calls."""
    entries, time, *more = yield Read([("HGETALL", keyspace.workers), ("TIME",), *calls])
    now = as_datetime(replies.milliseconds(time))
    return {field: _facts(text) for field, text in replies.pairs(entries).items()}, now, *more


def _facts(text: bytes) -> _Facts:
    try:
        facts = load_object(text)
        beat, lives = as_datetime(int(facts["beat"])), timedelta(milliseconds=int(facts.get("lives", ALIVE)))
    except _UNREADABLE:
        return None
    return {**facts, "beat": beat, "lives": lives}


def _consumes(facts: dict[str, Any]) -> bool:
    return facts.get("role") == "consumer"


def _worker(name: str, facts: dict[str, Any]) -> WorkerInfo | None:
    """An entry as a value; `None` for one that nobody of this version has written."""
    try:
        if _consumes(facts):
            held = [(queue, oldest, since) for queue, (_, oldest, since, _) in facts["held"].items() if oldest]
            facts = {**facts, "slots": facts["prefetch"], "running": held, "last_claim": None}
            facts |= dict.fromkeys(("handled", "failed", "rss"), 0)
        last = facts["last_claim"]
        return WorkerInfo(
            name,
            str(facts["role"]),
            str(facts["host"]),
            int(facts["pid"]),
            tuple(map(str, facts["queues"])),
            int(facts["slots"]),
            tuple((str(queue), str(id), as_datetime(int(start))) for queue, id, start in facts["running"]),
            int(facts["handled"]),
            int(facts["failed"]),
            int(facts["rss"]),
            str(facts["version"]),
            as_datetime(int(facts["started"])),
            None if last is None else as_datetime(int(last)),
            facts["beat"],
            str(facts.get("program", "")),
        )
    except _UNREADABLE:
        return None


def _consumer(name: str, facts: dict[str, Any], queue: str) -> ConsumerInfo | None:
    """An entry as a consumer of this queue; `None` if it is none, or no consumer of this version has written it."""
    try:
        # names and patterns, perhaps with a weight, such as `orders=3`
        if not any(fnmatchcase(queue, str(one).partition("=")[0]) for one in facts["queues"]):
            return None
        held = facts["held"].get(queue)
        number, oldest, since, leases = held or (0, None, None, {})
        return ConsumerInfo(
            name,
            str(facts["role"]),
            str(facts["host"]),
            int(facts["pid"]),
            str(facts["program"]),
            str(facts["version"]),
            as_datetime(int(facts["started"])),
            int(facts["prefetch"]),
            int(number),
            None if oldest is None else str(oldest),
            None if since is None else as_datetime(int(since)),
            {str(seq): as_datetime(int(end)) for end, seqs in leases.items() for seq in seqs},
            facts["beat"],
        )
    except _UNREADABLE:
        return None
