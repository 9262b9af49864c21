"""Dead-letter queues that no client has entered into the registry.

A script creates the queue, and the client that made the call enters it. If that client dies in between, reapers find
the queue by the options that lead to it. So before these options are forgotten, another client enters it.
"""

from __future__ import annotations

from collections.abc import Iterable

from rqttl.flows.steps import Flow, Read, Register
from rqttl.options import REASONS, QueueOptions
from rqttl.protocol.keys import Keyspace


def given_up(before: QueueOptions, after: QueueOptions) -> set[str]:
    """The queues to which dead letters went before, and do not go any more."""
    return _targets(before) - _targets(after)


def _targets(options: QueueOptions) -> set[str]:
    return {options.target(reason) for reason in REASONS} - {"", options.queue}


def enter(keyspace: Keyspace, queues: Iterable[str]) -> Flow[list[str]]:
    """Enter these queues into the registry if they exist and are missing there. Returns those that were missing."""
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
