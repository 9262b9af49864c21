"""Settling of deliveries, for queues, consumers and workers: checked flows, and the outcome of each delivery."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from rqttl import events as hook
from rqttl import units
from rqttl.delivery import LOST, UNKNOWN, Delivered, Settler, by_lease, delivered
from rqttl.errors import InvalidInput, LeaseLost, OutcomeUnknown
from rqttl.events import Events
from rqttl.flows import steps
from rqttl.flows.receive import Batches
from rqttl.flows.steps import Flow
from rqttl.protocol import codec, commands
from rqttl.protocol.commands import BATCH, READ_BYTES, Command, Ok, QueueConfig, Refused, Word
from rqttl.protocol.keys import Keyspace
from rqttl.text import format_value
from rqttl.types import Duration


def settle(
    keyspace: Keyspace,
    queue: str,
    how: str,
    deliveries: Sequence[Delivered],
    time: Duration | None = None,
    description: str | None = None,
) -> Flow[None]:
    """Settle all deliveries of one queue whose lease holds, and mark each with its outcome.

    `how` is `ack`, `nack` or `release` (an uncounted nack) after the delay `time`, `reject`, or `renew` for the lease
    `time`. Raises `LeaseLost` for the others, and `OutcomeUnknown` for deliveries with an unknown outcome. If leases
    were lost too, that error is the cause.
    """
    _check_deliveries(deliveries)
    if how == "renew":
        return _renew(keyspace, queue, deliveries, time)
    delay = None if time is None else int(units.duration(time, "delay"))
    text = codec.pack_description(description)
    if text and how == "release":
        raise InvalidInput(f"description: expected none with counted=False, got {format_value(description)}")
    flow = _settle(keyspace, queue, how, deliveries, delay, text)
    events = deliveries[0].settler.events if deliveries else None
    if events is None or events.observer is None:
        return flow
    return hook.settled(events.observer, queue, how, deliveries, flow)


def give_back(keyspace: Keyspace, batches: Batches, events: Events) -> Flow[None]:
    """Give back what a call has received, uncounted, if its lease holds. With `auto_ack` it is gone."""
    for claimed in batches:
        name = claimed.config.name
        settler = Settler(partial(settle, keyspace, name), events)
        with suppress(LeaseLost):  # these messages are back already
            leased = delivered(Delivered, settler, claimed, None) if claimed.token else []
            yield from settle(keyspace, name, "release", leased)


def _settle(
    keyspace: Keyspace, queue: str, how: str, deliveries: Sequence[Delivered], delay: int | None, text: bytes
) -> Flow[None]:
    def build(config: QueueConfig) -> Command:
        if how == "reject":
            return commands.reject(config, words, description=text)
        return commands.nack(config, words, delay=delay, counted=how == "nack", description=text)

    newest = _newest(queue, deliveries)
    lost, unknown = set[bytes](), set[bytes]()
    for batch in _cut(newest, reads=how != "ack"):
        words = [word for item in batch for word in (item.entry_id, item.token)]
        if how == "ack":
            values = yield from ack(keyspace, queue, words, wakes=newest[0].config.capped)
        else:
            values = yield from steps.with_config(queue, build)
        lost.update(values.lost)
        unknown.update(values.unknown)
    outcome = "nack" if how == "release" else how
    for item in newest:
        item.settled = LOST if item.entry_id in lost else UNKNOWN if item.entry_id in unknown else outcome
    unsure = [item.id for item in newest if item.settled == UNKNOWN]
    error = OutcomeUnknown(queue, outcome, unsure) if unsure else None
    _raise_lost(queue, deliveries, error)
    if error:
        raise error


def ack(keyspace: Keyspace, queue: str, words: Sequence[Word], *, wakes: bool) -> Flow[Ok]:
    """Ack deliveries. An option may have begun to act since they were received: then the call needs more keys."""
    command = commands.ack(keyspace, queue, words, wakes=wakes)
    answer = yield from steps.dispatch(command, ("stale", *steps.EXPIRED))
    if type(answer) is not Refused:
        return answer
    command = commands.ack(keyspace, queue, words, wakes=True)
    return (yield from steps.existing(queue, command.as_replay() if answer.repeated else command))


def _renew(keyspace: Keyspace, queue: str, deliveries: Sequence[Delivered], lease: Duration | None) -> Flow[None]:
    """Renew all leases that hold, without `lease` each for as long as it was given for: one round trip a length."""
    ms = None if lease is None else int(units.duration(lease, "lease", least=1))
    newest = _newest(queue, deliveries)
    for length, group in ({ms: newest} if ms is not None else by_lease(newest)).items():
        for batch in _cut(group, reads=False):
            words = [word for item in batch for word in (item.entry_id, item.token)]
            values = yield from steps.existing(queue, commands.renew(keyspace, queue, words, lease=length))
            lost = set(values.lost)
            for item in batch:
                if item.entry_id not in lost:
                    item.token = values.token
                elif item.settled is None:  # else a consumer has collected its ack meanwhile; that call tells the loss
                    item.settled = LOST
    _raise_lost(queue, deliveries)


def _cut(deliveries: Sequence[Delivered], *, reads: bool) -> Iterator[Sequence[Delivered]]:
    """Cut deliveries into those of one call each. The size of messages that the script reads bounds it, too."""
    start = size = 0
    for i, item in enumerate(deliveries):
        more = item.size if reads else 0
        if i - start == BATCH or (i > start and size + more > READ_BYTES):
            yield deliveries[start:i]
            start, size = i, 0
        size += more
    if start < len(deliveries):
        yield deliveries[start:]


def _raise_lost(queue: str, deliveries: Sequence[Delivered], cause: Exception | None = None) -> None:
    missed = [item.id for item in deliveries if item.settled == LOST]
    if missed:
        raise LeaseLost(queue, missed) from cause


def _newest(queue: str, deliveries: Sequence[Delivered]) -> list[Delivered]:
    """Check deliveries and return them. Of two deliveries of one message the older has lost its lease."""
    newest: dict[bytes, tuple[bytes, Delivered]] = {}
    older = []
    for item in deliveries:
        item.check_unsettled()
        if item.queue != queue:
            raise InvalidInput(f"deliveries: {item.id!r} is of queue {item.queue!r}, not of {queue!r}")
        sequence, token = item.entry_id, item.token
        other = newest.get(sequence)
        if other is not None and other[0] == token:
            raise InvalidInput("deliveries: the same delivery is in the list twice")
        if other is None or other[0] < token:
            newest[sequence] = token, item
        if other is not None:
            older.append(item if token < other[0] else other[1])
    for item in older:
        item.settled = LOST
    return [item for _, item in newest.values()]


def _check_deliveries(deliveries: Any) -> None:
    """Raise `InvalidInput` unless the argument is a sequence of deliveries. To ask for `Sequence` takes a long time."""
    if not isinstance(deliveries, (list, tuple)) and (
        not isinstance(deliveries, Sequence) or isinstance(deliveries, (str, bytes, bytearray, memoryview))
    ):
        raise InvalidInput(f"deliveries: expected a sequence of deliveries, got {format_value(deliveries)}")
    for item in deliveries:
        if not isinstance(item, Delivered):
            raise InvalidInput(f"deliveries: expected a sequence of deliveries, got one with {format_value(item)}")
