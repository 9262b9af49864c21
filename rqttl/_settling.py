"""Settling deliveries: which of them a call settles, and the outcome for each. `Queue` says how."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rqttl import delivery, flows
from rqttl._driver import Driver
from rqttl.commands import BATCH, Reply, Word
from rqttl.delivery import LOST, Delivery
from rqttl.errors import InvalidInput, LeaseLost
from rqttl.flows import Flow
from rqttl.text import shown

#: How a delivery is settled by a script that reads the message.
READING = ("nack", "reject")


def settle(
    driver: Driver, queue: str, deliveries: Sequence[Delivery], how: str, run: Callable[[Sequence[Word]], Flow[Reply]]
) -> None:
    """Settle all deliveries whose lease holds, and note for each how it was settled. Raises `LeaseLost` for others."""
    newest = _newest(queue, deliveries)
    pairs = [delivery.lease_words(one) for one in newest]
    sizes = [delivery.size(one) for one in newest] if how in READING else ()
    lost, replies = driver.perform(flows.settle(pairs, run, sizes))
    gone = set(lost)
    for i, (one, (sequence, _)) in enumerate(zip(newest, pairs, strict=True)):
        if sequence in gone:
            delivery.mark(one, LOST)
        elif how == "renew":
            delivery.prolong(one, replies[i // BATCH][2])
        else:
            delivery.mark(one, how)
    missed = [one.id for one in deliveries if one.settled == LOST]
    if missed:
        raise LeaseLost(queue, missed)


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
    if not isinstance(deliveries, Sequence) or isinstance(deliveries, str):
        raise InvalidInput(f"deliveries: expected a sequence of deliveries, got {shown(deliveries)}")
    for one in deliveries:
        if not isinstance(one, Delivery):
            raise InvalidInput(f"deliveries: expected a sequence of deliveries, got one with {shown(one)}")
