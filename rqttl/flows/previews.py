"""Flows that count, by scripts that only read, the messages that other options would let die."""

from __future__ import annotations

from collections.abc import Callable

from rqttl.flows.steps import OUTDATED, Flow, GetConfig, dispatch
from rqttl.options import QueueOptions, UpdateResult
from rqttl.protocol import commands
from rqttl.protocol.commands import QueueConfig, Refused, Walk, Word


def count_deaths(
    queue: str, look: Callable[[], Flow[tuple[QueueConfig, QueueOptions]]], *, now: Word = ""
) -> Flow[UpdateResult]:
    """Count the ready messages that would die at once. `look` reads the options in force, and those to compare."""
    walk = Walk()
    while True:
        config, after = yield from look()
        values = yield from dispatch(commands.preview(config, after, walk, now=now), OUTDATED)
        if type(values) is Refused:
            yield GetConfig(queue, fresh=True)  # raises where the queue is gone, and deletes one whose lifetime is over
        elif not values.more:
            return UpdateResult(config.options, after, int(values.expired), int(values.trimmed))
        else:
            walk = Walk(*[getattr(values, name) for name in Walk._fields])
