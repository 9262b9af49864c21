"""Script calls as values, and those that store, take out and settle messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from rqttl.errors import MessageTooLarge
from rqttl.protocol import codec, scripts
from rqttl.protocol.codec import NO_ENVELOPE, VALUE, Envelope, envelope_of, ttl_may_be_over
from rqttl.protocol.contract import REPLAY, Script, Word
from rqttl.protocol.keys import Keyspace
from rqttl.protocol.queue_config import QueueConfig, keys_of
from rqttl.text import plain_text
from rqttl.types import Message

#: The largest number of messages, or of deliveries to settle, in one script call.
BATCH = 250

#: Bytes of headers and bodies after which a script call reads no further message. Batches of settles keep to it.
READ_BYTES = 2**22

#: Body bytes that one enqueue call carries at most (a single message may be larger).
BATCH_BYTES = 2**20


class Command(NamedTuple):
    """One script call as a value, before it is made.

    `repeatable`: two calls have the same effect as one, so the call may be repeated after a lost reply. `head` are the
    words before a batch, on a call that others may join; see `Joined`.
    """

    script: Script
    queue: str
    words: tuple[Word, ...]
    repeatable: bool = True
    head: tuple[Word, ...] = ()

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
        return Command(self.script, self.queue, words, self.repeatable)


def unfenced(keyspace: Keyspace, queue: str, name: str, more: Iterable[Word] = (), /, **words: Word) -> Command:
    """A call that does not depend on the options in force. `words` are its arguments, named as in its header."""
    script = scripts.load(name)
    return Command(script, queue, (*keys_of(keyspace, queue, script, ()), *script.arguments(**words), *more))


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


_ENVELOPE, _BODY = itemgetter(0), itemgetter(1)
_VALUE_FORM = VALUE.encode()


def pack(message: Message | object) -> tuple[Envelope, bytes]:
    """Encode a message for `enqueue`: its envelope and its body. Raises `InvalidInput`."""
    if type(message) is bytes:
        return NO_ENVELOPE, message
    if not isinstance(message, Message):
        body, content_type = codec.pack_body(message)
        return VALUE if content_type else NO_ENVELOPE, body
    body, content_type = codec.pack_body(message.body)
    chosen_type = message.content_type
    kind = content_type if chosen_type is None or plain_text(chosen_type) == "" else chosen_type
    return envelope_of(message, kind), body


def check_size(config: QueueConfig, largest: int) -> None:
    """Raise `MessageTooLarge` if a body of `largest` bytes is more than the queue takes."""
    if largest > config.max_body:
        raise MessageTooLarge(f"body: {largest} bytes are more than max_message_bytes, {config.max_body}")


def enqueue(
    config: QueueConfig, packed: Sequence[tuple[Envelope, bytes]], *, window: int = 0, now: Word = ""
) -> Command:
    """Store at most `BATCH` messages. The queue remembers their ids for `window` ms, in addition to its own window.

    The call is repeatable if each message has an id, and the queue or the call has a window for duplicates.
    """
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
    """
    repeatable = has_ids and (config.window > 0 or window > 0)
    simple = config.cannot_refuse and not window and not may_be_over
    form = "ids" if ids_only else ""
    return _enqueue(config, form, words, window=window, simple=simple, now=now, repeatable=repeatable)


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
    repeatable: bool = False,
) -> Command:
    script = scripts.load("enqueue")
    usual = (type(form) is str or form is _VALUE_FORM) and not window and now == ""
    head = config.heads.get((form, simple)) if usual else None
    if head is None:
        prefix = config.minimal_keys(script) if simple else config.keys_for(script)
        head = (*prefix, *script.arguments(now=now, window=window or "", form=form))
        if usual:  # there are few such forms
            config.heads[form, simple] = head
    return Command(script, config.name, (*head, *batch), repeatable, head)


def redrive(config: QueueConfig, source: str, sequences: Sequence[Word], *, now: Word = "") -> Command:
    """Move at most `BATCH` dead letters from the queue `source` to this queue. These are two queues."""
    script = scripts.load("redrive")
    arguments = script.arguments(now=now, replay="")
    return Command(script, config.name, (*config.keys_for(script, source), *arguments, *sequences))


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
    """Settle deliveries as acked (sequence and token in turn), then take up to `count` messages."""
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
    return Command(script, config.name, (*config.keys_for(script), *arguments, *runs(finished)), not auto_ack)
