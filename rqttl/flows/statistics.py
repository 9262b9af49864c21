"""Flows that sweep queues and then read their statistics. One script call does both for one queue."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from rqttl.errors import QueueDamaged
from rqttl.flows.many import NO_NUMBER, in_one_round_trip
from rqttl.flows.numbers import state_fields
from rqttl.flows.queues import config_if_exists
from rqttl.flows.records import Record
from rqttl.flows.steps import NOT_THERE, OUTDATED, Flow, with_config
from rqttl.flows.sweeping import SWEEPS
from rqttl.protocol import commands
from rqttl.protocol.commands import Ok, QueueConfig, Refused, Word
from rqttl.protocol.contract import IncompleteReply
from rqttl.protocol.keys import STATES, Keyspace
from rqttl.types import PerQueue, QueueStats

#: The number of queues whose statistics one round trip reads.
TOGETHER = 100


def stats(queue: str, *, now: Word = "") -> Flow[QueueStats]:
    """Statistics of a queue, after a sweep."""
    first = values = yield from _ask(queue, now)
    for _ in range(SWEEPS - 1):
        if not values.more:
            break
        values = yield from _ask(queue, now)
    return _statistics(queue, values, first.overdue)


def _ask(queue: str, now: Word) -> Flow[Ok]:
    """Run stats.lua. Raises `QueueDamaged` for an incomplete reply: a number that the record lacks ends it early."""
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
    """The first and the last reply of each queue of a page during its sweep."""

    def __init__(self) -> None:
        self.firsts: dict[str, Ok] = {}
        self.lasts: dict[str, Ok] = {}
        self.damaged: dict[str, QueueDamaged] = {}

    def sweep(self, keyspace: Keyspace, queues: Sequence[str], now: Word) -> Flow[list[str]]:
        """Sweep each queue by one bounded step. Returns the queues that need a further step.

        More work is due in these queues, or their options changed meanwhile.
        """
        for name in queues:
            self.lasts.pop(name, None)  # an earlier reply does not count if the queue was deleted since
        lookups = [commands.lookup(keyspace, name) for name in queues]
        looks = yield from in_one_round_trip(lookups, NOT_THERE, self.damaged)
        configs: list[QueueConfig] = []
        for name, look in looks.items():
            if type(look) is not Refused:
                configs.append(
                    QueueConfig.read(keyspace, name, look.version, look.options, look.declared, look.policies)
                )
            elif look.code == "queue_expired" and (config := (yield from config_if_exists(keyspace, name))):
                configs.append(config)  # it lives on, because it keeps messages
        calls = [commands.stats(config, now=now) for config in configs]
        answers = yield from in_one_round_trip(calls, OUTDATED, self.damaged)
        left = []
        for name, answer in answers.items():
            if type(answer) is not Refused:
                self.firsts.setdefault(name, answer)
                self.lasts[name] = answer
            if type(answer) is Refused or answer.more:
                left.append(name)
        return left

    def statistics(self, name: str) -> QueueStats:
        """The newest numbers of a queue, with the age of its due work before the first step."""
        return _statistics(name, self.lasts[name], self.firsts[name].overdue)


def _statistics(queue: str, values: Ok, overdue: int) -> QueueStats:
    names, fields = values.counters[::2], values.counters[1::2]
    record = Record(queue, {name.decode(): value for name, value in zip(names, fields, strict=True)})
    counts = dict(zip(STATES, values.states, strict=False))
    scores = zip(STATES.items(), values.states[len(STATES) :], strict=True)
    ends = {part: int(float(score)) // state.per_ms for (part, state), score in scores if score}
    return QueueStats(
        ready=values.ready,
        ready_bytes=values.bytes if isinstance(values.bytes, int) else int(values.bytes),
        oldest_ready_age=timedelta(milliseconds=max(0, values.oldest)) if isinstance(values.oldest, int) else None,
        consumers=values.consumers,
        **record.totals(),
        overdue=timedelta(milliseconds=overdue),
        **state_fields(counts, ends),
    )
