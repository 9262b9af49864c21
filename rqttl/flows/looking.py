"""Flows that read many queues by plain commands. They change nothing, and need no right to run scripts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from rqttl.errors import QueueDamaged, QueueNotFound, RegistryDamaged
from rqttl.flows.numbers import Call, Numbers
from rqttl.flows.records import LIFETIME, STATISTICS, Record
from rqttl.flows.steps import Flow, Read
from rqttl.options import QueueOptions
from rqttl.protocol.keys import Keyspace, queue_names
from rqttl.types import PerQueue, QueueStats

T = TypeVar("T")
Damaged = dict[str, QueueDamaged]
#: The number of queues that three round trips read together.
PAGE = 500
#: The target for the body bytes of one round trip.
BODIES = 2**22


def registered(keyspace: Keyspace) -> Flow[list[str]]:
    """The names in the registry, sorted, also of queues that do not exist any more. Raises `RegistryDamaged`."""
    (members,) = yield Read([("SMEMBERS", keyspace.registry)])
    if isinstance(members, Exception):
        raise RegistryDamaged(keyspace.registry)
    return queue_names(members)


def names(keyspace: Keyspace) -> Flow[list[str]]:
    """The names of all existing queues, sorted. A damaged queue exists. Raises `RegistryDamaged`."""
    existing: list[str] = []
    for page in _pages((yield from registered(keyspace))):
        damaged: Damaged = {}
        _, records = yield from _existing(keyspace, page, LIFETIME, damaged)
        existing += [name for name in page if name in records or name in damaged]
    return existing


def options_of(keyspace: Keyspace, queues: Sequence[str], *, declared: bool = False) -> Flow[PerQueue[QueueOptions]]:
    """The options in force of each queue, or those that were `declared`."""
    field = "declared" if declared else "options"
    options: PerQueue[QueueOptions] = PerQueue()
    for page in _pages(queues):
        _, records = yield from _existing(keyspace, page, (*LIFETIME, field), options.damaged)
        options |= _sound(records, lambda record: _options(record, field), options.damaged)
    return options


def options(keyspace: Keyspace, queue: str, *, declared: bool = False) -> Flow[QueueOptions]:
    """The options of one queue. Raises `QueueNotFound`, `QueueDamaged`."""
    return (yield from only(queue, options_of(keyspace, [queue], declared=declared)))


def _options(record: Record, field: str) -> QueueOptions:
    return QueueOptions.from_json(record.queue, record.text(field))


class StatsAndRecord(NamedTuple):
    """The statistics of a queue, without a sweep, and the record from which they come."""

    stats: QueueStats
    record: Record


def look(keyspace: Keyspace, queues: Sequence[str], *, ends: bool = False) -> Flow[PerQueue[QueueStats]]:
    """Statistics of each queue, without a sweep. `ends` adds the ends of the next lease and of the next delay."""
    looks = yield from look_closely(keyspace, queues, (), ends=ends)
    return PerQueue({name: look.stats for name, look in looks.items()}, looks.damaged)


def look_closely(
    keyspace: Keyspace, queues: Sequence[str], fields: Sequence[str], *, ends: bool = False
) -> Flow[PerQueue[StatsAndRecord]]:
    """Statistics of each queue as in `look`, and its record with further `fields`. They cost no further command."""
    looks: PerQueue[StatsAndRecord] = PerQueue()
    for page in _pages(queues):
        now, records = yield from _existing(keyspace, page, (*STATISTICS, *fields), looks.damaged)
        numbers = _sound(records, lambda record: Numbers(keyspace, record, now), looks.damaged)  # noqa: B023  # used at once
        counts = yield from _ask({name: tally.ask_counts() for name, tally in numbers.items()}, looks.damaged)
        for name, answers in counts.items():
            numbers[name].count(answers)
        for group in _groups([numbers[name] for name in counts]):
            heads = yield from _ask({tally.queue: tally.ask_heads(ends=ends) for tally in group}, looks.damaged)
            for name, answers in heads.items():
                numbers[name].heads = answers
                looks[name] = StatsAndRecord(numbers[name].statistics(ends=ends), records[name])
    return looks


def only(queue: str, flow: Flow[PerQueue[T]]) -> Flow[T]:
    """The answer for one queue, from a flow for many. Raises `QueueNotFound`, `QueueDamaged`."""
    result = yield from flow
    if queue in result.damaged:
        raise result.damaged[queue]
    if queue not in result:
        raise QueueNotFound(queue)
    return result[queue]


def _pages(queues: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(queues), PAGE):
        yield queues[start : start + PAGE]


def _groups(numbers: Sequence[Numbers]) -> Iterator[list[Numbers]]:
    """Groups of queues. One round trip reads the oldest messages of a group."""
    group: list[Numbers] = []
    weight = 0
    for tally in numbers:
        if group and weight + tally.weight > BODIES:
            yield group
            group, weight = [], 0
        group.append(tally)
        weight += tally.weight
    if group:
        yield group


def _sound(records: Mapping[str, Record], read: Callable[[Record], T], damaged: Damaged) -> dict[str, T]:
    """Read each record. A damaged record goes into `damaged`."""
    values = {}
    for name, record in records.items():
        try:
            values[name] = read(record)
        except QueueDamaged as error:
            damaged[name] = error
    return values


def _existing(
    keyspace: Keyspace, queues: Sequence[str], fields: Sequence[str], damaged: Damaged
) -> Flow[tuple[int, dict[str, Record]]]:
    """The time of Redis in ms, and the records of the existing queues: those whose lifetime is not over."""
    calls: list[Call] = [("HMGET", keyspace.key(queue, "meta"), *fields) for queue in queues]
    time, *replies = yield Read([("TIME",), *calls])
    now = int(time[0]) * 1000 + int(time[1]) // 1000
    records = {}
    for queue, call, reply in zip(queues, calls, replies, strict=True):
        if isinstance(reply, Exception):
            damaged[queue] = _wrong_type(queue, call)
        elif record := Record.read(queue, fields, reply):
            records[queue] = record
    ends = _sound(records, lambda record: record.end, damaged)
    over = {queue for queue, end in ends.items() if end is not None and end <= now and not records[queue].keeps}
    return now, {queue: records[queue] for queue in ends if queue not in over and queue not in damaged}


def _ask(asked: Mapping[str, Mapping[str, Call]], damaged: Damaged) -> Flow[dict[str, dict[str, Any]]]:
    """Run the calls of all queues in one round trip. An answer has the name of its call."""
    calls = [call for questions in asked.values() for call in questions.values()]
    replies = iter((yield Read(calls)) if calls else ())
    answered: dict[str, dict[str, Any]] = {}
    for queue, questions in asked.items():
        answers = {name: next(replies) for name in questions}
        wrong = [name for name, answer in answers.items() if isinstance(answer, Exception)]
        if wrong:
            damaged[queue] = _wrong_type(queue, questions[wrong[0]])
        else:
            answered[queue] = answers
    return answered


def _wrong_type(queue: str, call: Call) -> QueueDamaged:
    return QueueDamaged(queue, f"the key {call[1]!s} has another type than rqttl gave it")
