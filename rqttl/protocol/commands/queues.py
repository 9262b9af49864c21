"""Script calls for a queue as a whole."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from rqttl.options import QueueOptions
from rqttl.protocol import scripts
from rqttl.protocol.commands.call import Command, Known, Word, bind, keys_of
from rqttl.protocol.keys import Keyspace


def lookup(keyspace: Keyspace, queue: str, *, now: Word = "") -> Command:
    """Ask for the options of a queue."""
    return Command(scripts.load("lookup"), queue, bind(keyspace, queue, "lookup", {"now": now}))


def touch(keyspace: Keyspace, queue: str, *, now: Word = "") -> Command:
    """Let the lifetime of a queue begin anew."""
    return Command(scripts.load("touch"), queue, bind(keyspace, queue, "touch", {"now": now}))


def declare(keyspace: Keyspace, options: QueueOptions, *, now: Word = "") -> Command:
    """Make a queue or find it as it should be."""
    args: dict[str, Word] = {"version": secrets.token_hex(8), "now": now, "options": options.as_json()}
    words = bind(keyspace, options.queue, "declare", args, options.fields())
    return Command(scripts.load("declare"), options.queue, words)


def update(known: Known, options: QueueOptions, *, now: Word = "") -> Command:
    """Put other options in force, if `known` still holds."""
    args: dict[str, Word] = {
        "version": known.version,
        "now": now,
        "next": secrets.token_hex(8),
        "options": options.as_json(),
    }
    words = bind(known.keyspace, known.name, "update", args, options.fields())
    return Command(scripts.load("update"), known.name, words)


def preview(known: Known, options: QueueOptions, walked: Sequence[Word], *, now: Word = "") -> Command:
    """Count what other options would let die at once. `walked` is where the walk stands: words 3 to 7 of the reply."""
    dropping = options.overflow == "drop-head"
    limits = [options.number(name) if dropping else None for name in ("max_length", "max_length_bytes")]
    rules = ["" if value is None else value for value in (options.number("message_ttl"), *limits)]
    script = scripts.load("preview")
    prefix = (*keys_of(known.keyspace, known.name, script, ()), known.version)
    return Command(script, known.name, (*prefix, now, *rules, *walked))


def purge(keyspace: Keyspace, queue: str, upto: Word, ids: Sequence[Word] = ()) -> Command:
    """Remove ready messages up to an id; the first call, with `upto` empty, fixes it. Or just `ids`, up to `BATCH`."""
    words = bind(keyspace, queue, "purge", {"upto": upto}, ids)
    return Command(scripts.load("purge"), queue, words, repeatable=False)


def delete(keyspace: Keyspace, queue: str, *, if_unused: bool, if_empty: bool, now: Word = "") -> Command:
    """Delete a queue."""
    args: dict[str, Word] = {"now": now, "if_unused": "1" if if_unused else "", "if_empty": "1" if if_empty else ""}
    return Command(scripts.load("delete"), queue, bind(keyspace, queue, "delete", args), repeatable=False)


def peek(keyspace: Keyspace, queue: str, *, after: str, limit: int, now: Word = "") -> Command:
    """Look at messages."""
    words = bind(keyspace, queue, "peek", {"now": now, "after": after, "limit": limit})
    return Command(scripts.load("peek"), queue, words)


def sweep(known: Known, *, now: Word = "") -> Command:
    """Do what is due."""
    script = scripts.load("sweep")
    return Command(script, known.name, (*known.prefix(script), now))


def stats(known: Known, *, now: Word = "") -> Command:
    """Ask what a queue holds."""
    script = scripts.load("stats")
    return Command(script, known.name, (*known.prefix(script), now))
