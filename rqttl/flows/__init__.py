"""Operations of more than one step, as generators that yield what is to be done. No I/O here."""

from rqttl.flows.messages import PERIOD, Claimed, claim, enqueue, receive, receive_nothing, settle
from rqttl.flows.queues import declare, delete, known_options, peek, purge, stats, update
from rqttl.flows.steps import (
    SWEEPS,
    Clock,
    Enter,
    Flow,
    Listen,
    Look,
    Step,
    Together,
    fenced,
    follow,
    plain,
    refused,
    sweep,
)

__all__ = [
    "PERIOD",
    "SWEEPS",
    "Claimed",
    "Clock",
    "Enter",
    "Flow",
    "Listen",
    "Look",
    "Step",
    "Together",
    "claim",
    "declare",
    "delete",
    "enqueue",
    "fenced",
    "follow",
    "known_options",
    "peek",
    "plain",
    "purge",
    "receive",
    "receive_nothing",
    "refused",
    "settle",
    "stats",
    "sweep",
    "update",
]
