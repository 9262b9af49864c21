"""Dead-letter queues that no client has registered.

A script creates the queue, and the client that made the call registers it. If that client dies in between, reapers find
the queue by the options that lead to it. So before these options are forgotten, another client registers it.
"""

from __future__ import annotations

from collections.abc import Iterable

from rqttl.flows.steps import Flow, Read, Register
from rqttl.options import QueueOptions
from rqttl.protocol.keys import Keyspace


def given_up(before: QueueOptions, after: QueueOptions) -> set[str]:
    """The queues to which dead letters went before, and do not go any more."""
    return set() if before == after else before.targets() - after.targets() - {before.queue}


def register_missing(keyspace: Keyspace, queues: Iterable[str]) -> Flow[list[str]]:
    """Register the queues of these that exist and are missing in the registry. Returns those that were missing."""
    names = sorted(queues)
    calls = [
        call
        for name in names
        for call in (("SISMEMBER", keyspace.registry, name), ("EXISTS", keyspace.key(name, "meta")))
    ]
    replies = (yield Read(calls)) if calls else []
    missing = [name for name, *pair in zip(names, replies[::2], replies[1::2], strict=True) if pair == [0, 1]]
    for name in missing:
        yield Register(name)
    return missing
