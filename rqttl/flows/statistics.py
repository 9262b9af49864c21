"""Flows that sweep queues and then read their statistics, by a script for each queue."""

from __future__ import annotations

from collections.abc import Container, Sequence
from datetime import timedelta

from rqttl.errors import QueueDamaged
from rqttl.flows.records import Record
from rqttl.flows.steps import NOT_THERE, OUTDATED, SWEEPS, Flow, Pipeline, dispatch, with_config
from rqttl.options import QueueOptions
from rqttl.protocol import commands
from rqttl.protocol.commands import Command, Ok, QueueConfig, Refused, Word
from rqttl.protocol.contract import IncompleteReply
from rqttl.protocol.keys import Keyspace
from rqttl.types import PerQueue, QueueStats
from rqttl.units import as_datetime

#: Queues whose statistics are asked for in one round trip.
TOGETHER = 100
NO_NUMBER = "a field of its record is missing or is no number"


def stats(queue: str, *, now: Word = "") -> Flow[QueueStats]:
    """Statistics of a queue, after a sweep."""
    first = values = yield from _ask(queue, now)
    for _ in range(SWEEPS - 1):
        if not values.more:
            break
        values = yield from _ask(queue, now)
    return _statistics(queue, values, first.overdue)


def _ask(queue: str, now: Word) -> Flow[Ok]:
    """Run stats.lua. A number that the record lacks ends its reply early: raises `QueueDamaged`."""
    try:
        return (yield from with_config(queue, lambda config: commands.stats(config, now=now)))
    except IncompleteReply:
        raise QueueDamaged(queue, NO_NUMBER) from None


def stats_of(keyspace: Keyspace, queues: Sequence[str], *, now: Word = "") -> Flow[PerQueue[QueueStats]]:
    """Statistics of each queue, after a sweep, in few round trips."""
    statistics: PerQueue[QueueStats] = PerQueue()
    for start in range(0, len(queues), TOGETHER):
        names = queues[start : start + TOGETHER]
        swept = _SweepOutcome()
        left = list(names)
        for _ in range(SWEEPS):
            left = yield from swept.sweep(keyspace, left, now)
            if not left:
                break
        statistics |= {name: swept.statistics(name) for name in names if name in swept.lasts}
        statistics.damaged |= swept.damaged
    return statistics


class _SweepOutcome:
    """The first and the last reply of each queue of a page, while it is swept."""

    def __init__(self) -> None:
        self.firsts: dict[str, Ok] = {}
        self.lasts: dict[str, Ok] = {}
        self.damaged: dict[str, QueueDamaged] = {}

    def sweep(self, keyspace: Keyspace, queues: Sequence[str], now: Word) -> Flow[list[str]]:
        """One bounded step in each queue. Returns the queues that changed meanwhile, or in which more is due."""
        for name in queues:
            self.lasts.pop(name, None)  # deleted meanwhile, or asked again
        lookups = [commands.lookup(keyspace, name) for name in queues]
        looks = yield from self._in_one_round_trip(lookups, NOT_THERE)
        configs = [
            QueueConfig(keyspace, name, look.version, QueueOptions.from_json(name, look.options))
            for name, look in looks.items()
            if type(look) is not Refused
        ]
        answers = yield from self._in_one_round_trip([commands.stats(config, now=now) for config in configs], OUTDATED)
        left = []
        for name, answer in answers.items():
            if type(answer) is not Refused:
                self.firsts.setdefault(name, answer)
                self.lasts[name] = answer
            if type(answer) is Refused or answer.more:
                left.append(name)
        return left

    def _in_one_round_trip(self, calls: Sequence[Command], answered: Container[str]) -> Flow[dict[str, Ok | Refused]]:
        """Run a command for each queue in one round trip. Damaged queues are noted and left out."""
        replies = (yield Pipeline(calls, tolerant=True)) if calls else ()
        answers: dict[str, Ok | Refused] = {}
        for command, reply in zip(calls, replies, strict=True):
            if isinstance(reply, Exception):
                self.damaged[command.queue] = _damage(command.queue, reply)
                continue
            try:
                answers[command.queue] = yield from dispatch(command, answered, reply)
            except IncompleteReply:
                self.damaged[command.queue] = QueueDamaged(command.queue, NO_NUMBER)
        return answers

    def statistics(self, name: str) -> QueueStats:
        """The newest numbers, and for how long due work had waited before the first sweep."""
        return _statistics(name, self.lasts[name], self.firsts[name].overdue)


def _damage(queue: str, error: Exception) -> QueueDamaged:
    return QueueDamaged(queue, f"a script met a key of another type, or a record that lacks a field ({error})")


def _statistics(queue: str, values: Ok, overdue: int) -> QueueStats:
    names, fields = values.counters[::2], values.counters[1::2]
    record = Record(queue, {name.decode(): value for name, value in zip(names, fields, strict=True)})
    return QueueStats(
        ready=values.ready,
        ready_bytes=values.bytes if isinstance(values.bytes, int) else int(values.bytes),
        leased=values.leased,
        delayed=values.delayed,
        oldest_ready_age=timedelta(milliseconds=max(0, values.oldest)) if isinstance(values.oldest, int) else None,
        consumers=values.consumers,
        **record.totals(),
        overdue=timedelta(milliseconds=overdue),
        next_lease_end=as_datetime(values.lease_end) if values.lease_end else None,
        next_delay_end=as_datetime(values.delay_end) if values.delay_end else None,
    )
