"""Every script call as a value: what to run, on which keys, with which arguments, and how to read the answer.

Nothing here talks to Redis. `Known` is what a client knows of a queue; the scripts answer `stale` when it is outdated.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import groupby
from operator import itemgetter
from typing import Any

from rqttl import _scripts, codec
from rqttl._scripts import Script
from rqttl.errors import MessageTooLarge
from rqttl.keys import Keyspace
from rqttl.options import QueueOptions
from rqttl.types import Message

Word = str | bytes | int
#: A reply as redis-py gives it: bytes, integers and lists of them. Its first element is `ok` or `refused`.
Reply = Sequence[Any]
#: Messages, or deliveries to settle, that one script call takes at most.
BATCH = 250
#: Body bytes that one enqueue call carries at most (a single message may be larger).
BATCH_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class Command:
    """One script call that has not happened yet.

    `repeatable` says that running it twice does no more than running it once, so that it may be run again when its
    reply was lost; `marked` is the position of the argument that then tells the script so.
    """

    script: Script
    queue: str
    words: tuple[Word, ...]
    repeatable: bool = True
    marked: int | None = None

    def again(self) -> Command:
        """The same call, after the reply to an earlier one was lost."""
        if self.marked is None:
            return self
        words = (*self.words[: self.marked], "1", *self.words[self.marked + 1 :])
        return Command(self.script, self.queue, words, self.repeatable, self.marked)


@dataclass(frozen=True)
class Known:
    """What a client knows of a queue: its options and their version."""

    keyspace: Keyspace
    name: str
    version: bytes
    options: QueueOptions
    _prefixes: dict[str, tuple[Word, ...]] = field(default_factory=dict, compare=False, repr=False)

    @cached_property
    def retention(self) -> int | None:
        """`message_ttl` in ms."""
        return self.options.number("message_ttl")

    @cached_property
    def max_body(self) -> int:
        """`max_message_bytes`."""
        return self.options.number("max_message_bytes") or 0

    @cached_property
    def lease(self) -> int:
        """`lease` in ms."""
        return self.options.number("lease") or 0

    @cached_property
    def limited(self) -> bool:
        """Whether the queue has a limit of length or bytes."""
        return self.options.max_length is not None or self.options.max_length_bytes is not None

    @cached_property
    def window(self) -> int:
        """`duplicate_window` in ms; 0 without one."""
        return self.options.number("duplicate_window") or 0

    @cached_property
    def simple(self) -> bool:
        """Whether a message with a TTL above 0 can only be stored.

        So it is without limits, a window for duplicates, and options that give a TTL of 0.
        """
        rules = ("message_ttl", "default_ttl", "min_ttl", "max_ttl")
        return not self.limited and not self.window and all(self.options[name] != 0 for name in rules)

    def short(self, script: Script) -> tuple[Word, ...]:
        """`prefix` for a call that needs only the keys that it always needs."""
        words = self._prefixes.get("short")
        if words is None:
            keys = [self.keyspace.key(self.name, part) for part in script.keys[: script.least]]
            words = self._prefixes["short"] = (len(keys), *keys, self.version, "")
        return words

    def prefix(self, script: Script, source: str = "") -> tuple[Word, ...]:
        """The keys of a call that depends on the options in force, and its first two arguments: version and targets.

        `source` is the further queue of a script that has one.
        """
        place = f"{script.name} {source}" if source else script.name
        words = self._prefixes.get(place)
        if words is None:
            found = {"source": source} if source else {}
            found |= {reason: self.options.target(reason) for reason in script.targets}
            targets = {reason: target for reason, target in found.items() if target}
            said = " ".join(f"{reason}={'.' if name == self.name else name}" for reason, name in targets.items())
            words = (*_keys(self.keyspace, self.name, script, tuple(targets.values())), self.version, said)
            self._prefixes[place] = words
        return words


@lru_cache(maxsize=4096)
def _keys(keyspace: Keyspace, queue: str, script: Script, targets: tuple[str, ...]) -> tuple[Word, ...]:
    """The number of keys and the keys: the queue's own, those of each other target queue, and more of the source."""
    keys = [keyspace.key(queue, part) for part in script.keys]
    for target in dict.fromkeys(targets):
        if target != queue:
            keys += [keyspace.key(target, part) for part in _scripts.TARGET_PARTS]
    keys += [keyspace.key(targets[0], part) for part in script.source]
    return (len(keys), *keys)


def _call(
    keyspace: Keyspace, queue: str, name: str, args: Mapping[str, Word], rest: Iterable[Word] = ()
) -> tuple[Word, ...]:
    """Bind a call that needs no fence. `args` must name exactly what the script's header names."""
    script = _scripts.load(name)
    return (*_keys(keyspace, queue, script, ()), *[args[word] for word in script.args], *rest)


# Queues


def lookup(keyspace: Keyspace, queue: str, *, now: Word = "") -> Command:
    """Ask for the options of a queue."""
    return Command(_scripts.load("lookup"), queue, _call(keyspace, queue, "lookup", {"now": now}))


def touch(keyspace: Keyspace, queue: str, *, now: Word = "") -> Command:
    """Let the lifetime of a queue begin anew."""
    return Command(_scripts.load("touch"), queue, _call(keyspace, queue, "touch", {"now": now}))


def declare(keyspace: Keyspace, options: QueueOptions, *, now: Word = "") -> Command:
    """Make a queue or find it as it should be."""
    args: dict[str, Word] = {"version": secrets.token_hex(8), "now": now, "given": options.as_json()}
    words = _call(keyspace, options.queue, "declare", args, options.fields())
    return Command(_scripts.load("declare"), options.queue, words)


def update(known: Known, options: QueueOptions, *, now: Word = "") -> Command:
    """Put other options in force, if `known` still holds."""
    args: dict[str, Word] = {
        "version": known.version,
        "now": now,
        "next": secrets.token_hex(8),
        "given": options.as_json(),
    }
    words = _call(known.keyspace, known.name, "update", args, options.fields())
    return Command(_scripts.load("update"), known.name, words)


def preview(known: Known, options: QueueOptions, walked: Sequence[Word], *, now: Word = "") -> Command:
    """Count what other options would let die at once. `walked` is where the walk stands: words 3 to 7 of the reply."""
    dropping = options.overflow == "drop-head"
    limits = [options.number(name) if dropping else None for name in ("max_length", "max_length_bytes")]
    rules = ["" if value is None else value for value in (options.number("message_ttl"), *limits)]
    script = _scripts.load("preview")
    prefix = (*_keys(known.keyspace, known.name, script, ()), known.version)
    return Command(script, known.name, (*prefix, now, *rules, *walked))


def purge(keyspace: Keyspace, queue: str, upto: Word, ids: Sequence[Word] = ()) -> Command:
    """Remove ready messages up to an id; the first call, with `upto` empty, fixes it. Or just `ids`, up to `BATCH`."""
    words = _call(keyspace, queue, "purge", {"upto": upto}, ids)
    return Command(_scripts.load("purge"), queue, words, repeatable=False)


def delete(keyspace: Keyspace, queue: str, *, if_unused: bool, if_empty: bool, now: Word = "") -> Command:
    """Delete a queue."""
    args: dict[str, Word] = {"now": now, "if_unused": "1" if if_unused else "", "if_empty": "1" if if_empty else ""}
    return Command(_scripts.load("delete"), queue, _call(keyspace, queue, "delete", args), repeatable=False)


def peek(keyspace: Keyspace, queue: str, *, after: str, limit: int, now: Word = "") -> Command:
    """Look at messages."""
    words = _call(keyspace, queue, "peek", {"now": now, "after": after, "limit": limit})
    return Command(_scripts.load("peek"), queue, words)


def sweep(known: Known, *, now: Word = "") -> Command:
    """Do what is due."""
    script = _scripts.load("sweep")
    return Command(script, known.name, (*known.prefix(script), now))


def stats(known: Known, *, now: Word = "") -> Command:
    """Ask what a queue holds."""
    script = _scripts.load("stats")
    return Command(script, known.name, (*known.prefix(script), now))


# Messages


def pack(message: Message | object, max_body: int) -> tuple[bytes, bytes]:
    """What the sender says of a message, and its body, as `enqueue` takes them. Raises `InvalidInput`."""
    if type(message) is bytes:
        body, said = message, b""
    else:
        if not isinstance(message, Message):
            message = Message(message)
        body, content_type = codec.pack_body(message.body)
        said = codec.pack_said(message, message.content_type or content_type)
    if len(body) > max_body:
        raise MessageTooLarge(f"body: {len(body)} bytes are more than max_message_bytes, {max_body}")
    return said, body


def enqueue(known: Known, packed: Iterable[tuple[bytes, bytes]], *, window: int = 0, now: Word = "") -> Command:
    """Store messages, at most `BATCH`. `window` is for how long ids are remembered whatever the queue does, in ms.

    It may be repeated where each has an id, and the queue or the call knows duplicates.
    """
    words: list[Word] = [window or "", ""]
    simple, named, only = known.simple and not window, True, True
    for pair in packed:
        words += pair
        simple = simple and not (pair[0] == b"+0" or pair[0].startswith((b"+0;", b"@")))
        if named:
            named, bare = codec.said_id(pair[0])
            only = only and bare
    words[1] = "ids" if named and only else ""
    return _enqueue(known, words, simple, now, repeatable=named and (known.window > 0 or window > 0))


def enqueue_named(known: Known, words: Sequence[bytes], *, window: int = 0) -> Command:
    """Store messages that have no more than an id, at most `BATCH`: what is said and the body of each in turn."""
    repeatable = known.window > 0 or window > 0
    return _enqueue(known, (window or "", "ids", *words), known.simple and not window, repeatable=repeatable)


def enqueue_plain(known: Known, bodies: Sequence[bytes], *, now: Word = "") -> Command:
    """Store messages of which there is nothing to say but their bodies, at most `BATCH`."""
    return _enqueue(known, ("", "bodies", *bodies), known.simple, now)


def _enqueue(known: Known, words: Sequence[Word], simple: bool, now: Word = "", *, repeatable: bool = False) -> Command:
    script = _scripts.load("enqueue")
    prefix = known.short(script) if simple else known.prefix(script)
    return Command(script, known.name, (*prefix, now, *words), repeatable=repeatable)


def redrive(known: Known, source: str, sequences: Sequence[Word], *, now: Word = "") -> Command:
    """Put dead letters of `source`, at most `BATCH`, into the queue, which is another one."""
    script = _scripts.load("redrive")
    prefix = known.prefix(script, source)
    return Command(script, known.name, (*prefix, now, "", *sequences), marked=len(prefix) + 1)


@dataclass(frozen=True, slots=True)
class Presence:
    """How a consumer shows itself to a queue: who it is, how long it waits now, how long it counts as a consumer."""

    consumer: str = ""
    block: int = 0
    stay: int = 0
    ticket: bytes = b""


ABSENT = Presence()


def receive(
    known: Known,
    count: int,
    lease: int,
    *,
    auto_ack: bool = False,
    presence: Presence = ABSENT,
    finished: Sequence[Word] = (),
    now: Word = "",
) -> Command:
    """Finish deliveries (id and token in turn), then take up to `count` messages out."""
    script = _scripts.load("receive")
    prefix = known.prefix(script)
    here = presence
    args = (now, "", count, lease, "1" if auto_ack else "", here.consumer, here.block, here.stay, here.ticket)
    return Command(script, known.name, (*prefix, *args, *_runs(finished)), not auto_ack, len(prefix) + 1)


def _runs(deliveries: Sequence[Word]) -> list[Word]:
    """Deliveries (id and token in turn) as scripts take them: each run of one token as the token, a number, the ids."""
    runs: list[Word] = []
    for token, pairs in groupby(zip(deliveries[::2], deliveries[1::2], strict=True), key=_second):
        ids = [id for id, _ in pairs]
        runs += (token, len(ids), *ids)
    return runs


_second = itemgetter(1)


def ack(keyspace: Keyspace, queue: str, deliveries: Sequence[Word], *, now: Word = "") -> Command:
    """Settle deliveries: done. All settle commands take deliveries as id and token in turn, at most `BATCH` of them."""
    runs = _runs(deliveries)
    words = _call(keyspace, queue, "ack", {"now": now, "again": ""}, runs)
    return Command(_scripts.load("ack"), queue, words, marked=len(words) - len(runs) - 1)


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
    script = _scripts.load("nack")
    prefix = known.prefix(script)
    how = ("" if delay is None else delay, 1 if counted else 0, description)
    return Command(script, known.name, (*prefix, now, "", *how, *_runs(deliveries)), marked=len(prefix) + 1)


def reject(known: Known, deliveries: Sequence[Word], *, description: bytes = b"", now: Word = "") -> Command:
    """Settle deliveries: refuse for good."""
    script = _scripts.load("reject")
    prefix = known.prefix(script)
    return Command(script, known.name, (*prefix, now, "", description, *_runs(deliveries)), marked=len(prefix) + 1)


def renew(keyspace: Keyspace, queue: str, deliveries: Sequence[Word], *, lease: int, now: Word = "") -> Command:
    """Extend leases."""
    words = _call(keyspace, queue, "renew", {"now": now, "lease": lease}, _runs(deliveries))
    return Command(_scripts.load("renew"), queue, words, repeatable=False)
