"""The script calls of the doctor, as values."""

from __future__ import annotations

from collections.abc import Sequence

from rqttl.protocol import scripts
from rqttl.protocol.commands import Command, Word
from rqttl.protocol.keys import Keyspace


def _call(keyspace: Keyspace, queue: str, name: str, *args: Word) -> Command:
    script = scripts.load(name)
    keys = [keyspace.key(queue, part) for part in script.keys]
    return Command(script, queue, (len(keys), *keys, *args))


def audit(keyspace: Keyspace, queue: str, source: str, after: Word, limit: int) -> Command:
    """Look for damage in a page of ids of the part `source`."""
    return _call(keyspace, queue, "audit", source, after, limit)


def repair(keyspace: Keyspace, queue: str, ids: Sequence[Word] = (), *, record: Word = "", size: Word = "") -> Command:
    """Put these ids right, and the ends of the log; `bytes` becomes `size` if the record is still `record`."""
    return _call(keyspace, queue, "repair", record, size, *ids)


def clear(keyspace: Keyspace, queue: str) -> Command:
    """Remove the keys of a queue that is not there."""
    return _call(keyspace, queue, "clear")
