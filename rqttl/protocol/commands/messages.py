"""Script calls that bring messages in or take them out."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import NamedTuple

from rqttl.errors import MessageTooLarge
from rqttl.protocol import codec, scripts
from rqttl.protocol.commands.call import Command
from rqttl.protocol.commands.settle import runs
from rqttl.protocol.contract import Word
from rqttl.protocol.envelope import NO_ENVELOPE, VALUE, Envelope, envelope_of, ttl_may_be_over
from rqttl.protocol.queue_config import QueueConfig
from rqttl.text import plain_text
from rqttl.types import Message

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
