"""Flows about one queue as a whole: declaring, changing, looking, emptying, deleting."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rqttl import checks
from rqttl.errors import QueueInUse, QueueMismatch, QueueNotFound, RegistryDamaged
from rqttl.flows.steps import (
    EXPIRED,
    NOT_THERE,
    Flow,
    GetConfig,
    Read,
    Register,
    Unregister,
    dispatch,
    existing,
    retire,
    run,
    sweep,
    with_config,
)
from rqttl.options import QueueOptions, UpdateResult, written
from rqttl.protocol import codec, commands
from rqttl.protocol.commands import BATCH, Command, QueueConfig, Refused, Walk, Word
from rqttl.protocol.keys import Keyspace
from rqttl.types import Declared, MessageView
from rqttl.units import as_datetime

#: The answers of declare.lua.
DECLARED: tuple[Declared, ...] = ("existing", "created", "adopted")


def declare(keyspace: Keyspace, options: QueueOptions) -> Flow[Declared]:
    """Create a queue, adopt it, or find it with the same options.

    The flow adds the name to the registry first, so every queue is listed. It writes nothing there for a listed queue:
    Redis without free memory would refuse the write.
    """
    queue = options.queue
    yield from _listed(keyspace, queue)
    command = commands.declare(keyspace, options)
    while True:
        answer = yield from dispatch(command, ("mismatch", *EXPIRED))
        if type(answer) is not Refused:
            break
        in_force = _config(keyspace, queue, *answer.details)
        if answer.code == "mismatch":
            raise _mismatch(options, in_force.options)
        yield from retire(in_force)
        yield from _listed(keyspace, queue)  # `retire` removed it
    if answer.made:
        # another client may have removed the name since, after the end of an older queue of this name
        yield from _listed(keyspace, queue)
    # the config comes from the call, not from a new look: the lifetime of the declared queue may be over by now
    yield GetConfig(queue, newest=QueueConfig(keyspace, queue, answer.version, options))
    made: int = answer.made
    return DECLARED[made]


def _mismatch(asked: QueueOptions, in_force: QueueOptions) -> QueueMismatch:
    differences = asked.differences(in_force)
    texts = {name: (written(name, ours), written(name, theirs)) for name, (ours, theirs) in differences.items()}
    return QueueMismatch(asked.queue, differences, texts)


def _listed(keyspace: Keyspace, queue: str) -> Flow[None]:
    (listed,) = yield Read([("SISMEMBER", keyspace.registry, queue)])
    if isinstance(listed, Exception):
        raise RegistryDamaged(keyspace.registry)
    if not listed:
        yield Register(queue)


def touch(keyspace: Keyspace, queue: str) -> Flow[None]:
    """Restart the lifetime of a queue."""
    yield from existing(queue, commands.touch(keyspace, queue))


def update(queue: str, changes: Mapping[str, object]) -> Flow[UpdateResult]:
    """Change options. They act on the present messages; the result counts the messages that die by the change."""
    first = yield from _fresh(queue, changes)
    keyspace, before, after = first.keyspace, first.options, first.options

    def build(config: QueueConfig) -> Command:
        nonlocal before, after
        before, after = config.options, config.options.changed(changes)
        return commands.update(config, after)

    # Messages that are due under the old options die before the change, so the result does not count them.
    yield from sweep(queue)
    yield from with_config(queue, build)
    config = yield from config_if_exists(keyspace, queue)
    if config is None:
        return UpdateResult(before, after, 0, 0)  # its lifetime was over at once
    yield GetConfig(queue, newest=config)
    swept = yield from sweep(queue)
    return UpdateResult(before, after, sum(step.expired for step in swept), sum(step.trimmed for step in swept))


def preview(queue: str, changes: Mapping[str, object], *, now: Word = "") -> Flow[UpdateResult]:
    """Count the messages that `update` would let die. Sweeps the queue first, as `update` does."""
    yield from _fresh(queue, changes)
    yield from sweep(queue, now=now)
    before = after = (yield GetConfig(queue)).options
    walk = Walk()

    def build(config: QueueConfig) -> Command:
        nonlocal before, after
        before, after = config.options, config.options.changed(changes)
        return commands.preview(config, after, walk, now=now)

    while True:
        values = yield from with_config(queue, build)
        if not values.more:
            return UpdateResult(before, after, int(values.expired), int(values.trimmed))
        walk = Walk(*[getattr(values, name) for name in Walk._fields])


def _fresh(queue: str, changes: Mapping[str, object]) -> Flow[QueueConfig]:
    """Read the options in force, past the cache. Raises `InvalidOption` if the changes do not fit to them."""
    config: QueueConfig = yield GetConfig(queue, fresh=True)
    config.options.changed(changes)
    return config


def purge(keyspace: Keyspace, queue: str) -> Flow[int]:
    """Remove the present ready messages. Expired messages die first and do not count."""
    yield from sweep(queue)
    upto: Word = ""
    purged: int = 0
    while True:
        values = yield from run(commands.purge(keyspace, queue, upto))
        purged, upto = purged + values.purged, values.upto
        if not values.more:
            return purged


def purge_many(keyspace: Keyspace, queue: str, sequences: Iterable[str]) -> Flow[int]:
    """Remove the ready ones among these messages. Expired messages die first and do not count."""
    ids = sorted(_checked(sequences))
    yield from sweep(queue)
    purged = done = 0
    while done < len(ids):
        page = ids[done : done + BATCH]
        values = yield from run(commands.purge(keyspace, queue, "", page))
        purged += values.purged
        done += page.index(values.upto.decode()) + 1
    return purged


def _checked(sequences: Iterable[str]) -> set[str]:
    items = checks.items(sequences, "sequences", "sequences of messages")
    return {codec.check_sequence(sequence, "sequences") for sequence in items}


def delete(keyspace: Keyspace, queue: str, *, if_unused: bool, if_empty: bool) -> Flow[int]:
    """Delete a queue and remove its name from the registry. Expired messages die first."""
    yield from sweep(queue)
    command = commands.delete(keyspace, queue, if_unused=if_unused, if_empty=if_empty)
    answer = yield from dispatch(command, ("in_use",))
    if type(answer) is Refused:
        condition, count = answer.details
        raise QueueInUse(queue, condition.decode(), count)
    yield Unregister(queue)
    return int(answer.removed)


def config_of(keyspace: Keyspace, queue: str) -> Flow[QueueConfig]:
    """Read the config in force. A queue at the end of its lifetime is deleted first, as by a reaper."""
    config = yield from config_if_exists(keyspace, queue)
    if config is None:
        raise QueueNotFound(queue)
    return config


def config_if_exists(keyspace: Keyspace, queue: str) -> Flow[QueueConfig | None]:
    """`config_of` that returns `None` for a missing queue."""
    command = commands.lookup(keyspace, queue)
    while True:
        answer = yield from dispatch(command, NOT_THERE)
        if type(answer) is not Refused:
            return _config(keyspace, queue, answer.version, answer.options)
        if answer.code == "not_found":
            return None
        yield from retire(_config(keyspace, queue, *answer.details))


def _config(keyspace: Keyspace, queue: str, version: bytes, options: bytes) -> QueueConfig:
    return QueueConfig(keyspace, queue, version, QueueOptions.from_json(queue, options))


def peek(keyspace: Keyspace, queue: str, limit: int, after: str | None) -> Flow[list[MessageView]]:
    """Read messages, in pages of bounded size."""
    place = "" if after is None else codec.check_sequence(after, "after")
    seen: list[MessageView] = []
    while len(seen) < limit:
        most = min(limit - len(seen), BATCH)
        command = commands.peek(keyspace, queue, after=place, limit=most)
        page = yield from existing(queue, command)
        retention = int(page.retention) if page.retention else None
        for i, entry in enumerate(page.entries):
            view = _peeked(queue, retention, entry, page.details[3 * i : 3 * i + 3])
            if view.state == "leased" or view.expires_at is None or view.expires_at > as_datetime(page.now):
                seen.append(view)
        if not page.entries:
            break
        place = page.entries[-1][0].decode()
    return seen


def _peeked(queue: str, retention: int | None, entry: Any, state_fields: Sequence[bytes]) -> MessageView:
    sequence, (header, body) = entry
    state, until, failures = state_fields
    marks, _, description = failures.partition(b" ")
    failed, _, away = marks.partition(b"@")
    if state == b"delayed" and away:
        until = away  # `delayed` has the end of the retention as its score
    read = codec.unpack_header(header)
    return MessageView(
        id=read.id or sequence.decode(),
        sequence=sequence.decode(),
        queue=queue,
        state=state.decode(),  # type: ignore[arg-type]  # `ready`, or a name of the table `STATES`
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
