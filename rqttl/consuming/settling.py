"""Settling of deliveries, for queues and consumers: checked flows, the deliveries of each call, and the outcomes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeGuard

from rqttl import delivery, flows, units
from rqttl import events as hook
from rqttl.delivery import LOST, UNKNOWN, Delivered
from rqttl.errors import InvalidInput, LeaseLost, OutcomeUnknown
from rqttl.flows.steps import Driver, Flow
from rqttl.protocol import codec, commands
from rqttl.protocol.commands import BATCH, READ_BYTES, Command, Ok, QueueConfig, Word
from rqttl.protocol.keys import Keyspace
from rqttl.text import format_value
from rqttl.units import Duration


@dataclass(frozen=True, slots=True)
class Settled:
    """The sequences that a settle failed for, and the new token of each renewed lease.

    `lost`: the lease had ended. `unknown`: the reply to an earlier try was lost, the lease has ended since, and the
    message does not exist any more. The earlier try may have settled it.
    """

    lost: set[bytes]
    unknown: set[bytes]
    tokens: dict[bytes, bytes]


def settle_in_batches(
    deliveries: Sequence[tuple[bytes, bytes]], run: Callable[[Sequence[Word]], Flow[Ok]], sizes: Sequence[int] = ()
) -> Flow[Settled]:
    """Settle deliveries (sequence and token) in batches.

    `sizes` has the bytes of each message, for a script that reads messages. They bound the batches, too.
    """
    settled = Settled(set(), set(), {})
    for batch in _cut(deliveries, sizes):
        values = yield from run([word for pair in batch for word in pair])
        settled.lost.update(values.lost)
        settled.unknown.update(values.unknown)
    return settled


def renew_in_batches(
    deliveries: Sequence[tuple[bytes, bytes]], run: Callable[[Sequence[Word]], Flow[Ok]]
) -> Flow[Settled]:
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


#: The settle commands whose scripts read the message.
READING = ("nack", "reject")

#: A function that settles the deliveries of one call. Its argument has sequence and token in turn.
Run = Callable[[Sequence[Word]], Flow[Ok]]


class Settling:
    """Settles deliveries of one queue. Each method settles all whose lease holds; `LeaseLost` names the others."""

    def __init__(self, driver: Driver, queue: str) -> None:
        #: The name of the queue.
        self.queue = queue
        self._driver = driver

    def ack(self, deliveries: Sequence[Delivered]) -> None:
        """See `Queue.ack_many`."""
        self._driver.perform(ack(self._driver.keyspace, self.queue, deliveries))

    def nack(
        self,
        deliveries: Sequence[Delivered],
        delay: Duration | None = None,
        description: str | None = None,
        *,
        counted: bool = True,
    ) -> None:
        """See `Queue.nack_many`."""
        self._driver.perform(nack(self.queue, deliveries, delay, description, counted=counted))

    def release(self, deliveries: Sequence[Delivered]) -> None:
        """Give deliveries back, uncounted."""
        self.nack(deliveries, counted=False)

    def reject(self, deliveries: Sequence[Delivered], description: str | None = None) -> None:
        """See `Queue.reject_many`."""
        self._driver.perform(reject(self.queue, deliveries, description))

    def renew(self, deliveries: Sequence[Delivered], lease: Duration | None = None) -> None:
        """See `Queue.renew_many`."""
        self._driver.perform(renew(self._driver.keyspace, self.queue, deliveries, lease))


def ack(keyspace: Keyspace, queue: str, deliveries: Sequence[Delivered]) -> Flow[None]:
    """Settle deliveries: done."""
    return settle(
        queue, deliveries, "ack", lambda words: flows.steps.existing(queue, commands.ack(keyspace, queue, words))
    )


def nack(
    queue: str,
    deliveries: Sequence[Delivered],
    delay: Duration | None = None,
    description: str | None = None,
    *,
    counted: bool = True,
) -> Flow[None]:
    """Give deliveries back; see `Queue.nack_many`."""
    ms = None if delay is None else int(units.duration(delay, "delay"))
    text = codec.pack_description(description)
    if text and not counted:
        raise InvalidInput(f"description: expected none with counted=False, got {format_value(description)}")

    def build(config: QueueConfig, words: Sequence[Word]) -> Command:
        return commands.nack(config, words, delay=ms, counted=counted, description=text)

    name = "nack" if counted else "release"
    return settle(
        queue, deliveries, "nack", lambda words: flows.steps.with_config(queue, lambda c: build(c, words)), name
    )


def give_back(queue: str, deliveries: Sequence[Delivered]) -> Flow[None]:
    """Give deliveries back, uncounted, those whose lease holds."""
    try:
        if deliveries:
            yield from nack(queue, deliveries, counted=False)
    except LeaseLost:
        pass  # these messages are back already


def reject(queue: str, deliveries: Sequence[Delivered], description: str | None = None) -> Flow[None]:
    """Refuse deliveries for good; see `Queue.reject_many`."""
    text = codec.pack_description(description)

    def build(config: QueueConfig, words: Sequence[Word]) -> Command:
        return commands.reject(config, words, description=text)

    return settle(queue, deliveries, "reject", lambda words: flows.steps.with_config(queue, lambda c: build(c, words)))


def renew(keyspace: Keyspace, queue: str, deliveries: Sequence[Delivered], lease: Duration | None = None) -> Flow[None]:
    """Extend leases; see `Queue.renew_many`."""
    check_deliveries(deliveries)
    ms = None if lease is None else int(units.duration(lease, "lease", least=1))

    def run(length: int) -> Run:
        return lambda words: flows.steps.existing(queue, commands.renew(keyspace, queue, words, lease=length))

    return prolong(queue, deliveries, run, ms)


def settle(queue: str, deliveries: Sequence[Delivered], how: str, run: Run, name: str | None = None) -> Flow[None]:
    """Settle deliveries; see `carry_out`. An observer sees the call, by its `name` if it has another one than `how`."""
    flow = carry_out(queue, deliveries, how, run)
    if type(deliveries) not in (list, tuple):  # such a value may have no first item
        check_deliveries(deliveries)
    first = deliveries[0] if deliveries else None
    observer = delivery.observer_of(first) if isinstance(first, Delivered) else None
    return flow if observer is None else hook.settled(observer, queue, name or how, deliveries, flow)


def carry_out(queue: str, deliveries: Sequence[Delivered], how: str, run: Run) -> Flow[None]:
    """Settle all deliveries whose lease holds, and mark each with its outcome. Raises `LeaseLost` for the others.

    Raises `OutcomeUnknown` for deliveries with an unknown outcome. If leases were lost too, that error is the cause.
    """
    newest = _newest(queue, deliveries)
    pairs = [delivery.lease_words(item) for item in newest]
    sizes = [delivery.size(item) for item in newest] if how in READING else ()
    settled = yield from settle_in_batches(pairs, run, sizes)
    for item in newest:
        sequence, _ = delivery.lease_words(item)
        outcome = LOST if sequence in settled.lost else UNKNOWN if sequence in settled.unknown else how
        delivery.mark(item, outcome)
    unsure = [item.id for item in newest if item.settled == UNKNOWN]
    error = OutcomeUnknown(queue, how, unsure) if unsure else None
    _raise_lost(queue, deliveries, error)
    if error:
        raise error


def prolong(queue: str, deliveries: Sequence[Delivered], run: Callable[[int], Run], lease: int | None) -> Flow[None]:
    """Renew all leases that hold, for `lease` ms; without it each for as long as it was given for.

    Each length takes one round trip. Raises `LeaseLost` for the other deliveries.
    """
    newest = _newest(queue, deliveries)
    groups = {lease: newest} if lease is not None else delivery.by_lease(newest)
    for length, group in groups.items():
        settled = yield from renew_in_batches([delivery.lease_words(item) for item in group], run(length))
        for item in group:
            sequence, _ = delivery.lease_words(item)
            if sequence not in settled.lost:
                delivery.prolong(item, settled.tokens[sequence])
            elif item.settled is None:  # else a consumer has collected its ack meanwhile, whose call tells the loss
                delivery.mark(item, LOST)
    _raise_lost(queue, deliveries)


def _raise_lost(queue: str, deliveries: Sequence[Delivered], cause: Exception | None = None) -> None:
    missed = [item.id for item in deliveries if item.settled == LOST]
    if missed:
        raise LeaseLost(queue, missed) from cause


def _newest(queue: str, deliveries: Sequence[Delivered]) -> list[Delivered]:
    """Check deliveries and return them. Of two deliveries of one message the older has lost its lease."""
    check_deliveries(deliveries)
    newest: dict[bytes, tuple[bytes, Delivered]] = {}
    older = []
    for item in deliveries:
        delivery.check_unsettled(item)
        if item.queue != queue:
            raise InvalidInput(f"deliveries: {item.id!r} is of queue {item.queue!r}, not of {queue!r}")
        sequence, token = delivery.lease_words(item)
        other = newest.get(sequence)
        if other is not None and other[0] == token:
            raise InvalidInput("deliveries: the same delivery is in the list twice")
        if other is None or other[0] < token:
            newest[sequence] = token, item
        if other is not None:
            older.append(item if token < other[0] else other[1])
    for item in older:
        delivery.mark(item, LOST)
    return [item for _, item in newest.values()]


def check_deliveries(deliveries: object) -> None:
    """Raise `InvalidInput` unless the argument is a sequence of deliveries."""
    if not isinstance(deliveries, (list, tuple)) and not _is_sequence(deliveries):
        raise InvalidInput(f"deliveries: expected a sequence of deliveries, got {format_value(deliveries)}")
    for item in deliveries:
        if not isinstance(item, Delivered):
            raise InvalidInput(f"deliveries: expected a sequence of deliveries, got one with {format_value(item)}")


def _is_sequence(value: object) -> TypeGuard[Sequence[object]]:
    """Tell whether a value of another type than list and tuple is a sequence: that question takes a long time."""
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray, memoryview))
