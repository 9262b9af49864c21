"""One command for each of many queues in one round trip. A damaged queue does not keep the others waiting."""

from __future__ import annotations

from collections.abc import Container, Sequence

from rqttl.errors import QueueDamaged
from rqttl.flows.steps import Flow, Pipeline, dispatch
from rqttl.protocol.commands import Command, Ok, Refused
from rqttl.protocol.contract import IncompleteReply

NO_NUMBER = "a field of its record is missing or is no number"


def in_one_round_trip(
    calls: Sequence[Command], answered: Container[str], damaged: dict[str, QueueDamaged]
) -> Flow[dict[str, Ok | Refused]]:
    """Run a command for each queue in one round trip. Returns the answers by queue; `damaged` gets the other queues."""
    replies = (yield Pipeline(calls, tolerant=True)) if calls else ()
    answers: dict[str, Ok | Refused] = {}
    for command, reply in zip(calls, replies, strict=True):
        if isinstance(reply, Exception):
            text = f"a script met a key of another type, or a record that lacks a field ({reply})"
            damaged[command.queue] = QueueDamaged(command.queue, text)
            continue
        try:
            answers[command.queue] = yield from dispatch(command, answered, reply)
        except IncompleteReply:
            damaged[command.queue] = QueueDamaged(command.queue, NO_NUMBER)
    return answers
