"""Flows about one queue as a whole: declaring, changing, looking, emptying, deleting."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rqttl import checks
from rqttl.errors import QueueInUse, QueueMismatch, QueueNotFound, RegistryDamaged
from rqttl.flows.steps import Enter, Flow, Look, Read, fenced, living, plain, refused, retire, sweep
from rqttl.options import QueueOptions, UpdateResult, written
from rqttl.protocol import codec, commands
from rqttl.protocol.commands import BATCH, Command, Known, Reply, Word
from rqttl.protocol.keys import Keyspace
from rqttl.types import Declared, MessageView
from rqttl.units import as_datetime

#: The answers of declare.lua.
DECLARED: tuple[Declared, ...] = ("existing", "created", "adopted")


def declare(keyspace: Keyspace, options: QueueOptions) -> Flow[Declared]:
    """Make a queue, adopt it, or find it with the same options.

    The registry comes first, so that no queue is unlisted. A queue that is listed costs no write there: such a write
    would be refused while Redis has no memory left.
    """
    queue = options.queue
    yield from _listed(keyspace, queue)
    command = commands.declare(keyspace, options)
    while True:
        reply: Reply = yield command
        if reply[0] == b"ok":
            break
        if reply[1] == b"queue_expired":
            yield from retire(_known(keyspace, queue, reply))
            yield from _listed(keyspace, queue)  # `retire` took it out
        elif reply[1] == b"mismatch":
            in_force = QueueOptions.from_json(queue, reply[3])
            differences = options.differences(in_force)
            raise QueueMismatch(
                queue,
                differences,
                {name: (written(name, ours), written(name, theirs)) for name, (ours, theirs) in differences.items()},
            )
        else:
            raise refused(command, reply)
    if reply[2]:
        # whoever ended a queue of this name may have taken it out since, having looked before this one was made
        yield from _listed(keyspace, queue)
    # without a look at the queue, which may be over by now: the caller has declared it all the same
    yield Look(queue, newest=Known(keyspace, queue, reply[3], options))
    return DECLARED[reply[2]]


def _listed(keyspace: Keyspace, queue: str) -> Flow[None]:
    (listed,) = yield Read([("SISMEMBER", keyspace.registry, queue)])
    if isinstance(listed, Exception):
        raise RegistryDamaged(keyspace.registry)
    if not listed:
        yield Enter(queue)


def touch(keyspace: Keyspace, queue: str) -> Flow[None]:
    """Let the lifetime of a queue begin anew."""
    yield from living(queue, commands.touch(keyspace, queue))


def update(queue: str, changes: Mapping[str, object]) -> Flow[UpdateResult]:
    """Change options, let them act on the messages that are there, and count those that die by it."""
    first = yield from _fresh(queue, changes)
    keyspace, before, after = first.keyspace, first.options, first.options

    def build(known: Known) -> Command:
        nonlocal before, after
        before, after = known.options, known.options.changed(changes)
        return commands.update(known, after)

    # Messages that are due under the options in force die before the change, and are not counted as its effect.
    yield from sweep(queue)
    yield from fenced(queue, build)
    known = yield from known_if_there(keyspace, queue)
    if known is None:
        return UpdateResult(before, after, 0, 0)  # its lifetime was over at once
    yield Look(queue, newest=known)
    swept = yield from sweep(queue)
    return UpdateResult(before, after, sum(one.expired for one in swept), sum(one.trimmed for one in swept))


def preview(queue: str, changes: Mapping[str, object], *, now: Word = "") -> Flow[UpdateResult]:
    """Count the messages that `update` would let die; the queue is swept first, as it is there."""
    yield from _fresh(queue, changes)
    yield from sweep(queue, now=now)
    before = after = (yield Look(queue)).options
    walked: Sequence[Word] = (0, "", 0, 0, 0)

    def build(known: Known) -> Command:
        nonlocal before, after
        before, after = known.options, known.options.changed(changes)
        return commands.preview(known, after, walked, now=now)

    while True:
        _, _, more, *walked = yield from fenced(queue, build)
        if not more:
            expired, trimmed = walked[2:4]
            return UpdateResult(before, after, int(expired), int(trimmed))


def _fresh(queue: str, changes: Mapping[str, object]) -> Flow[Known]:
    """The options in force, not those that this client last saw. Raises where the changes do not fit to them."""
    known: Known = yield Look(queue, fresh=True)
    known.options.changed(changes)
    return known


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


def purge_many(keyspace: Keyspace, queue: str, sequences: Iterable[str]) -> Flow[int]:
    """Remove those of these messages that are ready. What has expired before is not among them: it dies first."""
    ids = sorted(_checked(sequences))
    yield from sweep(queue)
    purged = done = 0
    while done < len(ids):
        some = ids[done : done + BATCH]
        _, _, n, _, upto = yield from plain(commands.purge(keyspace, queue, "", some))
        purged += n
        done += some.index(upto.decode()) + 1
    return purged


def _checked(sequences: Iterable[str]) -> set[str]:
    given = checks.items(sequences, "sequences", "sequences of messages")
    return {codec.check_sequence(one, "sequences") for one in given}


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


def known_options(keyspace: Keyspace, queue: str) -> Flow[Known]:
    """Ask Redis what is in force. A queue whose lifetime is over is deleted first, as if a reaper had been in time."""
    known = yield from known_if_there(keyspace, queue)
    if known is None:
        raise QueueNotFound(queue)
    return known


def known_if_there(keyspace: Keyspace, queue: str) -> Flow[Known | None]:
    """The same, without an error where there is no such queue."""
    command = commands.lookup(keyspace, queue)
    while True:
        reply: Reply = yield command
        if reply[0] == b"ok":
            return _known(keyspace, queue, reply)
        if reply[1] == b"not_found":
            return None
        if reply[1] != b"queue_expired":
            raise refused(command, reply)
        yield from retire(_known(keyspace, queue, reply))


def _known(keyspace: Keyspace, queue: str, reply: Reply) -> Known:
    """What `lookup` says, also in its refusal of a queue whose lifetime is over."""
    _, _, version, given = reply
    return Known(keyspace, queue, version, QueueOptions.from_json(queue, given))


def peek(keyspace: Keyspace, queue: str, limit: int, after: str | None) -> Flow[list[MessageView]]:
    """Look at messages, in pages that a script can carry."""
    place = "" if after is None else codec.check_sequence(after, "after")
    seen: list[MessageView] = []
    while len(seen) < limit:
        most = min(limit - len(seen), BATCH)
        command = commands.peek(keyspace, queue, after=place, limit=most)
        _, _, now, retention, entries, facts = yield from living(queue, command)
        kept = int(retention) if retention else None
        for i, entry in enumerate(entries):
            one = _peeked(queue, kept, entry, facts[3 * i : 3 * i + 3])
            if one.state == "leased" or one.expires_at is None or one.expires_at > as_datetime(now):
                seen.append(one)
        if not entries:
            break
        place = entries[-1][0].decode()
    return seen


def _peeked(queue: str, retention: int | None, entry: Any, facts: Sequence[bytes]) -> MessageView:
    sequence, (header, body) = entry
    state, until, failures = facts
    told, _, description = failures.partition(b" ")
    failed, _, away = told.partition(b"@")
    if state == b"delayed" and away:
        until = away  # in `delayed` it stands with the end of its retention
    read = codec.unpack_header(header)
    return MessageView(
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
        description=description.decode(errors="replace") or None,
    )
