"""Flows about messages in a queue: storing, looking at, and removing them, and putting dead letters back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate, groupby
from math import inf
from typing import Any, TypeVar, cast, get_args

from rqttl import checks, units
from rqttl import events as hook
from rqttl.checks import check_queue_name, is_scheduled
from rqttl.errors import InvalidInput, NotReplicated, QueueFull
from rqttl.events import Events, Observer
from rqttl.flows import moving
from rqttl.flows.steps import (
    OUTDATED,
    Flow,
    GetConfig,
    Publish,
    Read,
    Sender,
    answer_of,
    dispatch,
    existing,
    pipeline,
    run,
    with_config,
)
from rqttl.flows.sweeping import config_if_exists, sweep
from rqttl.options import REASONS
from rqttl.policies.explanation import resolve_ttl
from rqttl.protocol import codec, commands
from rqttl.protocol.codec import NO_ENVELOPE, VALUE, Envelope
from rqttl.protocol.commands import BATCH, BATCH_BYTES, READ_BYTES, Command, Ok, QueueConfig, Refused, Reply
from rqttl.protocol.keys import META, SCHEDULED, SCHEDULED_IDS, SCHEDULED_MORE, UPCOMING, Keyspace
from rqttl.text import format_value, plain_text
from rqttl.types import Duration, Header, Instant, Message, MessageView, Outcome, Purged, Receipt, RedriveResult, State
from rqttl.units import as_datetime

#: Calls that one round trip of `enqueue_many` carries at most.
WINDOW = 8

_SEQUENCE_BYTES = 20

T = TypeVar("T")


def send(  # noqa: PLR0913, PLR0917  # each call comes here: a tuple of the fields would cost it 4 % more
    sender: Sender,
    queue: str,
    body: Message | object,
    ttl: Duration | None,
    expires_at: Instant | None,
    headers: Mapping[str, Header] | None,
    id: str | None,
    content_type: str | None,
    delay: Duration | None,
    deliver_at: Instant | None,
    subject: str | None,
) -> Flow[Receipt]:
    """See `Queue.enqueue`."""
    if (
        ttl is None
        and expires_at is None
        and headers is None
        and id is None
        and content_type is None
        and delay is None
        and deliver_at is None
        and subject is None
    ):
        message: object = body
    elif isinstance(body, Message):
        raise InvalidInput("body: a Message has all fields itself; give no further arguments with it")
    else:
        message = Message(body, ttl, expires_at, headers, id, content_type, delay, deliver_at, subject)
    if sender.events.observer is not None:
        return _observed_one(sender.events.observer, queue, message)
    return enqueue_one(queue, message, sender.configs.get(queue))


def send_many(
    events: Events, queue: str, sent: Sequence[Message | object], duplicate_window: Duration | None
) -> Flow[list[Receipt | QueueFull]]:
    """See `Queue.enqueue_many`."""
    if isinstance(sent, Mapping):
        raise InvalidInput(f"messages: expected a sequence of messages, got {format_value(sent)}")
    items = checks.items(sent, "messages", "a sequence of messages")
    window = 0 if duplicate_window is None else int(units.duration(duplicate_window, "duplicate_window", least=1))
    if events.observer is not None and items:
        return _observed(events.observer, queue, items, window)
    return enqueue(queue, items, window)


def _observed_one(observer: Observer, queue: str, message: object) -> Flow[Receipt]:
    return _stored((yield from _observed(observer, queue, [message], 0))[0])


def _stored(result: Receipt | QueueFull) -> Receipt:
    if isinstance(result, QueueFull):
        raise result
    return result


def _observed(observer: Observer, queue: str, items: Sequence[object], window: int) -> Flow[list[Receipt | QueueFull]]:
    with hook.watching(observer, hook.Operation("enqueue", queue, items)) as sent:
        sent.results = results = yield from enqueue(queue, sent.messages, window)
    return results


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


def enqueue_one(queue: str, message: Message | object, config: QueueConfig | None = None) -> Flow[Receipt]:
    """Store one message. `config` has the options in the cache of the driver, if they are there."""
    if type(message) is bytes:
        envelope, body = NO_ENVELOPE, message
    elif not isinstance(message, Message):
        envelope, body = commands.pack_value(message)
    elif message.delay is None and message.deliver_at is None:
        envelope, body = commands.pack(message)
    else:
        return _stored((yield from enqueue(queue, [message]))[0])
    if config is None:
        config = yield GetConfig(queue)
    if config.passes_on:
        return _stored((yield Publish(config, [message]))[0])
    if len(body) > config.max_body:
        config = yield from roomy(config, len(body))
    id, build = "", cast("Callable[..., Command]", commands.enqueue_alike)
    batch: tuple[object, ...] = (body,), envelope
    if envelope.id:
        id, build, batch = envelope.id.decode(), commands.enqueue, (((envelope, body),),)
    command = build(config, *batch)
    reply: Reply = yield command
    answer = answer_of(command, reply)
    if type(answer) is not Refused and not answer.notes:
        return _stored(receipt(config, answer.results[0], id))
    stored = yield from _store(config, len(body), build, *batch, reply=reply)
    return _stored(confirmed([stored], [receipt(stored[0], stored[1][0], id)])[0])


def enqueue(queue: str, messages: Sequence[Message | object], window: int = 0) -> Flow[list[Receipt | QueueFull]]:
    """Store messages in order; a topic passes them on. The queue remembers their ids for `window` ms.

    If the queue has no limits and the call no window, several batches go in one round trip. Otherwise they go one after
    the other, because no batch may overtake one that is repeated.
    """
    config: QueueConfig = yield GetConfig(queue)
    kinds = set(map(type, messages))
    envelope, bodies = _alike(messages, kinds)
    if not bodies and is_scheduled(*messages):
        return (yield from _in_runs(config, messages, window))
    if config.passes_on:
        return cast("list[Receipt | QueueFull]", (yield Publish(config, messages, window)))
    sizes = list(map(len, bodies))
    if 0 < len(bodies) <= BATCH and sum(sizes) <= BATCH_BYTES:
        stored = [(yield from _store(config, max(sizes), commands.enqueue_alike, bodies, envelope))]
    else:
        packed = [(envelope, body) for body in bodies] or [commands.pack(message) for message in messages]
        stored = yield from in_batches(config, packed, window)
    results = [result for _, batch, _ in stored for result in batch]
    forever = all(config.retention is None for config, *_ in stored)
    receipts: list[Receipt | QueueFull]
    if forever and not _of(kinds, Message) and set(map(len, results)) == {_SEQUENCE_BYTES}:
        receipts = list(map(Receipt, map(bytes.decode, results)))
    else:
        options = [config for config, batch, _ in stored for _ in batch]
        ids = [plain_text(message.id) or "" if isinstance(message, Message) else "" for message in messages]
        receipts = list(map(receipt, options, results, ids))
    return confirmed(stored, receipts)


def _alike(messages: Sequence[Message | object], kinds: set[type]) -> tuple[Envelope, Sequence[bytes]]:
    """The common envelope and the bodies, if all messages are bytes or all are values; no bodies otherwise."""
    if kinds == {bytes}:
        return NO_ENVELOPE, cast("Sequence[bytes]", messages)
    if _of(kinds, (Message, bytes, bytearray, memoryview)):
        return NO_ENVELOPE, ()
    return VALUE, codec.pack_values(messages)


def _of(kinds: set[type], bases: type | tuple[type, ...]) -> bool:
    return any(issubclass(kind, bases) for kind in kinds)


#: The options that were in force when a call stored messages, the result of each, and why they are not confirmed.
Stored = tuple[QueueConfig, Sequence[bytes], str]


def of_answer(config: QueueConfig, answer: Ok) -> Stored:
    """The values of a call that stores messages."""
    results: Sequence[bytes] = answer.results
    # a refused message needs no confirmation
    why = commands.why_unconfirmed(answer.notes) if any(result[:1] != b"!" for result in results) else ""
    return config, results, why


def confirmed(stored: Sequence[Stored], receipts: list[T]) -> list[T]:
    """Return the receipts of stored messages. Raises `NotReplicated` with them if one is not confirmed."""
    confirmed = 0
    for config, results, why in stored:
        if why:
            raise NotReplicated(
                config.name, str(config.options.durability), why, cast("list[Receipt]", receipts), confirmed
            )
        confirmed += len(results)
    return receipts


def _store(
    config: QueueConfig, largest: int, build: Callable[..., Command], *batch: object, reply: Reply | None = None
) -> Flow[Stored]:
    """Store messages in one call, which `build` makes of the options in force and `batch`. See also `with_config`.

    The largest body has `largest` bytes. Options in the cache never suffice for a `MessageTooLarge`.
    """
    if largest > config.max_body:
        config = yield from roomy(config, largest)

    def checked(newest: QueueConfig) -> Command:
        nonlocal config
        config = newest
        commands.check_size(config, largest)
        return build(config, *batch)

    values = yield from with_config(config.name, checked, config, reply)
    return of_answer(config, values) if values.notes else (config, values.results, "")


def roomy(config: QueueConfig, largest: int) -> Flow[QueueConfig]:
    """A config that permits a body of `largest` bytes: this one, or the one in force now. Raises `MessageTooLarge`."""
    if largest > config.max_body:
        config = yield GetConfig(config.name, fresh=True)
        commands.check_size(config, largest)
    return config


def in_batches(config: QueueConfig, packed: Sequence[tuple[Envelope, bytes]], window: int) -> Flow[list[Stored]]:
    """Store messages in the log of a queue, also of a topic, up to the first call that is not confirmed."""
    pieces = list(_batches(packed))
    sizes = [max(len(body) for _, body in piece) for piece in pieces]
    #: For each batch, the largest body in it and in all later ones, so a refusal comes before any of them is stored.
    largest = list(accumulate(reversed(sizes), max))[::-1]
    stored: list[Stored] = []
    while len(stored) < len(pieces):
        start = len(stored)
        config = yield from roomy(config, largest[start])
        alone = len(pieces) == 1 or config.limited or window
        batches = pieces[start : start + (1 if alone else WINDOW)]
        calls = [partial(commands.enqueue, packed=piece, window=window) for piece in batches]
        if alone:
            stored.append((yield from _store(config, largest[start], calls[0])))
        else:
            stored += yield from _in_one_round_trip(config, largest[start:], calls)
        config = stored[-1][0]
        if any(why for *_, why in stored):
            break
    return stored


def _in_one_round_trip(
    config: QueueConfig, largest: Sequence[int], calls: Sequence[Callable[[QueueConfig], Command]]
) -> Flow[list[Stored]]:
    answers = yield from pipeline([call(config) for call in calls], OUTDATED)
    stored: list[Stored] = []
    for answer, call, size in zip(answers, calls, largest, strict=False):
        if type(answer) is Refused:
            newest: QueueConfig = yield GetConfig(config.name, fresh=True)
            stored.append((yield from _store(newest, size, call)))
        else:
            stored.append(of_answer(config, answer))
    return stored


def receipt(config: QueueConfig, result: bytes, id: str) -> Receipt | QueueFull:
    """The receipt in the result of a script for a message with this id, or the refusal."""
    if result == b"=":
        return Receipt(id, duplicate=True)
    if len(result) == _SEQUENCE_BYTES and config.retention is None:
        return Receipt(id or result.decode())
    if result[:1] == b"!":
        limit = result[1:].decode()
        return QueueFull(config.name, limit, config.options.number(limit) or 0)
    expired = result[:1] == b"~"
    place, _, own = result[expired:].partition(b" ")
    deadline = codec.deadline(config.retention, place, int(own) if own else None)
    return Receipt(id or place.decode(), deadline, expired=expired)


# Scheduled messages


def _in_runs(config: QueueConfig, messages: Sequence[Message | object], window: int) -> Flow[list[Receipt | QueueFull]]:
    """Store plain and scheduled messages in their order. An invalid message is refused before any is stored."""
    config = yield from roomy(config, max(len(commands.pack(message)[1]) for message in messages))
    schedules = {id(message): _scheduled(message) for message in messages if is_scheduled(message)}
    results: list[Receipt | QueueFull] = []
    for later, neighbours in groupby(messages, key=is_scheduled):
        try:
            if later:
                results += yield from _schedule(config, [schedules[id(message)] for message in neighbours], window)
            else:
                results += yield from enqueue(config.name, list(neighbours), window)
        except NotReplicated as error:
            receipts, confirmed = [*results, *error.receipts], len(results) + error.confirmed
            raise NotReplicated(config.name, error.durability, error.why, receipts, confirmed) from None
    return results


def _scheduled(message: Any) -> tuple[bytes, Envelope, bytes]:
    """The due time, the envelope and the body of a message that arrives later."""
    return (codec.due_of(message.delay, message.deliver_at), *commands.pack(message))


def _schedule(config: QueueConfig, packed: Sequence[tuple[bytes, Envelope, bytes]], window: int) -> Flow[list[Receipt]]:
    receipts: list[Receipt] = []
    stored: list[Stored] = []
    for piece in _batches([(envelope, body) for _, envelope, body in packed]):
        batch = packed[len(receipts) : len(receipts) + len(piece)]
        build = partial(commands.schedule, packed=batch, window=window)
        stored.append((yield from _store(config, max(len(body) for _, body in piece), build)))
        config, results, why = stored[-1]
        receipts += [
            _schedule_receipt(config, *pair)
            for pair in zip(results, (envelope.id for envelope, _ in piece), strict=True)
        ]
        if why:
            break
    return confirmed(stored, receipts)


def _schedule_receipt(config: QueueConfig, result: bytes, id: bytes) -> Receipt:
    if result == b"=":
        return Receipt(id.decode(), duplicate=True)
    sequence, due, *own = result.split(b" ")
    ends = [int(word) for word in own]
    if config.retention is not None:
        ends.append(int(due) + config.retention)
    deadline = as_datetime(min(ends)) if ends else None
    return Receipt((id or sequence).decode(), deadline, deliver_at=as_datetime(int(due)))


def _check_target(id: object) -> str:
    """A message id or a sequence, as a user names scheduled messages."""
    return codec.check_id(cast("str", id)).decode()


def cancel(keyspace: Keyspace, queue: str, id: str) -> Flow[int]:
    """See `Queue.cancel`."""
    command, cancelled, more = commands.cancel(keyspace, queue, _check_target(id)), 0, 1
    while more:
        values = yield from existing(queue, command)
        cancelled, more = cancelled + values.cancelled, values.more
    return cancelled


def reschedule(
    keyspace: Keyspace, queue: str, id: str, delay: Duration | None, deliver_at: Instant | None
) -> Flow[int]:
    """See `Queue.reschedule`."""
    due = codec.due_of(delay, deliver_at)
    if not due:
        raise InvalidInput("delay: give delay or deliver_at")
    target, moved, after, more = _check_target(id), 0, b"", 1
    while more:
        values = yield from existing(queue, commands.reschedule(keyspace, queue, target, due, after))
        moved, more, after, due = moved + values.moved, values.more, values.after, b"@" + values.at
    return moved


#: The number of scheduled messages that one call reads. Large ones take more calls.
_PAGE = 50


def scheduled(keyspace: Keyspace, queue: str, limit: int, after: str | None) -> Flow[list[MessageView]]:
    """Read scheduled messages in the order of their due times. A message that arrives meanwhile is left out."""
    limit = checks.whole(limit, "limit")
    config: QueueConfig = yield GetConfig(queue, fresh=True)
    place, start = keyspace.key(queue, SCHEDULED), 0
    if after is not None:
        (rank,) = yield Read([("ZRANK", place, codec.check_sequence(after, "after"))])
        if rank is None:
            raise InvalidInput(f"after: no scheduled message has the sequence {after}")
        start = rank + 1
    seen: list[MessageView] = []
    while len(seen) < limit:
        most = min(limit - len(seen), _PAGE)
        (page,) = yield Read([("ZRANGE", place, start, start + most - 1)])
        if not page:
            break
        views, looked = yield from _look_ahead(config, page)
        seen, start = seen + views, start + looked
    return seen


def scheduled_with(keyspace: Keyspace, queue: str, id: str, most: float = inf) -> Flow[list[MessageView]]:
    """The first `most` scheduled messages with this id, or else the one with this first sequence."""
    config: QueueConfig = yield GetConfig(queue, fresh=True)
    name, listed = Envelope(b"", id.encode(), b"").encode(), ("HGET", keyspace.key(queue, SCHEDULED_IDS), id)
    further = ("ZRANGEBYLEX", keyspace.key(queue, SCHEDULED_MORE))
    behind = (b"(%b:" % name, "LIMIT", 0, BATCH)  # no sequence has a colon
    listing, members = yield Read([listed, (*further, b"[" + name, *behind)])
    left = [*(listing or b"").split(), *(member[-_SEQUENCE_BYTES:] for member in members)] or [id.encode()]
    seen: list[MessageView] = []
    while left and len(seen) < most:
        views, looked = yield from _look_ahead(config, left[: int(min(most, _PAGE))])
        seen, left = seen + views, left[looked:]
        if members and not left:
            (members,) = yield Read([(*further, b"(" + members[-1], *behind)])
            left = [member[-_SEQUENCE_BYTES:] for member in members]
    return seen


def _look_ahead(config: QueueConfig, sequences: Sequence[bytes]) -> Flow[tuple[list[MessageView], int]]:
    """Read the first of these scheduled messages, as many as one call may read. Returns them and the number tried."""
    scheduled, upcoming, meta = (config.keyspace.key(config.name, part) for part in (SCHEDULED, UPCOMING, META))
    dues, (large,) = yield Read([("ZMSCORE", scheduled, *sequences), ("HMGET", meta, "large_scheduled")])
    if large:
        sizes = yield Read([("HSTRLEN", upcoming, sequence) for sequence in sequences])
        before = accumulate(sizes, initial=0)
        sequences = [sequence for sequence, size in zip(sequences, before, strict=False) if size < READ_BYTES]
    (texts,) = yield Read([("HMGET", upcoming, *sequences)])
    found = [
        _scheduled_view(config, sequence, int(float(due)), text)
        for sequence, due, text in zip(sequences, dues, texts, strict=False)
        if due is not None and text is not None
    ]
    return found, len(texts)


def _scheduled_view(config: QueueConfig, sequence: bytes, due: int, text: bytes) -> MessageView:
    length, _, rest = text.partition(b":")
    sent, read = codec.unpack_envelope(rest[: int(length)])
    ttl = None if sent is None else sent[1] if sent[0] == b"+" else sent[1] - due
    left = resolve_ttl(config.options, ttl).ttl
    return MessageView(
        id=read.id or sequence.decode(),
        sequence=sequence.decode(),
        queue=config.name,
        state="scheduled",
        until=as_datetime(due),
        body=rest[int(length) :],
        headers=read.headers,
        content_type=read.content_type,
        enqueued_at=as_datetime(codec.enqueued_at(sequence)),
        expires_at=None if left is None else as_datetime(due + left),
        delivery_count=0,
        deaths=(),
    )


def _purge_scheduled(keyspace: Keyspace, queue: str) -> Flow[int]:
    """Cancel the scheduled messages of now, those that are due first at first."""
    (left,) = yield Read([("ZCARD", keyspace.key(queue, SCHEDULED))])
    purged = 0
    while left > 0:
        (page,) = yield Read([("ZRANGE", keyspace.key(queue, SCHEDULED), 0, min(left, BATCH) - 1)])
        if not page:
            break
        answer = yield from with_config(queue, partial(commands.intervene, what="delete", sequences=page))
        purged, left = purged + answer.done, left - answer.looked
    return purged


# Looking at messages, and removing them


def peek(
    keyspace: Keyspace, queue: str, limit: int, after: str | None, state: State | None = None
) -> Flow[list[MessageView]]:
    """Read messages, in pages of bounded size."""
    if state is not None and checks.choice(state, "state", get_args(State)) == "scheduled":
        return (yield from scheduled(keyspace, queue, limit, after))
    limit = checks.whole(limit, "limit")
    place = "" if after is None else codec.check_sequence(after, "after")
    seen: list[MessageView] = []
    while len(seen) < limit:
        most = min(limit - len(seen), BATCH)
        command = commands.peek(keyspace, queue, after=place, limit=most)
        page = yield from existing(queue, command)
        seen += [view for view in living(queue, page) if state in (None, view.state)]
        if not page.entries:
            break
        place = page.last.decode()
    return seen


def living(queue: str, page: Ok) -> Iterator[MessageView]:
    """The messages of the answer to a `peek` that are not expired."""
    retention = int(page.retention) if page.retention else None
    for i, entry in enumerate(page.entries):
        view = _peeked(queue, retention, entry, page.details[3 * i : 3 * i + 3])
        if view.state == "leased" or view.expires_at is None or view.expires_at > as_datetime(page.now):
            yield view


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


def purge(keyspace: Keyspace, queue: str, state: Purged = "ready") -> Flow[int]:
    """See `Queue.purge`. Expired messages die first and do not count."""
    checks.choice(state, "state", get_args(Purged))
    ready = 0 if state == "scheduled" else (yield from _purge_ready(keyspace, queue))
    return ready + (0 if state == "ready" else (yield from _purge_scheduled(keyspace, queue)))


def _purge_ready(keyspace: Keyspace, queue: str) -> Flow[int]:
    yield from sweep(queue)
    values = yield from run(commands.purge(keyspace, queue, ""))
    purged: int = values.purged
    while values.more:
        values = yield from run(commands.purge(keyspace, queue, values.upto))
        purged += values.purged
    return purged


def purge_many(keyspace: Keyspace, queue: str, sequences: Iterable[str], *, unread: bool = False) -> Flow[int]:
    """Remove the ready ones among these messages; they count as handled, or as lost if `unread`. See `purge`."""
    items = checks.items(sequences, "sequences", "sequences of messages")
    ids = sorted({codec.check_sequence(sequence, "sequences") for sequence in items})
    yield from sweep(queue)
    purged = done = 0
    while done < len(ids):
        page = ids[done : done + BATCH]
        values = yield from run(commands.purge(keyspace, queue, "", page, unread=unread))
        purged += values.purged
        done += page.index(values.upto.decode()) + 1
    return purged


# Putting dead letters back


def redrive_many(keyspace: Keyspace, queue: str, letters: Iterable[tuple[str, str]]) -> Flow[list[RedriveResult]]:
    """See `Queue.redrive_many`. Each pair is a sequence, and the queue to go to. Expired messages die first."""
    pairs: list[tuple[str, str]] = []
    for pair in checks.items(letters, "letters", "pairs of a sequence and a queue"):
        if isinstance(pair, str | bytes) or not isinstance(pair, Sequence) or len(pair) != 2:
            raise InvalidInput(f"letters: expected a pair of a sequence and a queue, got {format_value(pair)}")
        pairs.append((codec.check_sequence(pair[0], "letters"), check_queue_name(pair[1], "letters")))
    yield from sweep(queue)
    results: dict[tuple[str, str], RedriveResult] = {}
    for origin, sequences in _by_origin(sorted(set(pairs))).items():
        for result in (yield from _send(keyspace, queue, origin, sequences)):
            results[result.sequence, origin] = result
    return [results[pair] for pair in pairs]


def _by_origin(letters: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    origins: dict[str, list[str]] = {}
    for sequence, origin in letters:
        origins.setdefault(origin, []).append(sequence)
    return origins


def check_near(keyspace: Keyspace, queue: str, to: str) -> None:
    """Raise `InvalidInput` if messages of a queue cannot move to another one."""
    if keyspace.in_another_slot(queue, to):
        raise InvalidInput(f"to: {to!r} is in another slot than {queue!r}; messages move within one slot only")


def _send(keyspace: Keyspace, queue: str, origin: str, sequences: Sequence[str]) -> Flow[list[RedriveResult]]:
    """Move dead letters to one queue, in order. Returns their results, also if the queue is deleted meanwhile."""
    if origin == queue:
        return [RedriveResult(sequence, origin, "same_queue") for sequence in sequences]
    if keyspace.in_another_slot(queue, origin):
        return (yield from _across_slots(keyspace, queue, origin, sequences))
    done: list[RedriveResult] = []
    config = yield from config_if_exists(keyspace, origin)
    repeated = False  # see `with_config`
    while len(done) < len(sequences):
        if config is None:
            return done + [RedriveResult(sequence, origin, "no_origin") for sequence in sequences[len(done) :]]
        batch = sequences[len(done) : len(done) + BATCH]
        command = commands.redrive(config, queue, batch)
        answer = yield from dispatch(command.as_replay() if repeated else command, OUTDATED)
        if type(answer) is Refused:
            repeated = repeated or answer.repeated
            config = yield from config_if_exists(keyspace, origin)
        else:
            repeated = False
            # the script reads a bounded number of bytes, so it may handle the first dead letters only
            for sequence, result in zip(batch, answer.results, strict=False):
                limit = result[1:].decode() if result[:1] == b"!" else None
                outcome: Outcome = "full" if limit else "unavailable" if result == b"-" else "moved"
                done.append(RedriveResult(sequence, origin, outcome, limit))
    return done


def _across_slots(keyspace: Keyspace, queue: str, origin: str, sequences: Sequence[str]) -> Flow[list[RedriveResult]]:
    """The same for a queue in another slot."""
    if (yield from config_if_exists(keyspace, origin)) is None:
        return [RedriveResult(sequence, origin, "no_origin") for sequence in sequences]
    found = yield from moving.redrive(keyspace, queue, origin, sequences)
    outcomes: dict[str | None, Outcome] = {moving.MOVED: "moved", moving.GONE: "no_origin", None: "unavailable"}
    results = []
    for sequence in sequences:
        result = found.get(sequence)
        limit = moving.LIMITS.get(result or "")
        results.append(RedriveResult(sequence, origin, "full" if limit else outcomes[result], limit))
    return results


def redrive(
    keyspace: Keyspace,
    queue: str,
    limit: int | None = None,
    reason: str | None = None,
    source: str | None = None,
    to: str | None = None,
) -> Flow[int]:
    """Move the present dead letters back, the oldest first. A queue without room for one gets no further one."""
    limit = None if limit is None else checks.whole(limit, "limit")
    reason = None if reason is None else checks.choice(reason, "reason", REASONS)
    source = None if source is None else check_queue_name(source, "source")
    to = None if to is None else check_queue_name(to, "to")
    if to == queue:
        raise InvalidInput(f"to: expected another queue than {queue!r}")
    yield from sweep(queue)
    if to is not None:
        yield GetConfig(to)
    counters = (yield from with_config(queue, commands.stats)).counters
    # dead letters that die during the redrive come behind the last sequence, so the redrive ends
    last = dict(zip(counters[::2], counters[1::2], strict=True))[b"last_id"].decode()
    closed = {queue}  # queues that take no further one
    moved, after = 0, ""
    while (limit is None or moved < limit) and after < last and to not in closed:
        page = yield from peek(keyspace, queue, BATCH, after or None)
        if not page:
            break
        after = page[-1].sequence
        letters = [
            (letter.sequence, to or letter.deaths[0].queue)
            for letter in page
            if letter.state == "ready" and letter.deaths and letter.sequence <= last
            if reason in (None, letter.deaths[0].reason) and source in (None, letter.deaths[0].queue)
        ]
        while letters and (limit is None or moved < limit):
            most = len(letters) if limit is None else limit - moved
            moved += yield from _send_open(keyspace, queue, letters[:most], closed)
            letters = letters[most:]
    return moved


def _send_open(keyspace: Keyspace, queue: str, letters: Iterable[tuple[str, str]], closed: set[str]) -> Flow[int]:
    """Move dead letters to queues that are not `closed`, and close those that take none. Returns how many moved."""
    moved = 0
    for origin, sequences in _by_origin(letters).items():
        if origin not in closed:
            results = yield from _send(keyspace, queue, origin, sequences)
            moved += sum(result.outcome == "moved" for result in results)
            if any(result.outcome in ("full", "no_origin") for result in results):
                closed.add(origin)
    return moved


def observed(events: Events, queue: str, flow: Flow[T]) -> Flow[T]:
    """A flow that redrives dead letters of a queue, with an observer around it if there is one."""
    return flow if events.observer is None else hook.settled(events.observer, queue, "redrive", (), flow)
