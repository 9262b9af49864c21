"""Flows about messages: storing, taking out, settling."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Any
from zlib import crc32

from rqttl.errors import PoolExhausted, QueueFull
from rqttl.flows.steps import Clock, Flow, Follow, Listen, Look, Together, fenced
from rqttl.protocol import codec, commands
from rqttl.protocol.commands import ABSENT, BATCH, BATCH_BYTES, READ_BYTES, Command, Known, Presence, Reply, Word
from rqttl.text import plain_text
from rqttl.types import Message, Receipt

#: The longest that a consumer blocks before it looks at the queue again, in ms.
PERIOD = 240_000
#: The answer to `Listen` where no wait may go on.
ENDED = b"ended"
#: Calls that one round trip of `enqueue_many` carries at most.
WINDOW = 8

_SEQUENCE_BYTES = 20


def _batches(packed: Sequence[tuple[bytes, bytes]]) -> Iterator[Sequence[tuple[bytes, bytes]]]:
    start = size = 0
    for i, (said, body) in enumerate(packed):
        if i > start and (i - start >= BATCH or size + len(said) + len(body) > BATCH_BYTES):
            yield packed[start:i]
            start, size = i, 0
        size += len(said) + len(body)
    if start < len(packed):
        yield packed[start:]


def enqueue_one(queue: str, message: Message | object) -> Flow[Receipt | QueueFull]:
    """Store one message."""
    known: Known = yield Look(queue)
    packed = (commands.pack(message),)
    (known, reply) = yield from _store(known, len(packed[0][1]), lambda known: commands.enqueue(known, packed))
    return _receipt(known, reply[2][0], message)


def enqueue(queue: str, messages: Sequence[Message | object], window: int = 0) -> Flow[list[Receipt | QueueFull]]:
    """Store messages in order; their ids are remembered for `window` ms.

    Without limits several batches go in one round trip; with limits, or a window of the call, one after the other,
    because a batch that has to be repeated must not be overtaken.
    """
    known: Known = yield Look(queue)
    largest = _largest_of_plain(messages)
    if largest is None:
        packed = [commands.pack(message) for message in messages]
        stored = yield from _in_batches(known, packed, window)
    else:
        bodies: Any = messages
        stored = [(yield from _store(known, largest, lambda known: commands.enqueue_plain(known, bodies)))]
    results = [result for _, reply in stored for result in reply[2]]
    forever = all(known.retention is None for known, _ in stored)
    if forever and set(map(type, messages)) == {bytes} and set(map(len, results)) == {_SEQUENCE_BYTES}:
        return list(map(Receipt, map(bytes.decode, results)))
    options = [known for known, reply in stored for _ in reply[2]]
    return [_receipt(*one) for one in zip(options, results, messages, strict=True)]


def _largest_of_plain(messages: Sequence[Message | object]) -> int | None:
    """The size of the largest, if all are bodies as they are and fit into one batch."""
    if len(messages) > BATCH or set(map(type, messages)) != {bytes}:
        return None
    sizes = list(map(len, messages))  # type: ignore[arg-type]  # all are bytes
    return max(sizes) if sum(sizes) <= BATCH_BYTES else None


#: The options that were in force when a call stored messages, and its reply.
_Stored = tuple[Known, Reply]


def _store(known: Known, largest: int, build: Callable[[Known], Command]) -> Flow[_Stored]:
    """Store messages in one call, of which the largest body has `largest` bytes.

    Raises `MessageTooLarge` by the options in force only, never by those that this client last saw.
    """
    known = yield from _roomy(known, largest)

    def checked(newest: Known) -> Command:
        nonlocal known
        known = newest
        commands.check_size(known, largest)
        return build(known)

    reply = yield from fenced(known.name, checked, known)
    return known, reply


def _roomy(known: Known, largest: int) -> Flow[Known]:
    """Options that take a body of `largest` bytes: these, or those in force now. Raises `MessageTooLarge`."""
    if largest > known.max_body:
        known = yield Look(known.name, fresh=True)
        commands.check_size(known, largest)
    return known


def _in_batches(known: Known, packed: Sequence[tuple[bytes, bytes]], window: int) -> Flow[list[_Stored]]:
    pieces = list(_batches(packed))
    sizes = [max(len(body) for _, body in piece) for piece in pieces]
    #: For each batch, the largest body of it and all later ones: none is stored before one that is refused.
    largest = list(accumulate(reversed(sizes), max))[::-1]
    stored: list[_Stored] = []
    while len(stored) < len(pieces):
        start = len(stored)
        known = yield from _roomy(known, largest[start])
        alone = len(pieces) == 1 or known.limited or window
        some = pieces[start : start + (1 if alone else WINDOW)]
        calls = [partial(commands.enqueue, packed=piece, window=window) for piece in some]
        if alone:
            stored.append((yield from _store(known, largest[start], calls[0])))
        else:
            stored += yield from _together(known, largest[start:], calls)
        known = stored[-1][0]
    return stored


def _together(known: Known, largest: Sequence[int], calls: Sequence[Callable[[Known], Command]]) -> Flow[list[_Stored]]:
    replies: list[Reply] = yield Together([call(known) for call in calls])
    stored: list[_Stored] = []
    for reply, call, size in zip(replies, calls, largest, strict=False):
        if reply[0] == b"ok":
            if reply[1]:
                yield Follow(reply[1])
            stored.append((known, reply))
        else:
            newest: Known = yield Look(known.name, fresh=True)
            stored.append((yield from _store(newest, size, call)))
    return stored


def _receipt(known: Known, result: bytes, message: Message | object) -> Receipt | QueueFull:
    id = plain_text(message.id) if isinstance(message, Message) else None
    if result == b"=":
        return Receipt(id or "", duplicate=True)
    if len(result) == _SEQUENCE_BYTES and known.retention is None:
        return Receipt(result.decode() if id is None else id)
    if result[:1] == b"!":
        limit = result[1:].decode()
        return QueueFull(known.name, limit, known.options.number(limit) or 0)
    expired = result[:1] == b"~"
    place, _, own = result[expired:].partition(b" ")
    deadline = codec.deadline(known.retention, place, int(own) if own else None)
    return Receipt(place.decode() if id is None else id, deadline, expired=expired)


@dataclass(frozen=True, slots=True)
class Claimed:
    """What one receive gave: entries `(sequence, (header, body))`, one lease token for all, and what is next.

    `lost` and `unknown` are sequences of deliveries that it was to finish; see `Settled`.
    """

    known: Known
    entries: Sequence[Any]
    token: bytes
    failures: dict[bytes, int]
    lost: Sequence[bytes]
    unknown: Sequence[bytes]
    now: int
    due: int | None
    more: bool


def claim(queue: str, count: int, lease: int | None, *, auto_ack: bool = False, presence: Presence = ABSENT,
          finished: Sequence[Word] = (), now: Word = "") -> Flow[Claimed]:  # fmt: skip
    """One receive call; repeated at once while all that was met had expired."""
    used: Known

    def build(known: Known) -> Command:
        nonlocal used
        used = known
        ms = known.lease if lease is None else lease
        return commands.receive(known, count, ms, auto_ack=auto_ack, presence=presence, finished=finished, now=now)

    lost: list[bytes] = []
    unknown: list[bytes] = []
    while True:
        _, _, at, due, more, token, missed, entries, failures, open_ones = yield from fenced(queue, build)
        lost, unknown = lost + missed, unknown + open_ones
        if entries or not more or not count:
            failed = dict(zip(failures[::2], map(int, failures[1::2]), strict=True)) if failures else {}
            return Claimed(used, entries, token, failed, lost, unknown, at, int(due) if due else None, bool(more))
        finished = ()


def period(consumer: str) -> int:
    """How long this consumer blocks at most, in ms: half of `PERIOD` to all of it.

    Consumers that began together so do not go on looking at Redis together.
    """
    return PERIOD - crc32(consumer.encode()) % (PERIOD // 2)


def receive(queue: str, count: int, lease: int | None, wait: int, *, auto_ack: bool, consumer: str, ttl: int = 0,
            room: int = 1, finished: Callable[[], Sequence[Word]] = tuple) -> Flow[Claimed]:  # fmt: skip
    """Take up to `count` messages, waiting for the first one up to `wait` ms. Every time-out looks at the queue again.

    `finished` is asked before every look for deliveries to finish with it. Who finds fewer messages than `room` counts
    as waiting: it comes back at once.
    """
    if wait <= 0:
        here = Presence(consumer, 0, ttl) if consumer and ttl else ABSENT
        return (yield from claim(queue, count, lease, auto_ack=auto_ack, presence=here, finished=finished()))
    started: int = yield Clock()
    ticket, now = b"", started
    lost: list[bytes] = []
    unknown: list[bytes] = []
    deaf: PoolExhausted | None = None
    while True:
        left = max(0, started + wait - now)
        block = min(left, period(consumer))
        here = Presence(consumer, block, ttl, ticket, room)
        claimed = yield from claim(queue, count, lease, auto_ack=auto_ack, presence=here, finished=finished())
        lost, unknown = [*lost, *claimed.lost], [*unknown, *claimed.unknown]
        if deaf and not claimed.entries:
            raise deaf
        if claimed.entries or block == 0:
            return replace(claimed, lost=lost, unknown=unknown)
        due = None if claimed.due is None else max(1, claimed.due - claimed.now)
        heard = yield Listen(queue, block, left, due)
        deaf = heard if isinstance(heard, PoolExhausted) else None
        ticket = heard if heard and not deaf else b""
        if deaf or ticket == ENDED:
            # looks once more, and so leaves those who wait, with what was handed to it meanwhile
            ticket, wait = b"", 0
        now = yield Clock()


def receive_nothing(queue: str, presence: Presence, finished: Callable[[], Sequence[Word]]) -> Flow[Claimed]:
    """Finish deliveries and show that a consumer lives, without taking anything."""
    return (yield from claim(queue, 0, 1, presence=presence, finished=finished()))


@dataclass(frozen=True, slots=True)
class Settled:
    """The exceptions to what a settle was to do, by sequence; and the new token of each lease that was renewed.

    `lost`: the lease had ended. `unknown`: the reply to an earlier try was lost, the lease has ended since, and the
    message is gone, so nobody knows whether that try settled it.
    """

    lost: set[bytes]
    unknown: set[bytes]
    tokens: dict[bytes, bytes]


def settle(deliveries: Sequence[tuple[bytes, bytes]],
           run: Callable[[Sequence[Word]], Flow[Reply]], sizes: Sequence[int] = ()) -> Flow[Settled]:  # fmt: skip
    """Settle deliveries (sequence and token) in batches; or renew their leases.

    `sizes` are the bytes of each message, for a script that reads them: they cut the batches too.
    """
    settled = Settled(set(), set(), {})
    for batch in _cut(deliveries, sizes):
        _, _, told, lost = yield from run([word for pair in batch for word in pair])
        settled.lost.update(lost)
        if isinstance(told, bytes):
            settled.tokens.update((sequence, told) for sequence, _ in batch)
        else:
            settled.unknown.update(told)
    return settled


def _cut(deliveries: Sequence[tuple[bytes, bytes]], sizes: Sequence[int]) -> Iterator[Sequence[tuple[bytes, bytes]]]:
    start = size = 0
    for i in range(len(deliveries)):
        more = sizes[i] if sizes else 0
        if i - start == BATCH or (i > start and size + more > READ_BYTES):
            yield deliveries[start:i]
            start, size = i, 0
        size += more
    if start < len(deliveries):
        yield deliveries[start:]
