"""Script calls that bring messages in or take them out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rqttl.errors import MessageTooLarge
from rqttl.protocol import codec, scripts
from rqttl.protocol.commands.call import Command, Known, Word
from rqttl.protocol.commands.settle import runs
from rqttl.text import plain_text
from rqttl.types import Message


def pack(message: Message | object) -> tuple[bytes, bytes]:
    """Encode a message for `enqueue`: the sender's part of its header, and its body. Raises `InvalidInput`."""
    if type(message) is bytes:
        body, said = message, b""
    else:
        if not isinstance(message, Message):
            message = Message(message)
        body, content_type = codec.pack_body(message.body)
        given = message.content_type
        said = codec.pack_said(message, content_type if given is None or plain_text(given) == "" else given)
    return said, body


def check_size(known: Known, largest: int) -> None:
    """Raise `MessageTooLarge` if a body of `largest` bytes is more than the queue takes."""
    if largest > known.max_body:
        raise MessageTooLarge(f"body: {largest} bytes are more than max_message_bytes, {known.max_body}")


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
    script = scripts.load("enqueue")
    prefix = known.short(script) if simple else known.prefix(script)
    return Command(script, known.name, (*prefix, now, *words), repeatable=repeatable)


def redrive(known: Known, source: str, sequences: Sequence[Word], *, now: Word = "") -> Command:
    """Put dead letters of `source`, at most `BATCH`, into the queue, which is another one."""
    script = scripts.load("redrive")
    prefix = known.prefix(script, source)
    return Command(script, known.name, (*prefix, now, "", *sequences), marked=len(prefix) + 1)


@dataclass(frozen=True, slots=True)
class Presence:
    """How a consumer shows itself to a queue: who it is, how long it waits now, how long it counts as a consumer.

    It goes on waiting where it finds fewer messages than `room`.
    """

    consumer: str = ""
    block: int = 0
    ttl: int = 0
    ticket: bytes = b""
    room: int = 1


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
    script = scripts.load("receive")
    prefix = known.prefix(script)
    here = presence
    args = (now, "", count, lease, "1" if auto_ack else "", here.room)
    shown = (here.consumer, here.block, here.ttl, here.ticket)
    return Command(script, known.name, (*prefix, *args, *shown, *runs(finished)), not auto_ack, len(prefix) + 1)
