"""Flows about messages: storing, taking out, settling."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import NamedTuple, cast
from zlib import crc32

from rqttl.errors import PoolExhausted, QueueFull
from rqttl.flows.steps import OUTDATED, Flow, GetConfig, Now, WaitForWakeup, pipeline, with_config
from rqttl.protocol import codec, commands
from rqttl.protocol.commands import (
    ABSENT,
    BATCH,
    BATCH_BYTES,
    READ_BYTES,
    Command,
    Ok,
    Presence,
    QueueConfig,
    Refused,
    Word,
)
from rqttl.protocol.envelope import NO_ENVELOPE, VALUE, Envelope
from rqttl.text import plain_text
from rqttl.types import Message, Receipt

#: The ms after which a blocked consumer looks at the queue again at the latest.
PERIOD = 240_000
#: The answer to `WaitForWakeup` after an interrupt: the flow must not wait again.
ENDED = b"ended"
#: The same if nobody waits for the messages any more: the flow takes no message.
ABANDONED = b"abandoned"
#: Calls that one round trip of `enqueue_many` carries at most.
WINDOW = 8

_SEQUENCE_BYTES = 20


def _batches(packed: Sequence[tuple[Envelope, bytes]]) -> Iterator[Sequence[tuple[Envelope, bytes]]]:
    start = size = 0
    for i, ((_, id, extras), body) in enumerate(packed):
        more = len(id) + len(extras) + len(body)
        if i > start and (i - start >= BATCH or size + more > BATCH_BYTES):
            yield packed[start:i]
            start, size = i, 0
        size += more
    if start < len(packed):
        yield packed[start:]


def enqueue_one(queue: str, message: Message | object) -> Flow[Receipt | QueueFull]:
    """Store one message."""
    config: QueueConfig = yield GetConfig(queue)
    envelope, body = (NO_ENVELOPE, message) if type(message) is bytes else commands.pack(message)
    if envelope.id:
        stored = yield from _store(config, len(body), commands.enqueue, ((envelope, body),))
    else:
        stored = yield from _store(config, len(body), commands.enqueue_alike, (body,), envelope)
    config, results = stored
    return _receipt(config, results[0], message)


def enqueue(queue: str, messages: Sequence[Message | object], window: int = 0) -> Flow[list[Receipt | QueueFull]]:
    """Store messages in order. The queue remembers their ids for `window` ms.

    If the queue has no limits and the call no window, several batches go in one round trip. Otherwise they go one after
    the other, because no batch may overtake one that is repeated.
    """
    config: QueueConfig = yield GetConfig(queue)
    kinds = set(map(type, messages))
    alike = _alike(messages, kinds)
    if alike is None:
        packed = [commands.pack(message) for message in messages]
        stored = yield from _in_batches(config, packed, window)
    else:
        envelope, bodies, largest = alike
        stored = [(yield from _store(config, largest, commands.enqueue_alike, bodies, envelope))]
    results = [result for _, batch in stored for result in batch]
    forever = all(config.retention is None for config, _ in stored)
    if forever and not _of(kinds, Message) and set(map(len, results)) == {_SEQUENCE_BYTES}:
        return list(map(Receipt, map(bytes.decode, results)))
    options = [config for config, batch in stored for _ in batch]
    return [_receipt(*arguments) for arguments in zip(options, results, messages, strict=True)]


def _alike(messages: Sequence[Message | object], kinds: set[type]) -> tuple[Envelope, Sequence[bytes], int] | None:
    """The common envelope of all messages, their bodies, and the size of the largest one.

    `None` unless all are bytes, or all are values of other types, and fit into one batch.
    """
    if len(messages) > BATCH:
        return None
    if kinds == {bytes}:
        envelope, bodies = NO_ENVELOPE, cast("Sequence[bytes]", messages)
    elif not kinds or _of(kinds, (Message, bytes, bytearray, memoryview)):
        return None
    else:
        envelope, bodies = VALUE, codec.pack_values(messages)
    sizes = list(map(len, bodies))
    return (envelope, bodies, max(sizes)) if sum(sizes) <= BATCH_BYTES else None


def _of(kinds: set[type], bases: type | tuple[type, ...]) -> bool:
    return any(issubclass(kind, bases) for kind in kinds)


#: The options that were in force when a call stored messages, and the result of each message.
_Stored = tuple[QueueConfig, Sequence[bytes]]


def _store(config: QueueConfig, largest: int, build: Callable[..., Command], *batch: object) -> Flow[_Stored]:
    """Store messages in one call, which `build` makes of the options in force and `batch`.

    The largest body has `largest` bytes.

    Raises `MessageTooLarge` according to the options in force. Options in the cache never suffice for it.
    """
    config = yield from _roomy(config, largest)

    def checked(newest: QueueConfig) -> Command:
        nonlocal config
        config = newest
        commands.check_size(config, largest)
        return build(config, *batch)

    values = yield from with_config(config.name, checked, config)
    return config, values.results


def _roomy(config: QueueConfig, largest: int) -> Flow[QueueConfig]:
    """A config that permits a body of `largest` bytes: this one, or the one in force now. Raises `MessageTooLarge`."""
    if largest > config.max_body:
        config = yield GetConfig(config.name, fresh=True)
        commands.check_size(config, largest)
    return config


def _in_batches(config: QueueConfig, packed: Sequence[tuple[Envelope, bytes]], window: int) -> Flow[list[_Stored]]:
    pieces = list(_batches(packed))
    sizes = [max(len(body) for _, body in piece) for piece in pieces]
    #: For each batch, the largest body in it and in all later ones, so a refusal comes before any of them is stored.
    largest = list(accumulate(reversed(sizes), max))[::-1]
    stored: list[_Stored] = []
    while len(stored) < len(pieces):
        start = len(stored)
        config = yield from _roomy(config, largest[start])
        alone = len(pieces) == 1 or config.limited or window
        batches = pieces[start : start + (1 if alone else WINDOW)]
        calls = [partial(commands.enqueue, packed=piece, window=window) for piece in batches]
        if alone:
            stored.append((yield from _store(config, largest[start], calls[0])))
        else:
            stored += yield from _in_one_round_trip(config, largest[start:], calls)
        config = stored[-1][0]
    return stored


def _in_one_round_trip(
    config: QueueConfig, largest: Sequence[int], calls: Sequence[Callable[[QueueConfig], Command]]
) -> Flow[list[_Stored]]:
    answers = yield from pipeline([call(config) for call in calls], OUTDATED)
    stored: list[_Stored] = []
    for answer, call, size in zip(answers, calls, largest, strict=False):
        if type(answer) is Refused:
            newest: QueueConfig = yield GetConfig(config.name, fresh=True)
            stored.append((yield from _store(newest, size, call)))
        else:
            stored.append((config, answer.results))
    return stored


def _receipt(config: QueueConfig, result: bytes, message: Message | object) -> Receipt | QueueFull:
    id = plain_text(message.id) if isinstance(message, Message) else None
    if result == b"=":
        return Receipt(id or "", duplicate=True)
    if len(result) == _SEQUENCE_BYTES and config.retention is None:
        return Receipt(result.decode() if id is None else id)
    if result[:1] == b"!":
        limit = result[1:].decode()
        return QueueFull(config.name, limit, config.options.number(limit) or 0)
    expired = result[:1] == b"~"
    place, _, own = result[expired:].partition(b" ")
    deadline = codec.deadline(config.retention, place, int(own) if own else None)
    return Receipt(place.decode() if id is None else id, deadline, expired=expired)


class ReceiveResult(NamedTuple):
    """The result of one receive: entries `(sequence, header, body)`, and one lease token for all of them.

    `lost` and `unknown` are sequences of deliveries that the call should settle; see `Settled`. `due` is the time of
    the next due work in ms. `more` is true if the call met expired messages only.
    """

    config: QueueConfig
    entries: Sequence[tuple[bytes, bytes, bytes]]
    token: bytes
    failures: dict[bytes, int]
    lost: Sequence[bytes]
    unknown: Sequence[bytes]
    now: int
    due: int | None
    more: bool


def receive_once(queue: str, count: int, lease: int | None, *, auto_ack: bool = False, presence: Presence = ABSENT,
          finished: Sequence[Word] = (), now: Word = "") -> Flow[ReceiveResult]:  # fmt: skip
    """Make one receive call. Repeat it at once while it meets expired messages only."""
    used: QueueConfig

    def build(config: QueueConfig) -> Command:
        nonlocal used
        used = config
        ms = config.lease if lease is None else lease
        return commands.receive(config, count, ms, auto_ack=auto_ack, presence=presence, finished=finished, now=now)

    lost: list[bytes] = []
    unknown: list[bytes] = []
    while True:
        values = yield from with_config(queue, build)
        lost += values.lost  # an empty list may come as an empty text
        unknown += values.unknown  # as above
        if values.messages or not values.more or not count:
            return _claimed(used, values, lost, unknown)
        finished = ()


def _claimed(config: QueueConfig, values: Ok, lost: Sequence[bytes], unknown: Sequence[bytes]) -> ReceiveResult:
    failures, due, words = values.failures, values.due, values.messages
    entries = list(zip(words[::3], words[1::3], words[2::3], strict=True))
    failed = dict(zip(failures[::2], map(int, failures[1::2]), strict=True)) if failures else {}
    return ReceiveResult(
        config, entries, values.token, failed, lost, unknown, values.now, int(due) if due else None,
        bool(values.more),
    )  # fmt: skip


def period(consumer: str) -> int:
    """The ms for which this consumer blocks at most: between half of `PERIOD` and all of it.

    The time differs between consumers, so consumers that began together do not keep calling Redis together.
    """
    return PERIOD - crc32(consumer.encode()) % (PERIOD // 2)


def receive(queue: str, count: int, lease: int | None, wait: int, *, auto_ack: bool, consumer: str, ttl: int = 0,
            room: int = 1, finished: Callable[[], Sequence[Word]] = tuple) -> Flow[ReceiveResult]:  # fmt: skip
    """Take up to `count` messages. Wait up to `wait` ms for the first one, and look at the queue after every time-out.

    Each look settles the deliveries that `finished()` returns as acked. A consumer that gets fewer messages than `room`
    counts as waiting, because it comes back at once.
    """
    if wait <= 0:
        own = Presence(consumer, 0, ttl) if consumer and ttl else ABSENT
        return (yield from receive_once(queue, count, lease, auto_ack=auto_ack, presence=own, finished=finished()))
    started: int = yield Now()
    ticket, now, longest = b"", started, period(consumer)
    lost: Sequence[bytes] = ()
    unknown: Sequence[bytes] = ()
    exhausted: PoolExhausted | None = None
    while True:
        left = max(0, started + wait - now)
        block = min(left, longest)
        own = Presence(consumer, block, ttl, ticket, room)
        claimed = yield from receive_once(queue, count, lease, auto_ack=auto_ack, presence=own, finished=finished())
        if lost or unknown:
            claimed = claimed._replace(lost=[*lost, *claimed.lost], unknown=[*unknown, *claimed.unknown])
        if exhausted and not claimed.entries:
            raise exhausted
        if claimed.entries or block == 0:
            return claimed
        lost, unknown = claimed.lost, claimed.unknown
        due = None if claimed.due is None else max(1, claimed.due - claimed.now)
        wakeup = yield WaitForWakeup(queue, block, left, due)
        exhausted = wakeup if isinstance(wakeup, PoolExhausted) else None
        ticket = wakeup if wakeup and not exhausted else b""
        if exhausted or ticket in (ENDED, ABANDONED):
            # one last look: it ends the presence among the waiters, and takes a message that was handed over meanwhile
            count = 0 if ticket == ABANDONED else count
            ticket, wait = b"", 0
        now = yield Now()


def receive_many(queue: str, count: int, lease: int | None, wait: int, *, auto_ack: bool,
                 consumer: str) -> Flow[list[ReceiveResult]]:  # fmt: skip
    """Take up to `count` messages in batches, waiting for the first message up to `wait` ms."""
    batches: list[ReceiveResult] = []
    while count:
        most = min(count, BATCH)
        batch = yield from receive(queue, most, lease, 0 if batches else wait, auto_ack=auto_ack, consumer=consumer)
        batches.append(batch)
        if len(batch.entries) < most:
            break
        count -= most
    return batches


def heartbeat(queue: str, presence: Presence, finished: Callable[[], Sequence[Word]]) -> Flow[ReceiveResult]:
    """Settle deliveries as acked and show that a consumer is present. Takes no message."""
    return (yield from receive_once(queue, 0, 1, presence=presence, finished=finished()))


@dataclass(frozen=True, slots=True)
class Settled:
    """The sequences that a settle failed for, and the new token of each renewed lease.

    `lost`: the lease had ended. `unknown`: the reply to an earlier try was lost, the lease has ended since, and the
    message does not exist any more. The earlier try may have settled it.
    """

    lost: set[bytes]
    unknown: set[bytes]
    tokens: dict[bytes, bytes]


def settle(deliveries: Sequence[tuple[bytes, bytes]],
           run: Callable[[Sequence[Word]], Flow[Ok]], sizes: Sequence[int] = ()) -> Flow[Settled]:  # fmt: skip
    """Settle deliveries (sequence and token) in batches.

    `sizes` has the bytes of each message, for a script that reads messages. They bound the batches, too.
    """
    settled = Settled(set(), set(), {})
    for batch in _cut(deliveries, sizes):
        values = yield from run([word for pair in batch for word in pair])
        settled.lost.update(values.lost)
        settled.unknown.update(values.unknown)
    return settled


def renew(deliveries: Sequence[tuple[bytes, bytes]], run: Callable[[Sequence[Word]], Flow[Ok]]) -> Flow[Settled]:
    """Renew the leases of deliveries (sequence and token) in batches."""
    renewed = Settled(set(), set(), {})
    for batch in _cut(deliveries, ()):
        values = yield from run([word for pair in batch for word in pair])
        renewed.lost.update(values.lost)
        renewed.tokens.update((sequence, values.token) for sequence, _ in batch)
    return renewed


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
