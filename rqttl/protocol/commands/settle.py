"""Script calls that settle deliveries."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter

from rqttl.protocol import scripts
from rqttl.protocol.commands.call import Command, Known, Word, bind
from rqttl.protocol.keys import Keyspace


def runs(deliveries: Sequence[Word]) -> list[Word]:
    """Deliveries (id and token in turn) as scripts take them: each run of one token as the token, a number, the ids."""
    words: list[Word] = []
    for token, pairs in groupby(zip(deliveries[::2], deliveries[1::2], strict=True), key=_second):
        ids = [id for id, _ in pairs]
        words += (token, len(ids), *ids)
    return words


_second = itemgetter(1)


def ack(keyspace: Keyspace, queue: str, deliveries: Sequence[Word], *, now: Word = "") -> Command:
    """Settle deliveries: done. All settle commands take deliveries as id and token in turn, at most `BATCH` of them."""
    settled = runs(deliveries)
    words = bind(keyspace, queue, "ack", {"now": now, "replay": ""}, settled)
    return Command(scripts.load("ack"), queue, words, marked=len(words) - len(settled) - 1)


def nack(
    known: Known,
    deliveries: Sequence[Word],
    *,
    delay: int | None = None,
    counted: bool = True,
    description: bytes = b"",
    now: Word = "",
) -> Command:
    """Settle deliveries: give back, after `delay` ms (none: as the queue says). `counted` = as a failed delivery."""
    script = scripts.load("nack")
    prefix = known.prefix(script)
    how = ("" if delay is None else delay, 1 if counted else 0, description)
    return Command(script, known.name, (*prefix, now, "", *how, *runs(deliveries)), marked=len(prefix) + 1)


def reject(known: Known, deliveries: Sequence[Word], *, description: bytes = b"", now: Word = "") -> Command:
    """Settle deliveries: refuse for good."""
    script = scripts.load("reject")
    prefix = known.prefix(script)
    return Command(script, known.name, (*prefix, now, "", description, *runs(deliveries)), marked=len(prefix) + 1)


def renew(keyspace: Keyspace, queue: str, deliveries: Sequence[Word], *, lease: int, now: Word = "") -> Command:
    """Extend leases."""
    words = bind(keyspace, queue, "renew", {"now": now, "lease": lease}, runs(deliveries))
    return Command(scripts.load("renew"), queue, words, repeatable=False)
