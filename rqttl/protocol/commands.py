"""Every script call as a value: the script, its keys and arguments, and whether it may be repeated. No I/O here."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property, lru_cache
from itertools import groupby, pairwise
from operator import itemgetter
from typing import Any, NamedTuple

from rqttl.checks import BATCH, BATCH_BYTES
from rqttl.errors import ContractError, DataDamaged, MessageTooLarge
from rqttl.filters import Bindings
from rqttl.options import QueueOptions, absent_fields
from rqttl.protocol import codec, scripts
from rqttl.protocol.codec import NO_ENVELOPE, VALUE, Envelope, envelope_of, ttl_may_be_over
from rqttl.protocol.contract import REPLAY, Ok, Refused, Reply, Script, Word
from rqttl.protocol.keys import OUTBOX, OUTGOING, PAIRED, TARGET_PARTS, Keyspace
from rqttl.text import plain_text
from rqttl.types import Message

#: Names that callers need beside those below.
__all__ = ["BATCH", "BATCH_BYTES", "Ok", "Refused", "Reply", "Word"]

#: Bytes of headers and bodies after which a script call reads no further message. Batches of settles keep to it.
READ_BYTES = 2**22


#: The calls behind a command that stores messages: Redis answers when the `durability` is reached, after 1 s at most.
#: Behind a command that waits `BRIEFLY` no confirmation is required.
BRIEFLY = "briefly"
CONFIRMING: Mapping[str, tuple[str, ...]] = {
    "replica": ("WAIT", "1", "1000"),
    "disk": ("WAITAOF", "1", "0", "1000"),
    BRIEFLY: ("WAIT", "1", "200"),
}
#: The note that a client adds to a reply, with the reason, if what it has stored is not confirmed.
UNCONFIRMED = b"unconfirmed"


@dataclass(frozen=True)
class QueueConfig:
    """The options in force of a queue and their version. Scripts answer `stale` to a call with another version.

    They come from the `declared` options and from the policies of the version `policies`.
    """

    keyspace: Keyspace
    name: str
    version: bytes
    options: QueueOptions
    declared: QueueOptions
    policies: int = 0
    #: The words before the batch of usual enqueue calls, by form and simplicity.
    heads: dict[tuple[Word, bool], tuple[Word, ...]] = field(default_factory=dict, compare=False, repr=False)
    _prefixes: dict[str, tuple[Word, ...]] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def read(
        cls,
        keyspace: Keyspace,
        queue: str,
        version: bytes,
        options: bytes | None,
        declared: bytes | None,
        policies: bytes | None,
    ) -> QueueConfig:
        """The fields of a record. Raises `DataDamaged`."""
        if options is None or declared is None or policies is None or not policies.isdigit():
            raise DataDamaged(queue, "its record lacks options, declared or policies")
        in_force, declaration = QueueOptions.from_json(queue, options), QueueOptions.from_json(queue, declared)
        return cls(keyspace, queue, version, in_force, declaration, int(policies))

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
    def passes_on(self) -> bool:
        """True if messages go on to other queues, from a topic or by `forward_to`: nobody receives any here."""
        return self.options.passes_to is not None

    @cached_property
    def bindings(self) -> Bindings:
        """The bindings of a topic, compiled. A queue with `forward_to` has one, for every message."""
        return Bindings(self.options.passes_to or {})

    @cached_property
    def buries_into(self) -> frozenset[str]:
        """The other queues in which an arrival may put a dead letter."""
        return frozenset(map(self.options.target, scripts.load("enqueue").targets)) - {"", self.name}

    @cached_property
    def capped(self) -> bool:
        """True with `max_leased`: a settlement may let a consumer go on that waits for a place."""
        return self.options.max_leased is not None

    @cached_property
    def paced(self) -> bool:
        """True with a `rate`: the time at which the next message may go matters."""
        return self.options.rate is not None

    @cached_property
    def limited(self) -> bool:
        """True if the queue has a limit of length or bytes."""
        return self.options.max_length is not None or self.options.max_length_bytes is not None

    @cached_property
    def window(self) -> int:
        """`duplicate_window` in ms; 0 without one."""
        return self.options.number("duplicate_window") or 0

    @cached_property
    def command(self) -> type[Command]:
        """The class of commands that store messages."""
        return _DURABLE.get(str(self.options.durability), Command)

    @cached_property
    def cannot_refuse(self) -> bool:
        """True if the queue stores each message that has a TTL above 0.

        Such a queue has no limits, no window for duplicates, and no option that gives a TTL of 0.
        """
        rules = ("message_ttl", "default_ttl", "min_ttl", "max_ttl")
        return not self.limited and not self.window and all(self.options[name] != 0 for name in rules)

    def minimal_keys(self, script: Script) -> tuple[Word, ...]:
        """`keys_for` for a call that needs no key from position `Script.least` on."""
        words = self._prefixes.get("short")
        if words is None:
            keys = [self.keyspace.key(self.name, part) for part in script.keys[: script.least]]
            words = self._prefixes["short"] = (str(len(keys)), *keys, self.version, "")
        return words

    def keys_for(self, script: Script, source: str = "") -> tuple[Word, ...]:
        """The keys of a call that depends on the options in force, and the arguments of its fence.

        `source` is the name of the further queue, for a script that has one or that has keys of a pair of queues.
        """
        place = f"{script.name} {source}" if source else script.name
        words = self._prefixes.get(place)
        if words is None:
            queues = {"source": source} if script.source else {}
            queues |= {reason: self.options.target(reason) for reason in script.targets}
            targets = {reason: target for reason, target in queues.items() if target}
            mapping = " ".join(reason + self._word(name) for reason, name in targets.items())
            keys = keys_of(self.keyspace, self.name, script, tuple(targets.values()), source)
            words = self._prefixes[place] = (*keys, *(self.version, mapping)[: len(script.fence)])
        return words

    def _word(self, target: str) -> str:
        if target == self.name:
            return "=."
        return f"{'>' if self.keyspace.in_another_slot(self.name, target) else '='}{target}"


@lru_cache(maxsize=4096)
def keys_of(
    keyspace: Keyspace, queue: str, script: Script, targets: tuple[str, ...], other: str = ""
) -> tuple[Word, ...]:
    """The number of keys, then the keys: of the queue, of each other target, and the further ones of the source.

    Of a target in another slot these are the keys of the outbox for it. `other` is the other queue of keys of a pair.

    Numbers of hot calls are text here, so that `pack_command` need not look for numbers in each call.
    """
    keys = [keyspace.key(queue, f"{part}>{other}" if part in PAIRED else part) for part in script.keys]
    for target in dict.fromkeys(targets):
        if keyspace.in_another_slot(queue, target):
            keys += [keyspace.key(queue, OUTGOING), keyspace.key(queue, f"{OUTBOX}>{target}")]
        elif target != queue:
            keys += [keyspace.key(target, part) for part in TARGET_PARTS]
    keys += [keyspace.key(targets[0], part) for part in script.source]
    return (str(len(keys)), *keys)


@lru_cache(maxsize=4096)
def least_keys_of(keyspace: Keyspace, queue: str, script: Script) -> tuple[Word, ...]:
    """`keys_of` for a call that needs no key from position `Script.least` on."""
    return (str(script.least), *keys_of(keyspace, queue, script, ())[1 : 1 + script.least])


class Repeat(IntEnum):
    """Whether a call may be made again after a lost reply. If not `NEVER`, two calls have the same effect as one."""

    NEVER = 0
    #: Again; but a caller who gets no reply in the end must know that the outcome is unknown.
    CHECKED = 1
    #: Again, also by the caller: the messages of a lost `receive` come back when their leases end.
    FREELY = 2


class Command(NamedTuple):
    """One script call as a value, before it is made.

    `head` are the words before a batch, on a call that others may join; see `Joined`.
    """

    script: Script
    queue: str
    words: tuple[Word, ...]
    repeat: Repeat = Repeat.FREELY
    head: tuple[Word, ...] = ()

    @property
    def durability(self) -> str:
        """The `durability` that Redis has to confirm; empty if there is none to confirm."""
        return ""

    def as_replay(self) -> Command:
        """The same call with a mark for the script: the reply to an earlier attempt was lost."""
        return self.with_word(REPLAY, "1") if REPLAY in self.script.args else self

    @property
    def is_replay(self) -> bool:
        """True if the call has the mark of a replay."""
        return REPLAY in self.script.args and self.word(REPLAY) not in ("", b"")

    def word(self, argument: str) -> Word:
        """The word of one argument of its header."""
        return self.words[1 + int(self.words[0]) + self.script.args.index(argument)]

    def with_word(self, argument: str, word: Word) -> Command:
        """The same call with another value for one argument of its header."""
        index = 1 + int(self.words[0]) + self.script.args.index(argument)
        words = (*self.words[:index], word, *self.words[index + 1 :])
        return self._replace(words=words, head=())


class ReplicaCommand(Command):
    """A command that a replica has to confirm. Plain commands would pay for a field."""

    durability = "replica"


class DiskCommand(Command):
    """A command that the disk has to confirm."""

    durability = "disk"


class BriefCommand(Command):
    """A command that waits briefly for a replica, if the server has one.

    It changes a queue or policies: a failover would take the change back. Or it moves dead letters between slots: a
    failover could lose some that their source does not have any more, or let them arrive twice.
    """

    durability = BRIEFLY


_DURABLE: Mapping[str, type[Command]] = {"replica": ReplicaCommand, "disk": DiskCommand}


def confirmations(commands: Sequence[Command]) -> list[tuple[str, ...]]:
    """The calls that confirm what commands store. They follow them on the same connection."""
    if set(map(type, commands)) == {Command}:
        return []  # at once, since each call comes here
    return [CONFIRMING[name] for name in dict.fromkeys(command.durability for command in commands) if name]


def unconfirmed(answer: Any) -> str:
    """Why the answer to a confirming call confirms nothing; empty if it does."""
    if isinstance(answer, Exception):
        return str(answer).partition(", with args")[0]
    count = answer[0] if isinstance(answer, list) else answer
    return "" if count else f"no {'fsync' if isinstance(answer, list) else 'replica'} in time"


def annotated(reply: Any, why: str) -> Any:
    """The reply to a call that stores messages; with `why`, and with a note that they are not confirmed."""
    if not why or type(reply) is not list or reply[0] != b"ok":
        return reply
    return [reply[0], [*(reply[1] or ()), UNCONFIRMED, why.encode()], *reply[2:]]


def why_unconfirmed(notes: Sequence[bytes]) -> str:
    """The reason in the note of `annotated`; empty without one."""
    return notes[-1].decode() if notes[-2:-1] == [UNCONFIRMED] else ""


def unfenced(
    keyspace: Keyspace, queue: str, name: str, more: Iterable[Word] = (), other: str = "", /, **words: Word
) -> Command:
    """A call that does not depend on the options in force. `words` are its arguments, named as in its header."""
    script = scripts.load(name)
    return Command(script, queue, (*keys_of(keyspace, queue, script, (), other), *script.arguments(**words), *more))


def fenced(
    config: QueueConfig,
    name: str,
    more: Iterable[Word] = (),
    source: str = "",
    repeat: Repeat = Repeat.FREELY,
    /,
    **words: Word,
) -> Command:
    """A call that depends on the options in force. `words` are its other arguments, named as in its header."""
    script = scripts.load(name)
    return Command(script, config.name, (*config.keys_for(script, source), *script.arguments(**words), *more), repeat)


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


def ack(keyspace: Keyspace, queue: str, deliveries: Sequence[Word], *, wakes: bool = False, now: Word = "") -> Command:
    """Settle deliveries: done. Settle commands take at most `BATCH` deliveries, as sequence and token in turn.

    Under `max_leased` an ack wakes a consumer that waits for a place: with `wakes` the call has the keys for it.
    """
    script = scripts.load("ack")
    keys = keys_of(keyspace, queue, script, ()) if wakes else least_keys_of(keyspace, queue, script)
    words = (*keys, *script.arguments(now=now, replay=""), *runs(deliveries))
    return Command(script, queue, words, Repeat.CHECKED)


def nack(
    config: QueueConfig,
    deliveries: Sequence[Word],
    *,
    delay: int | None = None,
    counted: bool = True,
    description: bytes = b"",
    now: Word = "",
) -> Command:
    """Settle deliveries: give back, after `delay` ms or the delay of the queue. `counted`: as a failed delivery."""
    after, count = "" if delay is None else delay, 1 if counted else 0
    words: dict[str, Word] = {"delay": after, "counted": count, "description": description}
    return fenced(config, "nack", runs(deliveries), "", Repeat.CHECKED, now=now, replay="", **words)


def reject(config: QueueConfig, deliveries: Sequence[Word], *, description: bytes = b"", now: Word = "") -> Command:
    """Settle deliveries: refuse for good."""
    words: dict[str, Word] = {"now": now, "replay": "", "description": description}
    return fenced(config, "reject", runs(deliveries), "", Repeat.CHECKED, **words)


def renew(keyspace: Keyspace, queue: str, deliveries: Sequence[Word], *, lease: int, now: Word = "") -> Command:
    """Extend leases."""
    return unfenced(keyspace, queue, "renew", runs(deliveries), now=now, lease=lease)._replace(repeat=Repeat.NEVER)


_ENVELOPE, _BODY = itemgetter(0), itemgetter(1)
_VALUE_FORM = VALUE.encode()


def pack(message: Message | object) -> tuple[Envelope, bytes]:
    """Encode a message for `enqueue`: its envelope and its body. Raises `InvalidInput`."""
    if not isinstance(message, Message):
        return pack_value(message)
    body, content_type = codec.pack_body(message.body)
    chosen_type = message.content_type
    kind = content_type if chosen_type is None or plain_text(chosen_type) == "" else chosen_type
    return envelope_of(message, kind), body


def pack_value(value: object) -> tuple[Envelope, bytes]:
    """As `pack`, for bytes or another value."""
    body, content_type = codec.pack_body(value)
    return VALUE if content_type else NO_ENVELOPE, body


def check_size(config: QueueConfig, largest: int) -> None:
    """Raise `MessageTooLarge` if a body of `largest` bytes is more than the queue takes."""
    if largest > config.max_body:
        raise MessageTooLarge(f"body: {largest} bytes are more than max_message_bytes, {config.max_body}")


def enqueue(
    config: QueueConfig, packed: Sequence[tuple[Envelope, bytes]], *, window: int = 0, now: Word = ""
) -> Command:
    """Store at most `BATCH` messages. The queue remembers their ids for `window` ms, in addition to its own window."""
    common = packed[0][0]
    if not common.id and len(set(map(_ENVELOPE, packed))) == 1:
        return enqueue_alike(config, list(map(_BODY, packed)), common, now=now)
    words: list[Word] = []
    may_be_over, has_ids, ids_only, last_ttl = False, True, True, b""
    for envelope, body in packed:
        words += (envelope.encode(), body)
        ttl, id, extras = envelope
        has_ids = has_ids and id != b""
        ids_only = has_ids and ids_only and not (ttl or extras)
        if ttl != last_ttl:  # messages of a batch are often alike
            last_ttl, may_be_over = ttl, may_be_over or ttl_may_be_over(ttl)
    return enqueue_encoded(
        config, words, has_ids=has_ids, ids_only=ids_only, may_be_over=may_be_over, window=window, now=now
    )


def enqueue_encoded(
    config: QueueConfig,
    words: Sequence[Word],
    *,
    has_ids: bool,
    ids_only: bool,
    may_be_over: bool,
    window: int = 0,
    now: Word = "",
) -> Command:
    """Store messages as `enqueue` does. `words` has the encoded envelope and the body of each message in turn.

    `has_ids`: each message has an id. `ids_only`: each envelope is only an id. `may_be_over`: a TTL may have ended.
    The call is repeatable if each message has an id, and the queue or the call has a window for duplicates.
    """
    repeat = _repeat(config, has_ids, window)
    simple = config.cannot_refuse and not window and not may_be_over
    form = "ids" if ids_only else ""
    return _enqueue(config, form, words, window=window, simple=simple, now=now, repeat=repeat)


def _repeat(config: QueueConfig, has_ids: bool, window: int) -> Repeat:
    return Repeat.CHECKED if has_ids and (config.window > 0 or window > 0) else Repeat.NEVER


def enqueue_alike(
    config: QueueConfig, bodies: Sequence[bytes], common: Envelope = NO_ENVELOPE, *, now: Word = ""
) -> Command:
    """Store at most `BATCH` messages that have the same envelope, without an id."""
    if common is NO_ENVELOPE or common is VALUE:
        form: Word = "bodies" if common is NO_ENVELOPE else _VALUE_FORM
        return _enqueue(config, form, bodies, simple=config.cannot_refuse, now=now)
    simple = config.cannot_refuse and not ttl_may_be_over(common.ttl)
    return _enqueue(config, common.encode() or "bodies", bodies, simple=simple, now=now)


def _enqueue(
    config: QueueConfig,
    form: Word,
    batch: Sequence[Word],
    *,
    simple: bool,
    window: int = 0,
    now: Word = "",
    repeat: Repeat = Repeat.NEVER,
) -> Command:
    script = scripts.load("enqueue")
    usual = (type(form) is str or form is _VALUE_FORM) and not window and now == ""
    head = config.heads.get((form, simple)) if usual else None
    if head is None:
        prefix = config.minimal_keys(script) if simple else config.keys_for(script)
        head = (*prefix, *script.arguments(now=now, window=window or "", form=form))
        if config.command is not Command:  # a durable queue keeps no heads, so that others need not look
            return config.command(script, config.name, (*head, *batch), repeat, head)
        if usual:  # there are few such forms
            config.heads[form, simple] = head
    return Command(script, config.name, (*head, *batch), repeat, head)


def redrive(config: QueueConfig, source: str, sequences: Sequence[Word], *, now: Word = "") -> Command:
    """Move at most `BATCH` dead letters from the queue `source` to this queue. These are two queues."""
    return fenced(config, "redrive", sequences, source, Repeat.CHECKED, now=now, replay="")


def relay(
    keyspace: Keyspace,
    queue: str,
    target: str,
    *,
    token: Word,
    verdict: Word,
    fresh: Word = "",
    more: bool = False,
    now: Word = "",
) -> Command:
    """Take a page of the dead letters that wait for a queue in another slot, after the `verdict` about page `token`."""
    words = {"target": target, "token": token, "verdict": verdict, "fresh": fresh, "more": "1" * more}
    return BriefCommand(*unfenced(keyspace, queue, "relay", (), target, now=now, **words))


def accept(
    keyspace: Keyspace, queue: str, source: str, letters: Sequence[Word], *, number: int, token: Word, now: Word = ""
) -> Command:
    """Store a page of dead letters from a queue in another slot. `letters` are header and body in turn."""
    return BriefCommand(*unfenced(keyspace, queue, "accept", letters, source, now=now, number=number, token=token))


def redrive_out(
    keyspace: Keyspace,
    queue: str,
    target: str,
    sequences: Sequence[Word] = (),
    *,
    token: Word = "",
    verdict: Word = "",
    fresh: Word = "",
    now: Word = "",
) -> Command:
    """Take at most `BATCH` dead letters out for a queue in another slot, or tell the `verdict` about page `token`."""
    words = {"target": target, "token": token, "verdict": verdict, "fresh": fresh}
    call = unfenced(keyspace, queue, "redrive_out", sequences, target, now=now, **words)
    return BriefCommand(*call._replace(repeat=Repeat.CHECKED))


def redrive_in(
    config: QueueConfig, source: str, letters: Sequence[Word], *, number: int, token: Word, now: Word = ""
) -> Command:
    """Let a page of dead letters from a queue in another slot arrive in this one: sequence, header and body in turn."""
    call = fenced(config, "redrive_in", letters, source, now=now, source=source, number=number, token=token)
    return BriefCommand(*call._replace(repeat=Repeat.CHECKED))


class Presence(NamedTuple):  # each look of a consumer makes one, and a named tuple costs the least
    """The presence of a consumer: its name, the ms for which it blocks next, and the ms for which it counts as present.

    A consumer that gets fewer messages than `room` counts as waiting.
    """

    consumer: str = ""
    block: int = 0
    ttl: int = 0
    ticket: bytes = b""
    room: int = 1


ABSENT = Presence()


def receive(
    config: QueueConfig,
    count: int,
    lease: int,
    *,
    auto_ack: bool = False,
    presence: Presence = ABSENT,
    finished: Sequence[Word] = (),
    now: Word = "",
) -> Command:
    """Settle deliveries as acked (sequence and token in turn), then take up to `count` messages.

    Raises `QueueForwards` if it is to take messages where they go on.
    """
    if config.passes_on and count:
        config.options.check_source()
    script = scripts.load("receive")
    arguments = script.arguments(
        now=now,
        replay="",
        count=str(count),
        lease=str(lease),
        auto="1" if auto_ack else "",
        room=str(presence.room),
        consumer=presence.consumer,
        block=str(presence.block),
        stay=str(presence.ttl),
        ticket=presence.ticket,
    )
    repeat = Repeat.NEVER if auto_ack else Repeat.FREELY
    return Command(script, config.name, (*config.keys_for(script), *arguments, *runs(finished)), repeat)


class Joined:
    """Enqueue calls of one queue that become one call, and the reply to each. `take` adds one at the end, if it fits.

    A batch of many messages takes Redis a fifth of the time of as many calls. The calls keep their order, and each one
    has the effect and the reply that it would have alone: a batch meets limits, TTLs and windows message by message.
    """

    __slots__ = ("_batch", "_ends", "_most", "_step", "first", "size")

    def __init__(self, command: Command) -> None:
        #: The first call.
        self.first = command
        self._batch = list(command.words[len(command.head) :])
        self._step = 2 if command.word("form") in ("", "ids") else 1
        self._most = BATCH * self._step
        #: The number of words of the calls up to each one.
        self._ends = [0, len(self._batch)]
        #: The bytes of all envelopes and bodies.
        self.size = sum(map(len, self._batch))  # type: ignore[arg-type]  # envelopes and bodies are bytes

    def take(self, command: Command) -> bool:
        """Add a call. Returns False if its queue, options or form are other ones, or if a call would carry too much."""
        first, head = self.first, command.head
        if (head is not first.head and head != first.head) or command.repeat is not first.repeat:
            return False
        batch = command.words[len(head) :]
        size, end = self.size + sum(map(len, batch)), self._ends[-1] + len(batch)  # type: ignore[arg-type]  # see above
        if end > self._most or size > BATCH_BYTES:
            return False
        self._batch += batch
        self._ends.append(end)
        self.size = size
        return True

    @property
    def words(self) -> tuple[Word, ...]:
        """The words of the one call."""
        return (*self.first.head, *self._batch)

    def replies(self, reply: Any) -> list[Any]:
        """Make the reply to each call of the reply to all. `None` stands for a call that was not carried out.

        The script refuses all messages because of a malformed one. Only its own call gets this refusal. Notes are
        handled once, so only the first call has them.
        """
        calls = [(begin // self._step, end // self._step) for begin, end in pairwise(self._ends)]
        if type(reply) is not list:
            return [reply] * len(calls)
        if reply[:2] == [b"refused", b"malformed"]:
            place = reply[2]
            return [[*reply[:2], place - begin] if begin < place <= end else None for begin, end in calls]
        if reply[0] != b"ok":
            return [reply] * len(calls)
        _, notes, results = reply
        if len(results) != calls[-1][1]:
            text = f"script enqueue: {len(results)} results for {calls[-1][1]} messages"
            return [ContractError(text) for _ in calls]
        return [[b"ok", b"" if begin else notes, results[begin:end]] for begin, end in calls]


def publish(
    config: QueueConfig,
    copies: Sequence[tuple[QueueConfig, Sequence[int]]],
    packed: Sequence[tuple[Envelope, bytes]],
    *,
    window: int = 0,
    now: Word = "",
) -> Command:
    """Store copies of at most `BATCH` messages to a topic, all or none.

    `copies` has each queue with the numbers of its messages, from 1 on; none means all. A queue that is a target of
    others comes before them. The call is as durable as the strongest of topic and queues. For `window` and repeatable
    calls see `enqueue`.
    """
    simple = config.cannot_refuse and not any(ttl_may_be_over(envelope.ttl) for envelope, _ in packed)
    batch = [word for envelope, body in packed for word in (envelope.encode(), body)]
    command = _copying(config, copies, batch, simple=simple, window=window or "", form="", known="", mark="", now=now)
    kinds = {config.command, *(one.command for one, _ in copies)}
    kind = next((one for one in (DiskCommand, ReplicaCommand) if one in kinds), Command)
    return kind(*command)._replace(repeat=_repeat(config, all(envelope.id for envelope, _ in packed), window))


def pass_on(
    config: QueueConfig,
    copies: Sequence[tuple[QueueConfig, Sequence[int]]],
    sequences: Sequence[Word],
    *,
    known: Word = "",
    mark: Word = "",
    now: Word = "",
) -> Command:
    """Store copies of the first ready messages of a topic, at most `BATCH`, and take them out, all or none.

    They stay on one node, so nothing needs to be confirmed. For `copies` see `publish`. A message for more queues than
    one call has comes alone, in several calls with queues in the order of their names: each has as `known` the mark of
    the one before, and all but the last set a `mark`.
    """
    words: dict[str, Word] = {"window": "", "form": "log", "known": known, "mark": mark, "now": now}
    return _copying(config, copies, sequences, simple=True, **words)


def _copying(
    config: QueueConfig,
    copies: Sequence[tuple[QueueConfig, Sequence[int]]],
    batch: Sequence[Word],
    simple: bool,
    **words: Word,
) -> Command:
    """A call of `publish`. `simple`: no message has a TTL that may be over."""
    script, like = scripts.load("publish"), scripts.load("enqueue")
    keys = [*config.keys_for(script)[1:-1]]
    queues: list[Word] = []
    for one, numbers in copies:
        own = one.minimal_keys(like) if simple and one.cannot_refuse else one.keys_for(like)
        keys += own[1:-2]
        queues += (one.name, own[-2], own[0], own[-1], " ".join(map(str, numbers)))
    head = (str(len(keys)), *keys, config.version, *script.arguments(count=len(copies), **words))
    return Command(script, config.name, (*head, *queues, *batch))


def schedule(
    config: QueueConfig, packed: Sequence[tuple[bytes, Envelope, bytes]], *, window: int = 0, now: Word = ""
) -> Command:
    """Store at most `BATCH` messages that arrive later: due time (`+<ms>` or `@<ms>`), envelope and body of each.

    For `window` and repeatable calls see `enqueue`.
    """
    batch: list[Word] = []
    for due, envelope, body in packed:
        batch += (due, envelope.encode(), body)
    return schedule_encoded(config, batch, has_ids=all(one.id for _, one, _ in packed), window=window, now=now)


def schedule_encoded(
    config: QueueConfig, words: Sequence[Word], *, has_ids: bool, window: int = 0, now: Word = ""
) -> Command:
    """Store messages as `schedule` does. `words` has due time, encoded envelope and body of each message in turn."""
    command = fenced(config, "schedule", words, now=now, window=window or "")
    return config.command(*command[:3], _repeat(config, has_ids, window))


def cancel(keyspace: Keyspace, queue: str, id: Word, *, now: Word = "") -> Command:
    """Remove at most `BATCH` scheduled messages by message id or first sequence."""
    return unfenced(keyspace, queue, "cancel", now=now, id=id)._replace(repeat=Repeat.NEVER)


def reschedule(keyspace: Keyspace, queue: str, id: Word, due: Word, after: Word = "", *, now: Word = "") -> Command:
    """Give at most `BATCH` scheduled messages another due time. The reply to the call before has `after`."""
    command = unfenced(keyspace, queue, "reschedule", now=now, id=id, due=due, after=after)
    return command._replace(repeat=Repeat.CHECKED)


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
    return BriefCommand(script, queue, (*keys_of(keyspace, queue, script, ()), secrets.token_hex(8), *arguments))


def make(keyspace: Keyspace, queue: str) -> Command:
    """Create a queue that is missing, without a declaration, as a dead letter creates its target."""
    return declare(keyspace, Options.plain(QueueOptions(queue, {}))).with_word("declared", "")


def update(config: QueueConfig, options: Options, *, now: Word = "") -> Command:
    """Declare other options and put them in force, if `config` still holds."""
    return BriefCommand(*_put(config, options, now=now, declared=options.declared.as_json()))


def apply_policies(config: QueueConfig, options: Options, *, now: Word = "") -> Command:
    """Put other options in force that follow from policies, if `config` still holds. It is no use of the queue."""
    return _put(config, options, now=now, declared="")


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
    return BriefCommand(script, "", (1, keyspace.policies, *arguments, *removed, *fields))


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
    words: dict[str, Word] = {}
    for name in ("message_ttl", "max_length", "max_length_bytes"):
        value = options.number(name) if name == "message_ttl" or options.overflow == "drop-head" else None
        words[name] = "" if value is None else value
    return fenced(config, "preview", now=now, **words, **walk._asdict())


def purge(
    keyspace: Keyspace, queue: str, upto: Word, sequences: Sequence[Word] = (), *, unread: bool = False
) -> Command:
    """Remove the ready messages up to `upto`, or only `sequences` (at most `BATCH`).

    The reply to a first call, with `upto` empty, says where the purge ends. `sequences` count as lost if `unread`.
    """
    words: dict[str, Word] = {"upto": upto, "unread": "1" if unread else ""}
    return unfenced(keyspace, queue, "purge", sequences, **words)._replace(repeat=Repeat.NEVER)


def discard(keyspace: Keyspace, queue: str, created_at: int, after: str, upto: str) -> Command:
    """Remove the ready messages after `after`, up to `upto`, of the queue with this creation time."""
    return unfenced(keyspace, queue, "discard", created_at=created_at, after=after, upto=upto)


def delete(
    keyspace: Keyspace, queue: str, *, if_unused: bool, if_empty: bool, known: Word = "", now: Word = ""
) -> Command:
    """Delete a queue; with a `known` version only if it has these options."""
    conditions: dict[str, Word] = {"if_unused": "1" if if_unused else "", "if_empty": "1" if if_empty else ""}
    return unfenced(keyspace, queue, "delete", now=now, known=known, **conditions)._replace(repeat=Repeat.NEVER)


def peek(keyspace: Keyspace, queue: str, *, after: str, limit: int, id: Word = "", now: Word = "") -> Command:
    """Look at messages; with an `id` only at those that have it."""
    return unfenced(keyspace, queue, "peek", now=now, after=after, limit=limit, id=id)


def intervene(
    config: QueueConfig,
    what: str,
    sequences: Sequence[Word],
    *,
    description: bytes = b"",
    dry: bool = False,
    now: Word = "",
) -> Command:
    """Do something to at most `BATCH` messages: `delete`, `redeliver`, or the reason of a death."""
    words: dict[str, Word] = {"what": what, "description": description, "dry": "1" if dry else ""}
    command = fenced(config, "intervene", sequences, now=now, **words)
    return command._replace(repeat=Repeat.FREELY if dry or what == "redeliver" else Repeat.NEVER)


def move(config: QueueConfig, source: str, sequences: Sequence[Word], *, dry: bool = False, now: Word = "") -> Command:
    """Move at most `BATCH` messages in any state but leased from the queue `source` to this queue."""
    command = fenced(config, "move", sequences, source, now=now, dry="1" if dry else "")
    return command._replace(repeat=Repeat.FREELY if dry else Repeat.NEVER)


def sweep(config: QueueConfig, *, now: Word = "") -> Command:
    """Do the due work of a queue, in one bounded step."""
    script = scripts.load("sweep")
    return Command(script, config.name, (*config.keys_for(script), *script.arguments(now=now)))


def stats(config: QueueConfig, *, now: Word = "") -> Command:
    """Ask for the statistics of a queue."""
    return fenced(config, "stats", now=now)
