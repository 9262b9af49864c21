"""One command for each of many queues in one round trip, and the damage that a command met.

A damaged queue does not keep the others waiting.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from rqttl.errors import QueueDamaged
from rqttl.flows.steps import Flow, Pipeline, Read, dispatch
from rqttl.protocol.commands import Command, Ok, Refused
from rqttl.protocol.contract import IncompleteReply
from rqttl.protocol.keys import PARTS

NO_NUMBER = "a field of its record is missing or is no number"


def in_one_round_trip(
    calls: Sequence[Command], answered: Container[str], damaged: dict[str, QueueDamaged]
) -> Flow[dict[str, Ok | Refused]]:
    """Run a command for each queue in one round trip. Returns the answers by queue; `damaged` gets the other queues."""
    replies = (yield Pipeline(calls, tolerant=True)) if calls else ()
    answers: dict[str, Ok | Refused] = {}
    for command, reply in zip(calls, replies, strict=True):
        if isinstance(reply, Exception):
            damaged[command.queue] = yield from damage(command, reply)
            continue
        try:
            answers[command.queue] = yield from dispatch(command, answered, reply)
        except IncompleteReply:
            damaged[command.queue] = QueueDamaged(command.queue, NO_NUMBER)
    return answers


def damage(command: Command, error: Exception) -> Flow[QueueDamaged]:
    """The damage that a script met: which key of a command has another type, or that the record lacks a field."""
    keys = [str(key) for key in command.words[1 : 1 + int(command.words[0])]]
    kinds: list[bytes | Exception] = yield Read([("TYPE", key) for key in keys], keep_errors=True)
    for key, kind in zip(keys, kinds, strict=True):
        part = PARTS.get(key.rpartition(":")[2])
        if part and isinstance(kind, bytes) and kind.decode() not in ("none", part.type):
            text = (
                f"the key {key} is a {kind.decode()} and should be a {part.type}: look at it, then rename or delete it"
            )
            return QueueDamaged(command.queue, text)
    return QueueDamaged(command.queue, f"a script met a record that lacks a field ({error})")
