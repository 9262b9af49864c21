"""Operations of more than one step, as generators: they yield what is to be done and get its result sent back.

No I/O here. A shell performs the steps; every flow can be tested by sending answers into it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, TypeVar

from rqttl import codec, commands
from rqttl.commands import ABSENT, BATCH, BATCH_BYTES, Command, Known, Presence, Reply, Word
from rqttl.errors import ContractError, InvalidInput, QueueFull, QueueInUse, QueueMismatch, QueueNotFound
from rqttl.keys import Keyspace
from rqttl.options import REASONS, QueueOptions
from rqttl.types import Message, Peeked, QueueStats, Receipt, Swept
from rqttl.units import as_datetime

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Look:
    """Step: what is known of a queue, from the cache unless `fresh`; the answer is `Known`."""

    queue: str
    fresh: bool = False


@dataclass(frozen=True, slots=True)
class Together:
    """Step: several commands in one round trip; the answer is the list of replies."""

    commands: Sequence[Command]


@dataclass(frozen=True, slots=True)
class Enter:
    """Step: enter a queue into the registry, or take it out."""

    queue: str
    gone: bool = False


@dataclass(frozen=True, slots=True)
class Listen:
    """Step: wait for the bell of a queue, at most `ms`; the answer is what it gave, or `None`."""

    queue: str
    ms: int


@dataclass(frozen=True, slots=True)
class Clock:
    """Step: the answer is a clock of this process that never goes back, in ms."""


Step = Command | Look | Together | Enter | Listen | Clock
Flow = Generator[Step, Any, T]

#: The longest that a consumer blocks before it looks at the queue again.
PERIOD = 5_000
#: How many bounded steps a sweep before a statistic may take.
SWEEPS = 50


def refused(command: Command, reply: Reply) -> Exception:
    """The error for a refusal that the flow has no better answer to."""
    code = reply[1].decode()
    if code == "not_found":
        return QueueNotFound(command.queue)
    return ContractError(f"script {command.script.name}: unexpected refusal {code!r}")


def plain(command: Command) -> Flow[Reply]:
    """Run a command that no option can make stale."""
    reply: Reply = yield command
    if reply[0] == b"ok":
        return reply
    raise refused(command, reply)


def fenced(queue: str, build: Callable[[Known], Command]) -> Flow[Reply]:
    """Run a command with what is known of the queue; ask anew whenever the script says that this is outdated."""
    known: Known = yield Look(queue)
    while True:
        command = build(known)
        reply: Reply = yield command
        if reply[0] == b"ok":
            if reply[1]:
                yield from follow(reply[1])
            return reply
        if reply[1] in (b"stale", b"not_found"):
            # a queue that was deleted and declared again is `not_found` for nobody: Look raises if it is gone
            known = yield Look(queue, fresh=True)
        elif reply[1] != b"again":
            raise refused(command, reply)


def follow(notes: Sequence[bytes]) -> Flow[None]:
    """Do what a script asks for other queues: enter those it created, sweep those whose limit must act now."""
    for what, name in zip(notes[::2], notes[1::2], strict=True):
        if what == b"created":
            yield Enter(name.decode())
        elif what == b"sweep":
            yield from sweep(name.decode(), rounds=SWEEPS)


# Queues


def declare(keyspace: Keyspace, options: QueueOptions) -> Flow[None]:
    """Make a queue, or find it with the same options. It is entered into the registry first, so that none is unlisted."""
    queue = options.queue
    yield Enter(queue)
    command = commands.declare(keyspace, options)
    reply: Reply = yield command
    if reply[0] != b"ok":
        if reply[1] != b"mismatch":
            raise refused(command, reply)
        in_force = QueueOptions.from_json(queue, reply[3])
        raise QueueMismatch(queue, options.differences(in_force))
    yield Look(queue, fresh=True)


def update(queue: str, changes: dict[str, object]) -> Flow[None]:
    """Change options, and let them act on what is there."""

    def build(known: Known) -> Command:
        return commands.update(known, known.options.changed(changes))

    yield from fenced(queue, build)
    yield Look(queue, fresh=True)
    yield from sweep(queue)


def purge(keyspace: Keyspace, queue: str) -> Flow[int]:
    """Remove the ready messages that are there now."""
    upto: Word = ""
    purged = 0
    while True:
        _, _, n, more, upto = yield from plain(commands.purge(keyspace, queue, upto))
        purged += n
        if not more:
            return purged


def delete(keyspace: Keyspace, queue: str, *, if_unused: bool, if_empty: bool) -> Flow[int]:
    """Delete a queue and take it out of the registry."""
    command = commands.delete(keyspace, queue, if_unused=if_unused, if_empty=if_empty)
    reply: Reply = yield command
    if reply[0] == b"ok":
        yield Enter(queue, gone=True)
        return int(reply[2])
    if reply[1] == b"in_use":
        raise QueueInUse(queue, reply[2].decode(), reply[3])
    raise refused(command, reply)


def sweep(queue: str, *, rounds: int | None = None, now: Word = "") -> Flow[list[Swept]]:
    """Sweep in bounded steps until nothing is due, or `rounds` times."""
    done: list[Swept] = []
    while rounds is None or len(done) < rounds:
        _, _, at, due, more, *counts = yield from fenced(queue, lambda known: commands.sweep(known, now=now))
        done.append(Swept(at, int(due) if due else None, bool(more), *counts))
        if not more:
            break
    return done


def stats(queue: str, *, now: Word = "") -> Flow[QueueStats]:
    """What a queue holds, after a sweep."""
    for _ in range(SWEEPS):
        reply = yield from fenced(queue, lambda known: commands.stats(known, now=now))
        if not reply[2]:
            break
    _, _, _, ready, size, leased, delayed, oldest, consumers, record = reply
    fields = dict(zip(record[::2], record[1::2], strict=True))

    def counter(name: str) -> int:
        return int(fields.get(name.encode(), 0))

    return QueueStats(
        ready=ready,
        ready_bytes=size if isinstance(size, int) else int(size),
        leased=leased,
        delayed=delayed,
        scheduled=0,
        oldest_ready_age=timedelta(milliseconds=max(0, oldest)) if isinstance(oldest, int) else None,
        consumers=consumers,
        **{name: counter(name) for name in ("enqueued", "delivered", "redelivered", "acked", "refused", "purged")},
        deaths={reason: counter(f"deaths:{reason}") for reason in REASONS},
        dropped={reason: counter(f"dropped:{reason}") for reason in (*REASONS, "cycle")},
    )


# Enqueue


def _batches(packed: Sequence[tuple[bytes, bytes]]) -> Iterator[Sequence[tuple[bytes, bytes]]]:
    start = size = 0
    for i, (said, body) in enumerate(packed):
        if i > start and (i - start >= BATCH or size + len(said) + len(body) > BATCH_BYTES):
            yield packed[start:i]
            start, size = i, 0
        size += len(said) + len(body)
    if start < len(packed):
        yield packed[start:]


def enqueue(queue: str, messages: Sequence[Message | object]) -> Flow[list[Receipt | QueueFull]]:
    """Store messages in order. Without limits all batches go in one round trip; with limits one after the other,
    because a batch that has to be repeated must not be overtaken.
    """
    known: Known = yield Look(queue)
    packed = [commands.pack(message, known.options) for message in messages]
    replies: list[Reply] = []
    pieces = list(_batches(packed))
    if len(pieces) == 1 or known.options.max_length is not None or known.options.max_length_bytes is not None:
        for piece in pieces:
            replies.append((yield from fenced(queue, lambda known, piece=piece: commands.enqueue(known, piece))))
    else:
        for start in range(0, len(pieces), 8):
            replies += yield from _together(queue, known, pieces[start : start + 8])
    results = [result for reply in replies for result in reply[2]]
    known = yield Look(queue)
    return [_receipt(known, result, message) for result, message in zip(results, messages, strict=True)]


def _together(queue: str, known: Known, pieces: Sequence[Sequence[tuple[bytes, bytes]]]) -> Flow[list[Reply]]:
    replies: list[Reply] = yield Together([commands.enqueue(known, piece) for piece in pieces])
    done: list[Reply] = []
    for piece, reply in zip(pieces, replies, strict=True):
        if reply[0] == b"ok":
            if reply[1]:
                yield from follow(reply[1])
            done.append(reply)
        else:
            done.append((yield from fenced(queue, lambda known, piece=piece: commands.enqueue(known, piece))))
    return done


def _receipt(known: Known, result: bytes, message: Message | object) -> Receipt | QueueFull:
    if result[:1] == b"!":
        limit = result[1:].decode()
        value: Any = known.options[limit]
        return QueueFull(known.name, limit, value)
    sequence, _, own = result.partition(b" ")
    id = message.id if type(message) is Message and message.id is not None else sequence.decode()
    if not own and known.options.message_ttl is None:
        return Receipt(id)
    return Receipt(id, codec.deadline(known.options.message_ttl, sequence, int(own) if own else None))  # type: ignore[arg-type]  # a duration


# Receive and settle


@dataclass(frozen=True, slots=True)
class Claimed:
    """What one receive gave: entries `(sequence, (header, body))`, one lease token for all, and what is next."""

    known: Known
    entries: Sequence[Any]
    token: bytes
    failures: dict[bytes, int]
    lost: Sequence[bytes]
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
        ms: Any = known.options.lease if lease is None else lease
        return commands.receive(known, count, ms, auto_ack=auto_ack, presence=presence, finished=finished, now=now)

    lost: list[bytes] = []
    while True:
        _, _, at, due, more, token, missed, entries, failures = yield from fenced(queue, build)
        lost += missed
        if entries or not more or not count:
            failed = dict(zip(failures[::2], map(int, failures[1::2]), strict=True)) if failures else {}
            return Claimed(used, entries, token, failed, lost, at, int(due) if due else None, bool(more))
        finished = ()


def receive(queue: str, count: int, lease: int | None, wait: int, *, auto_ack: bool, consumer: str, stay: int = 0,
            finished: Callable[[], Sequence[Word]] = tuple) -> Flow[Claimed]:  # fmt: skip
    """Take up to `count` messages, waiting for the first one up to `wait` ms. Every time-out looks at the queue again.

    `finished` is asked before every look for deliveries to finish with it.
    """
    if wait <= 0:
        here = Presence(consumer, 0, stay) if consumer and stay else ABSENT
        return (yield from claim(queue, count, lease, auto_ack=auto_ack, presence=here, finished=finished()))
    started: int = yield Clock()
    ticket, now = b"", started
    lost: list[bytes] = []
    while True:
        block = max(0, min(started + wait - now, PERIOD))
        here = Presence(consumer, block, stay, ticket)
        claimed = yield from claim(queue, count, lease, auto_ack=auto_ack, presence=here, finished=finished())
        lost += claimed.lost
        if claimed.entries or block == 0:
            return replace(claimed, lost=lost)
        if claimed.due is not None:
            block = min(block, max(1, claimed.due - claimed.now))
        ticket = (yield Listen(queue, block)) or b""
        now = yield Clock()


def receive_nothing(queue: str, presence: Presence, finished: Callable[[], Sequence[Word]]) -> Flow[Claimed]:
    """Finish deliveries and show that a consumer lives, without taking anything."""
    return (yield from claim(queue, 0, 1, presence=presence, finished=finished()))


def settle(deliveries: Sequence[tuple[bytes, bytes]],
           run: Callable[[Sequence[Word]], Flow[Reply]]) -> Flow[tuple[list[bytes], list[Reply]]]:  # fmt: skip
    """Settle deliveries (sequence and token) in batches. Returns the sequences that were lost, and the replies."""
    lost: list[bytes] = []
    replies: list[Reply] = []
    for start in range(0, len(deliveries), BATCH):
        words: list[Word] = [word for pair in deliveries[start : start + BATCH] for word in pair]
        reply = yield from run(words)
        lost += reply[-1]
        replies.append(reply)
    return lost, replies


def known_options(keyspace: Keyspace, queue: str) -> Flow[Known]:
    """Ask Redis what is in force."""
    _, _, version, given = yield from plain(commands.lookup(keyspace, queue))
    return Known(keyspace, queue, version, QueueOptions.from_json(queue, given))


def peek(keyspace: Keyspace, queue: str, limit: int, after: str | None) -> Flow[list[Peeked]]:
    """Look at messages, in pages that a script can carry."""
    if after is not None and not codec.is_sequence(after):
        raise InvalidInput(f"after: expected the sequence of a message, got {str(after)[:80]!r}")
    seen: list[Peeked] = []
    place = after or ""
    while len(seen) < limit:
        most = min(limit - len(seen), BATCH)
        command = commands.peek(keyspace, queue, after=place, limit=most)
        _, _, now, retention, entries, facts = yield from plain(command)
        kept = int(retention) if retention else None
        for i, entry in enumerate(entries):
            one = _peeked(queue, kept, entry, facts[3 * i : 3 * i + 3])
            if one.state != "ready" or one.expires_at is None or one.expires_at > as_datetime(now):
                seen.append(one)
        if not entries:
            break
        place = entries[-1][0].decode()
    return seen


def _peeked(queue: str, retention: int | None, entry: Any, facts: Sequence[bytes]) -> Peeked:
    sequence, (header, body) = entry
    state, until, failed = facts
    read = codec.unpack_header(header)
    return Peeked(
        id=read.id or sequence.decode(),
        sequence=sequence.decode(),
        queue=queue,
        state=state.decode(),  # type: ignore[arg-type]  # the script says one of the three words
        until=as_datetime(int(until)) if until else None,
        body=body,
        headers=read.headers,
        content_type=read.content_type,
        enqueued_at=as_datetime(codec.enqueued_at(sequence)),
        expires_at=codec.deadline(retention, sequence, read.deadline),
        delivery_count=int(failed) + (state == b"leased"),
        deaths=read.deaths,
    )
