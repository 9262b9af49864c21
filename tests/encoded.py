"""Script calls with envelopes as bytes, also with bytes that no envelope has."""

from collections.abc import Sequence
from itertools import chain
from typing import Any

from rqttl.protocol import commands
from rqttl.protocol.codec import ttl_may_be_over
from rqttl.protocol.commands import Command


def enqueue_encoded(known: Any, pairs: Sequence[tuple[bytes, bytes]], *, window: int = 0, now: Any = "") -> Command:
    """`commands.enqueue` of encoded envelopes and bodies. The forms of the envelopes are read from their bytes."""
    ids = [_id(envelope) for envelope, _ in pairs]
    return commands.enqueue_encoded(
        known,
        list(chain.from_iterable(pairs)),
        has_ids=all(has_id for has_id, _ in ids),
        ids_only=all(id_only for _, id_only in ids),
        may_be_over=any(ttl_may_be_over(envelope.partition(b";")[0]) for envelope, _ in pairs),
        window=window,
        now=now,
    )


def _id(envelope: bytes) -> tuple[bool, bool]:
    """Return whether an envelope has an id, and nothing else."""
    ttl, _, rest = envelope.partition(b";")
    length, _, rest = rest.partition(b";;")
    return length != b"", ttl == b"" and length.isdigit() and len(rest) == int(length)
