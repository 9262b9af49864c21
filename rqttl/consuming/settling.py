"""Settling deliveries: which of them a call settles, and the outcome for each. `Queue` says how."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rqttl import delivery, flows
from rqttl.delivery import LOST, UNKNOWN, Delivery
from rqttl.errors import InvalidInput, LeaseLost, OutcomeUnknown
from rqttl.flows import Flow
from rqttl.protocol.commands import Ok, Word
from rqttl.text import shown

#: How a delivery is settled by a script that reads the message.
READING = ("nack", "reject")

#: Settles the deliveries (sequence and token in turn) of one call.
Run = Callable[[Sequence[Word]], Flow[Ok]]


def settle(queue: str, deliveries: Sequence[Delivery], how: str, run: Run) -> Flow[None]:
    """Settle all deliveries whose lease holds, and note for each how it was settled. Raises `LeaseLost` for others.

    Raises `OutcomeUnknown` for those of which nobody knows it, if no lease was lost; else it is the cause.
    """
    newest = _newest(queue, deliveries)
    pairs = [delivery.lease_words(one) for one in newest]
    sizes = [delivery.size(one) for one in newest] if how in READING else ()
    settled = yield from flows.settle(pairs, run, sizes)
    for one in newest:
        sequence, _ = delivery.lease_words(one)
        outcome = LOST if sequence in settled.lost else UNKNOWN if sequence in settled.unknown else how
        delivery.mark(one, outcome)
    unsure = [one.id for one in newest if one.settled == UNKNOWN]
    error = OutcomeUnknown(queue, how, unsure) if unsure else None
    _raise_lost(queue, deliveries, error)
    if error:
        raise error


def renew(queue: str, deliveries: Sequence[Delivery], run: Callable[[int], Run], lease: int | None) -> Flow[None]:
    """Renew all leases that hold, for `lease` ms; without it each for as long as it was given for.

    One round trip for each length. Raises `LeaseLost` for others.
    """
    newest = _newest(queue, deliveries)
    groups = {lease: newest} if lease is not None else delivery.by_lease(newest)
    for length, group in groups.items():
        settled = yield from flows.renew([delivery.lease_words(one) for one in group], run(length))
        for one in group:
            sequence, _ = delivery.lease_words(one)
            if sequence in settled.lost:
                delivery.mark(one, LOST)
            else:
                delivery.prolong(one, settled.tokens[sequence])
    _raise_lost(queue, deliveries)


def _raise_lost(queue: str, deliveries: Sequence[Delivery], cause: Exception | None = None) -> None:
    missed = [one.id for one in deliveries if one.settled == LOST]
    if missed:
        raise LeaseLost(queue, missed) from cause


def _newest(queue: str, deliveries: Sequence[Delivery]) -> list[Delivery]:
    """These deliveries, checked. Of two of one message only the newer lease can hold; the other is lost."""
    check_deliveries(deliveries)
    newest: dict[bytes, tuple[bytes, Delivery]] = {}
    older = []
    for one in deliveries:
        delivery.check_unsettled(one)
        if one.queue != queue:
            raise InvalidInput(f"deliveries: {one.id!r} is of queue {one.queue!r}, not of {queue!r}")
        sequence, token = delivery.lease_words(one)
        other = newest.get(sequence)
        if other is not None and other[0] == token:
            raise InvalidInput("deliveries: the same delivery is in the list twice")
        if other is None or other[0] < token:
            newest[sequence] = token, one
        if other is not None:
            older.append(one if token < other[0] else other[1])
    for one in older:
        delivery.mark(one, LOST)
    return [one for _, one in newest.values()]


def check_deliveries(deliveries: object) -> None:
    """Raise `InvalidInput` unless it is a sequence of deliveries."""
    if not isinstance(deliveries, Sequence) or isinstance(deliveries, (str, bytes, bytearray, memoryview)):
        raise InvalidInput(f"deliveries: expected a sequence of deliveries, got {shown(deliveries)}")
    for one in deliveries:
        if not isinstance(one, Delivery):
            raise InvalidInput(f"deliveries: expected a sequence of deliveries, got one with {shown(one)}")
