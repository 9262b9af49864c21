"""Flows about the roster: the hash of all workers and reapers that live."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

from rqttl.flows.steps import Flow, Read, Write
from rqttl.json_text import load_object
from rqttl.protocol import replies
from rqttl.protocol.keys import Keyspace
from rqttl.text import escape
from rqttl.types import WorkerInfo
from rqttl.units import as_datetime

logger = logging.getLogger("rqttl")

#: The ms after its last beat for which a worker counts as alive.
ALIVE = 30_000
#: The ms after its last beat after which another worker removes its entry.
FORGOTTEN = 3_600_000


def beat(keyspace: Keyspace, name: str, details: Mapping[str, Any], *, now: int) -> Flow[None]:
    """Write the entry of a worker. `now` is the time by the clock of Redis, in ms."""
    text = json.dumps({**details, "beat": now})
    (reply,) = yield Write([("HSET", keyspace.workers, name, text)], keep_errors=True)
    if isinstance(reply, Exception):
        raise reply


def leave_roster(keyspace: Keyspace, name: str, *, now: int) -> Flow[None]:
    """Remove the entry of a worker that ends, entries that are an hour old, and entries that no worker has written."""
    (entries,) = yield Read([("HGETALL", keyspace.workers)], keep_errors=True)
    if isinstance(entries, Exception):
        raise entries
    old = []
    for field, text in replies.pairs(entries).items():
        details = _details(text)
        if details is None:
            logger.warning("workers: the entry %s is unreadable, removed: %.80r", escape(field, 100), text)
        if details is None or now - details["beat"] > FORGOTTEN:
            old.append(field)
    yield Write([("HDEL", keyspace.workers, name, *old)])


def workers(keyspace: Keyspace) -> Flow[list[WorkerInfo]]:
    """The workers and reapers that live, sorted by role and name. Entries that cannot be read are left out."""
    entries, moment = yield Read([("HGETALL", keyspace.workers), ("TIME",)], keep_errors=True)
    for reply in (entries, moment):
        if isinstance(reply, Exception):
            raise reply
    seconds, micros = replies.moment(moment)
    now = seconds * 1000 + micros // 1000
    alive = []
    for name, text in replies.pairs(entries).items():
        details = _details(text)
        if details is not None and now - details["beat"] <= ALIVE:
            info = _info(name.decode("utf-8", "replace"), details)
            if info is not None:
                alive.append(info)
    return sorted(alive, key=lambda info: (info.role, info.name))


def _details(text: bytes) -> dict[str, Any] | None:
    """The details of an entry, with the time of its last beat; `None` for an entry that no worker has written."""
    try:
        details = load_object(text)
        return details | {"beat": int(details["beat"])}
    except (ValueError, TypeError, KeyError, OverflowError):
        return None


def _info(name: str, details: Mapping[str, Any]) -> WorkerInfo | None:
    """An entry as a value; `None` for an entry of a version with other details."""
    try:
        last = details["last_claim"]
        return WorkerInfo(
            name,
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
