"""Flows about the server: its clock, and the reapers that listen."""

from __future__ import annotations

from rqttl.flows.steps import Flow, execute
from rqttl.protocol import replies
from rqttl.protocol.keys import Keyspace
from rqttl.units import Ms


def server_time() -> Flow[Ms]:
    """The time by the clock of Redis."""
    seconds, micros = yield from execute(replies.moment, "TIME")
    return Ms(seconds * 1000 + micros // 1000)


def reaper_count(keyspace: Keyspace) -> Flow[int]:
    """The number of reapers that listen for due work."""
    channel = keyspace.due_channel
    counts = yield from execute(replies.pairs, "PUBSUB", "NUMSUB", channel)
    return int(counts[channel.encode()])
