"""Flows that look at many queues by plain reads of Redis: they change nothing, and need no right to run scripts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from rqttl.errors import QueueDamaged, QueueNotFound, RegistryDamaged
from rqttl.flows.numbers import Call, Numbers
from rqttl.flows.records import LIFETIME, STATISTICS, Record
from rqttl.flows.steps import Flow, Read
from rqttl.options import QueueOptions
from rqttl.protocol.keys import Keyspace, queue_names
from rqttl.types import PerQueue, QueueStats

T = TypeVar("T")
Damaged = dict[str, QueueDamaged]
#: Queues that are looked at together, in three round trips.
PAGE = 500
#: Body bytes that one round trip should bring at most.
BODIES = 2**22


def names(keyspace: Keyspace) -> Flow[list[str]]:
    """The names of all queues that are there, sorted. A damaged queue is there. Raises `RegistryDamaged`."""
    (members,) = yield Read([("SMEMBERS", keyspace.registry)])
    if isinstance(members, Exception):
        raise RegistryDamaged(keyspace.registry)
    found: list[str] = []
    for page in _pages(queue_names(members)):
        damaged: Damaged = {}
        _, there = yield from _existing(keyspace, page, LIFETIME, damaged)
        found += [name for name in page if name in there or name in damaged]
    return found


def options_of(keyspace: Keyspace, queues: Sequence[str]) -> Flow[PerQueue[QueueOptions]]:
    """The options of each queue."""
    found: PerQueue[QueueOptions] = PerQueue()
    for page in _pages(queues):
        _, there = yield from _existing(keyspace, page, (*LIFETIME, "options"), found.damaged)
        found |= _sound(there, _options, found.damaged)
    return found


def options(keyspace: Keyspace, queue: str) -> Flow[QueueOptions]:
    """The options of one queue. Raises `QueueNotFound`, `QueueDamaged`."""
    return (yield from only(queue, options_of(keyspace, [queue])))


def _options(record: Record) -> QueueOptions:
    try:
        return QueueOptions.from_json(record.queue, record.text("options"))
    except ValueError:
        raise QueueDamaged(record.queue, "the field given of its record holds no options") from None


def look(keyspace: Keyspace, queues: Sequence[str], *, ends: bool = False) -> Flow[PerQueue[QueueStats]]:
    """Statistics of each queue, without a sweep. `ends`: with the ends of the next lease and the next delay."""
    found: PerQueue[QueueStats] = PerQueue()
    for page in _pages(queues):
        now, there = yield from _existing(keyspace, page, STATISTICS, found.damaged)
        numbers = _sound(there, lambda record: Numbers(keyspace, record, now), found.damaged)  # noqa: B023  # used at once
        counts = yield from _ask({name: one.ask_counts() for name, one in numbers.items()}, found.damaged)
        for name, answers in counts.items():
            numbers[name].counts = answers
        for some in _groups([numbers[name] for name in counts]):
            heads = yield from _ask({one.queue: one.ask_heads(ends=ends) for one in some}, found.damaged)
            for name, answers in heads.items():
                numbers[name].heads = answers
                found[name] = numbers[name].statistics(ends=ends)
    return found


def only(queue: str, looked: Flow[PerQueue[T]]) -> Flow[T]:
    """The answer of a look at one queue. Raises `QueueNotFound`, `QueueDamaged`."""
    found = yield from looked
    if queue in found.damaged:
        raise found.damaged[queue]
    if queue not in found:
        raise QueueNotFound(queue)
    return found[queue]


def _pages(queues: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(queues), PAGE):
        yield queues[start : start + PAGE]


def _groups(numbers: Sequence[Numbers]) -> Iterator[list[Numbers]]:
    """Queues whose oldest messages may come in one reply."""
    group: list[Numbers] = []
    weight = 0
    for one in numbers:
        if group and weight + one.weight > BODIES:
            yield group
            group, weight = [], 0
        group.append(one)
        weight += one.weight
    if group:
        yield group


def _sound(records: Mapping[str, Record], read: Callable[[Record], T], damaged: Damaged) -> dict[str, T]:
    """Read each record. One that is no record of a queue goes into `damaged`."""
    found = {}
    for name, record in records.items():
        try:
            found[name] = read(record)
        except QueueDamaged as error:
            damaged[name] = error
    return found


def _existing(
    keyspace: Keyspace, queues: Sequence[str], fields: Sequence[str], damaged: Damaged
) -> Flow[tuple[int, dict[str, Record]]]:
    """The time of Redis in ms, and the records of the queues that are there: their lifetime is not over."""
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
    """Ask each queue its questions, all in one round trip. Answers have the names of their questions."""
    calls = [call for questions in asked.values() for call in questions.values()]
    replies = iter((yield Read(calls)) if calls else ())
    found: dict[str, dict[str, Any]] = {}
    for queue, questions in asked.items():
        answers = {name: next(replies) for name in questions}
        wrong = [name for name, answer in answers.items() if isinstance(answer, Exception)]
        if wrong:
            damaged[queue] = _wrong_type(queue, questions[wrong[0]])
        else:
            found[queue] = answers
    return found


def _wrong_type(queue: str, call: Call) -> QueueDamaged:
    return QueueDamaged(queue, f"the key {call[1]!s} has another type than rqttl gave it")
