"""Flows about the registry, the set of all names of queues."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rqttl.checks import queue_names
from rqttl.flows import moving
from rqttl.flows.steps import Flow, HandleNotes, Read, ReadEachNode, Write, execute
from rqttl.protocol import replies
from rqttl.protocol.keys import Keyspace

#: The number of members in one page of a scan, and of records in one round trip.
PAGE = 1000


def register(keyspace: Keyspace, queue: str) -> Flow[int]:
    """Add a queue. Returns 1 if it was missing. The first queue of a namespace gives the data its random name.

    A server that has lost its data gets another name, so a reader that knows the name learns of the loss. Both keys lie
    in one slot, so this is one round trip to one server. If only its first half is carried out, there is a name without
    an entry, and the next call keeps it.
    """
    # no transaction: in this order a lost connection or a failover leaves no entry without a name
    name = ("HSETNX", keyspace.dataset, "name", secrets.token_hex(8))
    entry = ("SADD", keyspace.registry, queue)
    *_, added = yield Write([name, entry])
    return replies.shaped("SADD", replies.number, added)


def unregister(keyspace: Keyspace, queue: str) -> Flow[int]:
    """Remove a deleted queue. Returns 1 if it was a member. A queue that was created again meanwhile stays.

    A change of policies looks at the members only. Such a queue was none for a moment, so it is reconciled. A queue
    whose dead letters are still on their way to another slot stays, too, until they have arrived.
    """
    if not (yield from emptied(keyspace, [queue])):
        return 0
    removed = yield from remove(keyspace, [queue])
    if not (yield from execute(replies.number, "EXISTS", keyspace.key(queue, "meta"))):
        return removed
    entered = yield from register(keyspace, queue)
    yield HandleNotes((b"created", queue.encode()))
    return entered


def emptied(keyspace: Keyspace, queues: Sequence[str]) -> Flow[list[str]]:
    """Send what waits in the outboxes of deleted queues. Returns those of the queues that have nothing left there."""
    if not keyspace.slotted:
        return list(queues)
    waiting = yield from moving.outgoing(keyspace, queues)
    for queue, targets in zip(queues, waiting, strict=True):
        if targets:
            yield HandleNotes([word for target in targets for word in (b"move", f"{queue}>{target}".encode())])
    if any(waiting):
        waiting = yield from moving.outgoing(keyspace, queues)
    return [queue for queue, targets in zip(queues, waiting, strict=True) if not targets]


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


def scan(keyspace: Keyspace, see: Callable[[list[bytes]], object]) -> Flow[None]:
    """Let `see` have all keys of the namespace, of every node, in pages. A node that is away is left out."""
    options = ("MATCH", keyspace.everything, "COUNT", PAGE)
    answers = yield ReadEachNode([("SCAN", 0, *options)], partial=True)
    for node, answer in answers.items():
        if isinstance(answer[0], Exception):
            continue
        cursor, keys = replies.shaped("SCAN", replies.page, answer[0])
        see(keys)
        while cursor:
            (reply,) = yield Read([("SCAN", cursor, *options)], node=node)
            cursor, keys = replies.shaped("SCAN", replies.page, reply)
            see(keys)


def wipe(keyspace: Keyspace) -> Flow[None]:
    """See `broker.wipe`."""
    keys: set[bytes] = set()
    yield from scan(keyspace, keys.update)
    for key in keys:
        yield from execute(replies.number, "UNLINK", key.decode())


def remove(keyspace: Keyspace, members: Sequence[str | bytes]) -> Flow[int]:
    """Remove members, in one call. Returns how many there were."""
    return execute(replies.number, "SREM", keyspace.registry, *members)
