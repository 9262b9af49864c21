"""Flows about queues as a whole: declaring, changing, counting, looking, emptying, deleting."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from rqttl import codec, commands
from rqttl.commands import BATCH, Command, Known, Reply, Word
from rqttl.errors import InvalidInput, QueueInUse, QueueMismatch
from rqttl.flows.steps import SWEEPS, Enter, Flow, Look, fenced, plain, refused, sweep
from rqttl.keys import Keyspace
from rqttl.options import REASONS, QueueOptions
from rqttl.types import Peeked, QueueStats
from rqttl.units import as_datetime


def declare(keyspace: Keyspace, options: QueueOptions) -> Flow[None]:
    """Make a queue, or find it with the same options. The registry comes first, so that no queue is unlisted."""
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

    # what the changes must fit to is what is in force, not what this client last saw
    known: Known = yield Look(queue, fresh=True)
    yield from fenced(queue, build, known)
    yield Look(queue, fresh=True)
    yield from sweep(queue)


def purge(keyspace: Keyspace, queue: str) -> Flow[int]:
    """Remove the ready messages that are there now. What has expired before is not among them: it dies first."""
    yield from sweep(queue)
    upto: Word = ""
    purged: int = 0
    while True:
        _, _, n, more, upto = yield from plain(commands.purge(keyspace, queue, upto))
        purged += n
        if not more:
            return purged


def delete(keyspace: Keyspace, queue: str, *, if_unused: bool, if_empty: bool) -> Flow[int]:
    """Delete a queue and take it out of the registry. What has expired before dies first."""
    yield from sweep(queue)
    command = commands.delete(keyspace, queue, if_unused=if_unused, if_empty=if_empty)
    reply: Reply = yield command
    if reply[0] == b"ok":
        yield Enter(queue, gone=True)
        return int(reply[2])
    if reply[1] == b"in_use":
        raise QueueInUse(queue, reply[2].decode(), reply[3])
    raise refused(command, reply)


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
