"""Flows about the registry, the set of all names of queues, and about the roster of living workers and reapers."""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from rqttl.checks import queue_names
from rqttl.flows.steps import Flow, HandleNotes, Read, Write, execute
from rqttl.protocol import replies
from rqttl.protocol.keys import Keyspace
from rqttl.text import escape, load_object
from rqttl.types import WorkerInfo
from rqttl.units import as_datetime

logger = logging.getLogger("rqttl")

#: The number of members in one page of a scan, and of records in one round trip.
PAGE = 1000


def register(keyspace: Keyspace, queue: str) -> Flow[int]:
    """Add a queue. Returns 1 if it was missing. The first queue of a namespace gives the data its random name.

    A server that has lost its data gets another name, so a reader that knows the name learns of the loss.
    """
    name = ("HSETNX", keyspace.dataset, "name", secrets.token_hex(8))
    entry = ("SADD", keyspace.registry, queue)
    *_, added = yield Write([name, entry])
    return replies.shaped("SADD", replies.number, added)


def unregister(keyspace: Keyspace, queue: str) -> Flow[int]:
    """Remove a deleted queue. Returns 1 if it was a member. A queue that was created again meanwhile stays.

    A change of policies looks at the members only. Such a queue was none for a moment, so it is reconciled.
    """
    removed = yield from remove(keyspace, [queue])
    if not (yield from execute(replies.number, "EXISTS", keyspace.key(queue, "meta"))):
        return removed
    entered = yield from register(keyspace, queue)
    yield HandleNotes((b"created", queue.encode()))
    return entered


def members(keyspace: Keyspace) -> Flow[set[bytes]]:
    """All members, read in pages."""
    entries: set[bytes] = set()
    cursor = 0
    while True:
        (reply,) = yield Read([("SSCAN", keyspace.registry, cursor, "COUNT", PAGE)])
        cursor, names = replies.shaped("SSCAN", replies.page, reply)
        entries.update(names)
        if cursor == 0:
            return entries


def registered(keyspace: Keyspace) -> Flow[list[str]]:
    """The names of queues in the registry, sorted, also of those that do not exist any more."""
    return queue_names((yield from members(keyspace)))


def records(keyspace: Keyspace, queues: Sequence[str], fields: Sequence[str]) -> Flow[Mapping[str, Any]]:
    """These fields of the record of each queue. The error of a record takes the place of its fields."""
    found: dict[str, Any] = {}
    for start in range(0, len(queues), PAGE):
        page = queues[start : start + PAGE]
        calls = [("HMGET", keyspace.key(queue, "meta"), *fields) for queue in page]
        found.update(zip(page, (yield Read(calls, keep_errors=True)), strict=True))
    return found


def remove(keyspace: Keyspace, members: Sequence[str | bytes]) -> Flow[int]:
    """Remove members, in one call. Returns how many there were."""
    return execute(replies.number, "SREM", keyspace.registry, *members)


#: The time after its last beat for which a worker counts as alive.
ALIVE = timedelta(seconds=30)
#: The time after its last beat after which another worker removes its entry.
FORGOTTEN = timedelta(hours=1)


def beat(keyspace: Keyspace, name: str, details: Mapping[str, Any], *, now: int) -> Flow[None]:
    """Write the entry of a worker. `now` is the time by the clock of Redis, in ms."""
    text = json.dumps({**details, "beat": now})
    yield Write([("HSET", keyspace.workers, name, text)])


def leave_roster(keyspace: Keyspace, name: str, *, now: int) -> Flow[None]:
    """Remove the entry of a worker that ends, entries that are an hour old, and entries that cannot be read."""
    (entries,) = yield Read([("HGETALL", keyspace.workers)])
    infos = {field: _info(field, text) for field, text in replies.pairs(entries).items()}
    for field in (field for field, info in infos.items() if info is None):
        logger.warning("workers: the entry %s cannot be read, removed", escape(field, 100))
    old = [field for field, info in infos.items() if info is None or as_datetime(now) - info.beat > FORGOTTEN]
    yield Write([("HDEL", keyspace.workers, name, *old)])


def workers(keyspace: Keyspace) -> Flow[list[WorkerInfo]]:
    """The workers and reapers that live, sorted by role and name. Entries that cannot be read are left out."""
    entries, moment = yield Read([("HGETALL", keyspace.workers), ("TIME",)])
    seconds, micros = replies.moment(moment)
    now = as_datetime(seconds * 1000 + micros // 1000)
    infos = [_info(name, text) for name, text in replies.pairs(entries).items()]
    return sorted([one for one in infos if one and now - one.beat <= ALIVE], key=lambda one: (one.role, one.name))


def _info(name: bytes, text: bytes) -> WorkerInfo | None:
    """An entry as a value; `None` for an entry that no worker of this version has written."""
    try:
        details = load_object(text)
        last = details["last_claim"]
        return WorkerInfo(
            name.decode("utf-8", "replace"),
            str(details["role"]),
            str(details["host"]),
            int(details["pid"]),
            tuple(map(str, details["queues"])),
            int(details["slots"]),
            tuple((str(queue), str(id), as_datetime(int(start))) for queue, id, start in details["running"]),
            int(details["handled"]),
            int(details["failed"]),
            int(details["rss"]),
            str(details["version"]),
            as_datetime(int(details["started"])),
            None if last is None else as_datetime(int(last)),
            as_datetime(int(details["beat"])),
        )
    except (ValueError, TypeError, KeyError, OverflowError, OSError):
        return None
