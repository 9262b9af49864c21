"""Flows about the registry: the set of the names of all queues."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from rqttl.errors import RegistryDamaged
from rqttl.flows.steps import Flow, HandleNotes, Read, Write, execute
from rqttl.protocol import replies
from rqttl.protocol.keys import Keyspace

#: The number of members in one page of a scan, and of records in one round trip.
PAGE = 1000


def register(keyspace: Keyspace, queue: str) -> Flow[int]:
    """Add a queue. Returns 1 if it was missing. The first queue of a namespace gives the data its random name.

    A server that has lost its data gets another name, so a reader that knows the name learns of the loss.
    """
    name = ("HSETNX", keyspace.birth, "name", secrets.token_hex(8))
    entry = ("SADD", keyspace.registry, queue)
    *_, added = yield Write([name, entry])
    if isinstance(added, Exception):
        raise added
    return replies.shaped("SADD", replies.number, added)


def unregister(keyspace: Keyspace, queue: str) -> Flow[int]:
    """Remove a deleted queue. Returns 1 if it was a member. A queue that was created again meanwhile stays.

    A change of policies looks at the members only. Such a queue was none for a moment, so it is reconciled.
    """
    removed = yield from execute(replies.number, "SREM", keyspace.registry, queue)
    if not (yield from execute(replies.number, "EXISTS", keyspace.key(queue, "meta"))):
        return removed
    entered = yield from register(keyspace, queue)
    yield HandleNotes((b"created", queue.encode()))
    return entered


def members(keyspace: Keyspace, page: int = PAGE) -> Flow[set[bytes]]:
    """All members, read in pages. Raises `RegistryDamaged` if the registry is no set."""
    entries: set[bytes] = set()
    cursor = 0
    while True:
        call = ("SSCAN", keyspace.registry, cursor, "COUNT", page)
        (reply,) = yield Read([call])
        if isinstance(reply, Exception):
            raise RegistryDamaged(keyspace.registry)
        cursor, names = replies.shaped("SSCAN", replies.page, reply)
        entries.update(names)
        if cursor == 0:
            return entries


def records(keyspace: Keyspace, queues: Sequence[str], fields: Sequence[str]) -> Flow[Mapping[str, Any]]:
    """These fields of the record of each queue. The error of a record takes the place of its fields."""
    fields_by_queue: dict[str, Any] = {}
    for start in range(0, len(queues), PAGE):
        page = queues[start : start + PAGE]
        calls = [("HMGET", keyspace.key(queue, "meta"), *fields) for queue in page]
        fields_by_queue.update(zip(page, (yield Read(calls, keep_errors=True)), strict=True))
    return fields_by_queue


def remove_members(keyspace: Keyspace, strangers: Sequence[bytes]) -> Flow[list[Any]]:
    """Remove members that are no names of queues. Returns 1, 0 or the error of Redis for each."""
    struck: list[Any] = []
    for start in range(0, len(strangers), PAGE):
        calls = [("SREM", keyspace.registry, member) for member in strangers[start : start + PAGE]]
        struck += yield Write(calls, keep_errors=True)
    return struck


def remove(keyspace: Keyspace, names: Sequence[str]) -> Flow[None]:
    """Remove names, in one call."""
    yield from execute(replies.number, "SREM", keyspace.registry, *names)
