"""Flows that settle deliveries, and renew their leases."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from rqttl.flows.steps import Flow
from rqttl.protocol.commands import BATCH, READ_BYTES, Ok, Word


@dataclass(frozen=True, slots=True)
class Settled:
    """The sequences that a settle failed for, and the new token of each renewed lease.

    `lost`: the lease had ended. `unknown`: the reply to an earlier try was lost, the lease has ended since, and the
    message does not exist any more. The earlier try may have settled it.
    """

    lost: set[bytes]
    unknown: set[bytes]
    tokens: dict[bytes, bytes]


def settle(
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
