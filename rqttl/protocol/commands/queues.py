"""Script calls for a queue as a whole."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import NamedTuple

from rqttl.options import QueueOptions
from rqttl.protocol import scripts
from rqttl.protocol.commands.call import Command, unfenced
from rqttl.protocol.contract import Word
from rqttl.protocol.keys import Keyspace
from rqttl.protocol.queue_config import QueueConfig, keys_of


def lookup(keyspace: Keyspace, queue: str, *, now: Word = "") -> Command:
    """Ask for the options of a queue."""
    return unfenced(keyspace, queue, "lookup", now=now)


def touch(keyspace: Keyspace, queue: str, *, now: Word = "") -> Command:
    """Restart the lifetime of a queue."""
    return unfenced(keyspace, queue, "touch", now=now)


def declare(keyspace: Keyspace, options: QueueOptions, *, now: Word = "") -> Command:
    """Create a queue, or compare its options with these. Each call has a new version."""
    script = scripts.load("declare")
    arguments = script.arguments(now=now, options=options.as_json())
    keys = keys_of(keyspace, options.queue, script, ())
    return Command(script, options.queue, (*keys, secrets.token_hex(8), *arguments, *options.fields()))


def update(config: QueueConfig, options: QueueOptions, *, now: Word = "") -> Command:
    """Put other options in force, if `config` still holds."""
    script, absent = scripts.load("update"), options.absent_fields()
    arguments = script.arguments(now=now, next=secrets.token_hex(8), options=options.as_json(), absent=len(absent))
    return Command(script, config.name, (*config.keys_for(script), *arguments, *absent, *options.fields()))


class Walk(NamedTuple):
    """The state of a preview between two calls: positions in `requeued` and in the log, the counts and their bytes."""

    behind: Word = 0
    after: Word = ""
    expired: Word = 0
    trimmed: Word = 0
    size: Word = 0


def preview(config: QueueConfig, options: QueueOptions, walk: Walk, *, now: Word = "") -> Command:
    """Count the messages that would die at once under other options. `walk` is the state after the last call."""
    dropping = options.overflow == "drop-head"
    limits = {name: options.number(name) if dropping else None for name in ("max_length", "max_length_bytes")}
    rules = {"message_ttl": options.number("message_ttl"), **limits}
    words: dict[str, Word] = {name: "" if value is None else value for name, value in rules.items()}
    script = scripts.load("preview")
    return Command(
        script, config.name, (*config.keys_for(script), *script.arguments(now=now, **words, **walk._asdict()))
    )


def purge(keyspace: Keyspace, queue: str, upto: Word, sequences: Sequence[Word] = ()) -> Command:
    """Remove the ready messages up to `upto`, or only `sequences` (at most `BATCH`).

    The reply to a first call, with `upto` empty, says where the purge ends.
    """
    return unfenced(keyspace, queue, "purge", sequences, upto=upto)._replace(repeatable=False)


def delete(keyspace: Keyspace, queue: str, *, if_unused: bool, if_empty: bool, now: Word = "") -> Command:
    """Delete a queue."""
    conditions: dict[str, Word] = {"if_unused": "1" if if_unused else "", "if_empty": "1" if if_empty else ""}
    return unfenced(keyspace, queue, "delete", now=now, **conditions)._replace(repeatable=False)


def peek(keyspace: Keyspace, queue: str, *, after: str, limit: int, now: Word = "") -> Command:
    """Look at messages."""
    return unfenced(keyspace, queue, "peek", now=now, after=after, limit=limit)


def sweep(config: QueueConfig, *, now: Word = "") -> Command:
    """Do the due work of a queue, in one bounded step."""
    script = scripts.load("sweep")
    return Command(script, config.name, (*config.keys_for(script), *script.arguments(now=now)))


def stats(config: QueueConfig, *, now: Word = "") -> Command:
    """Ask for the statistics of a queue."""
    script = scripts.load("stats")
    return Command(script, config.name, (*config.keys_for(script), *script.arguments(now=now)))
