"""Script calls that settle deliveries."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter

from rqttl.protocol import scripts
from rqttl.protocol.commands.call import Command, unfenced
from rqttl.protocol.contract import Word
from rqttl.protocol.keys import Keyspace
from rqttl.protocol.queue_config import QueueConfig


def runs(deliveries: Sequence[Word]) -> list[Word]:
    """Encode deliveries (sequence and token in turn) for scripts.

    Each run of deliveries with one token becomes the token, their number, and their sequences.
    """
    if len(deliveries) == 2:
        return [deliveries[1], "1", deliveries[0]]
    words: list[Word] = []
    for token, pairs in groupby(zip(deliveries[::2], deliveries[1::2], strict=True), key=_second):
        ids = [id for id, _ in pairs]
        words += (token, str(len(ids)), *ids)
    return words


_second = itemgetter(1)


def ack(keyspace: Keyspace, queue: str, deliveries: Sequence[Word], *, now: Word = "") -> Command:
    """Settle deliveries: done. Settle commands take at most `BATCH` deliveries, as sequence and token in turn."""
    return unfenced(keyspace, queue, "ack", runs(deliveries), now=now, replay="")


def nack(
    config: QueueConfig,
    deliveries: Sequence[Word],
    *,
    delay: int | None = None,
    counted: bool = True,
    description: bytes = b"",
    now: Word = "",
) -> Command:
    """Settle deliveries: give back, after `delay` ms or the pause of the queue. `counted`: as a failed delivery."""
    script = scripts.load("nack")
    arguments = script.arguments(
        now=now, replay="", delay="" if delay is None else delay, counted=1 if counted else 0, description=description
    )
    return Command(script, config.name, (*config.keys_for(script), *arguments, *runs(deliveries)))


def reject(config: QueueConfig, deliveries: Sequence[Word], *, description: bytes = b"", now: Word = "") -> Command:
    """Settle deliveries: refuse for good."""
    script = scripts.load("reject")
    arguments = script.arguments(now=now, replay="", description=description)
    return Command(script, config.name, (*config.keys_for(script), *arguments, *runs(deliveries)))


def renew(keyspace: Keyspace, queue: str, deliveries: Sequence[Word], *, lease: int, now: Word = "") -> Command:
    """Extend leases."""
    return unfenced(keyspace, queue, "renew", runs(deliveries), now=now, lease=lease)._replace(repeatable=False)
