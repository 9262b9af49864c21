"""Flows that sweep queues and then read their statistics, by a script for each queue."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from rqttl.errors import QueueDamaged
from rqttl.flows.records import Record
from rqttl.flows.steps import SWEEPS, Flow, Follow, Together, fenced
from rqttl.options import QueueOptions
from rqttl.protocol import commands
from rqttl.protocol.commands import Known, Reply, Word
from rqttl.protocol.keys import Keyspace
from rqttl.types import PerQueue, QueueStats
from rqttl.units import as_datetime

#: Queues whose statistics are asked for in one round trip.
TOGETHER = 100
#: Words of a reply of stats.lua. Lua ends a reply at the first value that is nil.
WORDS = 13
NO_NUMBER = "a field of its record is missing or is no number"


def stats(queue: str, *, now: Word = "") -> Flow[QueueStats]:
    """Statistics of a queue, after a sweep."""
    first = reply = _whole(queue, (yield from fenced(queue, lambda known: commands.stats(known, now=now))))
    for _ in range(SWEEPS - 1):
        if not reply[2]:
            break
        reply = _whole(queue, (yield from fenced(queue, lambda known: commands.stats(known, now=now))))
    return _statistics(queue, reply, first[9])


def _whole(queue: str, reply: Reply) -> Reply:
    """The reply of stats.lua. A number that its record lacks ends the reply early: raises `QueueDamaged`."""
    if len(reply) < WORDS:
        raise QueueDamaged(queue, NO_NUMBER)
    return reply


def stats_of(keyspace: Keyspace, queues: Sequence[str], *, now: Word = "") -> Flow[PerQueue[QueueStats]]:
    """Statistics of each queue, after a sweep, in few round trips."""
    found: PerQueue[QueueStats] = PerQueue()
    for start in range(0, len(queues), TOGETHER):
        names = queues[start : start + TOGETHER]
        swept = _Swept()
        left = list(names)
        for _ in range(SWEEPS):
            left = yield from swept.sweep(keyspace, left, now)
            if not left:
                break
        found |= {name: swept.statistics(name) for name in names if name in swept.lasts}
        found.damaged |= swept.damaged
    return found


class _Swept:
    """The first and the last reply of each queue of a page, while it is swept."""

    def __init__(self) -> None:
        self.firsts: dict[str, Reply] = {}
        self.lasts: dict[str, Reply] = {}
        self.damaged: dict[str, QueueDamaged] = {}

    def sweep(self, keyspace: Keyspace, queues: Sequence[str], now: Word) -> Flow[list[str]]:
        """One bounded step in each queue. Returns those that changed meanwhile, or in which more is due."""
        there: list[Known] = []
        looks = yield Together([commands.lookup(keyspace, name) for name in queues], tolerant=True)
        for name, look in zip(queues, looks, strict=True):
            self.lasts.pop(name, None)  # deleted meanwhile, or asked again
            if isinstance(look, Exception):
                self.damaged[name] = _damage(name, look)
            elif look[0] == b"ok":
                there.append(Known(keyspace, name, look[2], QueueOptions.from_json(name, look[3])))
        left = []
        replies = (yield Together([commands.stats(known, now=now) for known in there], tolerant=True)) if there else []
        for known, reply in zip(there, replies, strict=True):
            if isinstance(reply, Exception):
                self.damaged[known.name] = _damage(known.name, reply)
                continue
            if reply[0] == b"ok" and len(reply) < WORDS:
                self.damaged[known.name] = QueueDamaged(known.name, NO_NUMBER)
                continue
            if reply[0] == b"ok":
                self.firsts.setdefault(known.name, reply)
                self.lasts[known.name] = reply
                if reply[1]:
                    yield Follow(reply[1])
            if reply[0] != b"ok" or reply[2]:
                left.append(known.name)
        return left

    def statistics(self, name: str) -> QueueStats:
        """The newest numbers, and for how long due work had waited before the first sweep."""
        return _statistics(name, self.lasts[name], self.firsts[name][9])


def _damage(queue: str, error: Exception) -> QueueDamaged:
    return QueueDamaged(queue, f"a script met a key of another type, or a record that lacks a field ({error})")


def _statistics(queue: str, reply: Reply, overdue: int) -> QueueStats:
    _, _, _, ready, size, leased, delayed, oldest, consumers, _, lease_end, delay_end, fields = reply
    record = Record(queue, {name.decode(): value for name, value in zip(fields[::2], fields[1::2], strict=True)})
    return QueueStats(
        ready=ready,
        ready_bytes=size if isinstance(size, int) else int(size),
        leased=leased,
        delayed=delayed,
        oldest_ready_age=timedelta(milliseconds=max(0, oldest)) if isinstance(oldest, int) else None,
        consumers=consumers,
        **record.totals(),
        overdue=timedelta(milliseconds=overdue),
        next_lease_end=as_datetime(lease_end) if lease_end else None,
        next_delay_end=as_datetime(delay_end) if delay_end else None,
    )
