"""Script calls for a queue as a whole."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rqttl.options import QueueOptions, absent_fields
from rqttl.protocol import scripts
from rqttl.protocol.commands.messages import Command, unfenced
from rqttl.protocol.contract import Script, Word
from rqttl.protocol.keys import Keyspace
from rqttl.protocol.queue_config import QueueConfig, keys_of


def lookup(keyspace: Keyspace, queue: str, *, now: Word = "") -> Command:
    """Ask for the options of a queue."""
    return unfenced(keyspace, queue, "lookup", now=now)


def touch(keyspace: Keyspace, queue: str, *, now: Word = "") -> Command:
    """Restart the lifetime of a queue."""
    return unfenced(keyspace, queue, "touch", now=now)


class Options(NamedTuple):
    """The options of a queue: `declared`, and `in_force` by the policies of the version `policies`."""

    declared: QueueOptions
    in_force: QueueOptions
    policies: int = 0

    @classmethod
    def plain(cls, declared: QueueOptions) -> Options:
        """The options of a queue to which no policy applies."""
        return cls(declared, declared)

    def arguments(self, script: Script, **words: Word) -> list[Word]:
        """The arguments of a script that puts them in force. The last are unset options, then names and values."""
        present, options = self.in_force.fields(), self.in_force.as_json()
        absent = absent_fields(present)
        words = {**words, "options": options, "policies": self.policies, "absent": len(absent)}
        return [*script.arguments(**words), *absent, *present]

    def config(self, keyspace: Keyspace, version: Word) -> QueueConfig:
        """These options as a client remembers them."""
        known = version if isinstance(version, bytes) else str(version).encode()
        return QueueConfig(keyspace, self.declared.queue, known, self.in_force, self.declared, self.policies)


def declare(keyspace: Keyspace, options: Options, seen: Word = "", *, now: Word = "") -> Command:
    """Create a queue, or find it with these declared options. The version is of this call only.

    `seen` is the version of the policies in the record that the caller read, if it read one.
    """
    script, queue = scripts.load("declare"), options.declared.queue
    arguments = options.arguments(script, now=now, declared=options.declared.as_json(), seen=seen)
    return Command(script, queue, (*keys_of(keyspace, queue, script, ()), secrets.token_hex(8), *arguments))


def update(config: QueueConfig, options: Options, *, now: Word = "") -> Command:
    """Declare other options and put them in force, if `config` still holds."""
    return _put(config, options, now=now, declared=options.declared.as_json())


def apply_policies(config: QueueConfig, options: Options, *, now: Word = "") -> Command:
    """Put other options in force that follow from policies, if `config` still holds. It is no use of the queue."""
    if options.in_force != config.options:
        return _put(config, options, now=now, declared="")
    # the script takes only the version of the policies
    script, text = scripts.load("update"), options.in_force.as_json()
    words = {"declared": "", "was": config.policies, "policies": options.policies, "absent": 0}
    arguments = script.arguments(now=now, next=secrets.token_hex(8), options=text, **words)
    return Command(script, config.name, (*config.keys_for(script), *arguments))


def _put(config: QueueConfig, options: Options, **words: Word) -> Command:
    script = scripts.load("update")
    arguments = options.arguments(script, next=secrets.token_hex(8), was=config.policies, **words)
    return Command(script, config.name, (*config.keys_for(script), *arguments))


#: The largest step between two versions of the policies. A version has 16 digits at most: room for 10**9 changes.
STRIDE = 1 << 23


def change_policies(
    keyspace: Keyspace, version: int, stored: Mapping[str, str], removed: Sequence[Word] = ()
) -> Command:
    """Store and remove policies, if the set still has this version.

    The next version is higher by a random number. A failover may lose a change, and FLUSHALL all of them. If the next
    change gave the same number again, caches and records would take its policies for the lost ones.
    """
    script = scripts.load("change_policies")
    following = version + 1 + secrets.randbelow(STRIDE)
    arguments = script.arguments(expected=version, next=following, removed=len(removed))
    fields = [word for pair in stored.items() for word in pair]
    return Command(script, "", (1, keyspace.policies, *arguments, *removed, *fields))


class Walk(NamedTuple):
    """The state of a preview between two calls: see preview.lua."""

    behind: Word = 0
    after: Word = ""
    expired: Word = 0
    trimmed: Word = 0
    size: Word = 0
    delayed: Word = ""


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


def purge(
    keyspace: Keyspace, queue: str, upto: Word, sequences: Sequence[Word] = (), *, unread: bool = False
) -> Command:
    """Remove the ready messages up to `upto`, or only `sequences` (at most `BATCH`).

    The reply to a first call, with `upto` empty, says where the purge ends. `sequences` count as lost if `unread`.
    """
    words: dict[str, Word] = {"upto": upto, "unread": "1" if unread else ""}
    return unfenced(keyspace, queue, "purge", sequences, **words)._replace(repeatable=False)


def discard(keyspace: Keyspace, queue: str, created_at: int, after: str, upto: str) -> Command:
    """Remove the ready messages after `after`, up to `upto`, of the queue with this creation time."""
    return unfenced(keyspace, queue, "discard", created_at=created_at, after=after, upto=upto)


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
