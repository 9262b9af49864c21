"""Flows about messages: storing, taking out, settling."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any
from zlib import crc32

from rqttl import codec, commands
from rqttl.commands import ABSENT, BATCH, BATCH_BYTES, Command, Known, Presence, Reply, Word
from rqttl.errors import PoolExhausted, QueueFull
from rqttl.flows.steps import Clock, Flow, Follow, Listen, Look, Together, fenced
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
    packed = (commands.pack(message, known.max_body),)
    reply = yield from fenced(queue, lambda known: commands.enqueue(known, packed), known)
    if known.retention is not None:
        known = yield Look(queue)
    return _receipt(known, reply[2][0], message)


def enqueue(queue: str, messages: Sequence[Message | object], window: int = 0) -> Flow[list[Receipt | QueueFull]]:
    """Store messages in order; their ids are remembered for `window` ms.

    Without limits several batches go in one round trip; with limits, or a window of the call, one after the other,
    because a batch that has to be repeated must not be overtaken.
    """
    known: Known = yield Look(queue)
    if _plain(messages, known.max_body):
        bodies: Any = messages
        reply = yield from fenced(queue, lambda known: commands.enqueue_plain(known, bodies), known)
        replies = [reply]
    else:
        packed = [commands.pack(message, known.max_body) for message in messages]
        replies = yield from _in_batches(queue, known, packed, window)
    results = [result for reply in replies for result in reply[2]]
    known = yield Look(queue)
    if known.retention is None and set(map(type, messages)) == {bytes} and set(map(len, results)) == {_SEQUENCE_BYTES}:
        return list(map(Receipt, map(bytes.decode, results)))
    return [_receipt(known, result, message) for result, message in zip(results, messages, strict=True)]


def _plain(messages: Sequence[Message | object], most: int) -> bool:
    """Whether these are bodies as they are, and fit into one batch."""
    if len(messages) > BATCH or set(map(type, messages)) != {bytes}:
        return False
    sizes = list(map(len, messages))  # type: ignore[arg-type]  # all are bytes
    return max(sizes) <= most and sum(sizes) <= BATCH_BYTES


def _in_batches(queue: str, known: Known, packed: Sequence[tuple[bytes, bytes]], window: int) -> Flow[list[Reply]]:
    replies: list[Reply] = []
    pieces = list(_batches(packed))
    if len(pieces) == 1 or known.limited or window:
        for piece in pieces:
            replies += [(yield from _store(queue, piece, window))]
    else:
        for start in range(0, len(pieces), WINDOW):
            replies += yield from _together(queue, known, pieces[start : start + WINDOW], window)
    return replies


def _store(queue: str, piece: Sequence[tuple[bytes, bytes]], window: int) -> Flow[Reply]:
    return (yield from fenced(queue, lambda known: commands.enqueue(known, piece, window=window)))


def _together(
    queue: str, known: Known, pieces: Sequence[Sequence[tuple[bytes, bytes]]], window: int
) -> Flow[list[Reply]]:
    replies: list[Reply] = yield Together([commands.enqueue(known, piece, window=window) for piece in pieces])
    done: list[Reply] = []
    for piece, reply in zip(pieces, replies, strict=True):
        if reply[0] == b"ok":
            if reply[1]:
                yield Follow(reply[1])
            done.append(reply)
        else:
            done.append((yield from _store(queue, piece, window)))
    return done


def _receipt(known: Known, result: bytes, message: Message | object) -> Receipt | QueueFull:
    id = message.id if type(message) is Message else None
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


def receive(queue: str, count: int, lease: int | None, wait: int, *, auto_ack: bool, consumer: str, stay: int = 0,
            room: int = 1, finished: Callable[[], Sequence[Word]] = tuple) -> Flow[Claimed]:  # fmt: skip
    """Take up to `count` messages, waiting for the first one up to `wait` ms. Every time-out looks at the queue again.

    `finished` is asked before every look for deliveries to finish with it. Who finds fewer messages than `room` counts
    as waiting: it comes back at once.
    """
    if wait <= 0:
        here = Presence(consumer, 0, stay) if consumer and stay else ABSENT
        return (yield from claim(queue, count, lease, auto_ack=auto_ack, presence=here, finished=finished()))
    started: int = yield Clock()
    ticket, now = b"", started
    lost: list[bytes] = []
    unknown: list[bytes] = []
    deaf: PoolExhausted | None = None
    while True:
        left = max(0, started + wait - now)
        block = min(left, period(consumer))
        here = Presence(consumer, block, stay, ticket, room)
        claimed = yield from claim(queue, count, lease, auto_ack=auto_ack, presence=here, finished=finished())
        lost, unknown = [*lost, *claimed.lost], [*unknown, *claimed.unknown]
        if deaf and not claimed.entries:
            raise deaf
        if claimed.entries or block == 0:
            return replace(claimed, lost=lost, unknown=unknown)
        due = None if claimed.due is None else max(1, claimed.due - claimed.now)
        heard = yield Listen(queue, block if due is None else min(block, due), left, due)
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
           run: Callable[[Sequence[Word]], Flow[Reply]]) -> Flow[Settled]:  # fmt: skip
    """Settle deliveries (sequence and token) in batches; or renew their leases."""
    settled = Settled(set(), set(), {})
    for start in range(0, len(deliveries), BATCH):
        batch = deliveries[start : start + BATCH]
        _, _, told, lost = yield from run([word for pair in batch for word in pair])
        settled.lost.update(lost)
        if isinstance(told, bytes):
            settled.tokens.update((sequence, told) for sequence, _ in batch)
        else:
            settled.unknown.update(told)
    return settled
