"""The script calls of the doctor, as values."""

from __future__ import annotations

from collections.abc import Sequence

from rqttl.protocol.commands.call import Command, unfenced
from rqttl.protocol.contract import Word
from rqttl.protocol.keys import Keyspace


def audit(keyspace: Keyspace, queue: str, source: str, after: Word, limit: int) -> Command:
    """Look for damage in a page of messages of the part `source`."""
    return unfenced(keyspace, queue, "audit", source=source, after=after, limit=limit)


def repair(keyspace: Keyspace, queue: str, ids: Sequence[Word] = (), *, record: Word = "", size: Word = "") -> Command:
    """Repair these messages and the ends of the log. The bytes of the queue become `size` if its record is `record`."""
    return unfenced(keyspace, queue, "repair", ids, record=record, bytes=size)


def clear(keyspace: Keyspace, queue: str) -> Command:
    """Remove the keys of a queue that does not exist."""
    return unfenced(keyspace, queue, "clear")
