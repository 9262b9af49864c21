"""Flows that read options and statistics of queues, by plain commands or by a script that sweeps first."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple, TypeVar

from rqttl import checks
from rqttl.checks import check_queue_name
from rqttl.errors import DataDamaged, QueueForwards, QueueNotFound, QueuesAway
from rqttl.flows.moving import by_target
from rqttl.flows.registry import registered
from rqttl.flows.steps import NOT_THERE, OUTDATED, Flow, Read, partly, server_time, with_config
from rqttl.flows.sweeping import SWEEPS, config_if_exists
from rqttl.options import REASONS, QueueOptions
from rqttl.protocol import commands
from rqttl.protocol.commands import Ok, QueueConfig, Refused, Word
from rqttl.protocol.keys import INSIDE, OUTGOING, SCHEDULED, STATES, Keyspace
from rqttl.text import format_time, plural
from rqttl.types import QueueStats
from rqttl.units import as_datetime

COUNTERS = (
    *("enqueued", "delivered", "redelivered", "acked", "refused", "purged", "redriven", "activated", "cancelled"),
    *("copies", "unrouted"),
)
_DEATHS = {reason: f"deaths:{reason}" for reason in REASONS}
_DROPPED = {reason: f"dropped:{reason}" for reason in (*REASONS, "cycle")}
#: Pairs of a field with the start of a lifetime, and the option with its length.
_LIVES = (("last_used_at", "expires"), ("last_active_at", "auto_delete_on_idle"))
#: The fields that show the existence of the queue and its end.
LIFETIME = ("version", *[field for life in _LIVES for field in life], "on_expire", "emptied_last_id", "last_id")
_STORED = ("ready_bytes", "due_at", "cursor", "lease_grants", "arrival_at", "compacted", "message_ttl", "outgoing_at")
_CONTROLS = ("paused", "passes_on", "rate", "burst", "rate_next")
#: The fields that statistics need.
STATISTICS = (*LIFETIME, *_STORED, *_CONTROLS, *COUNTERS, *_DEATHS.values(), *_DROPPED.values())


@dataclass(frozen=True, slots=True)
class Record:
    """The fields of a record that are set."""

    queue: str
    fields: Mapping[str, bytes]

    def text(self, name: str) -> str:
        """The text of a field that every record has. Raises `DataDamaged` if it is missing."""
        if name not in self.fields:
            raise DataDamaged(self.queue, f"its record lacks the field {name}")
        return self.fields[name].decode("utf-8", "backslashreplace")

    def number(self, name: str) -> int:
        """The number in a field, 0 if the field is not set. Raises `DataDamaged` if the field holds no number."""
        value = self.fields.get(name, b"0")
        try:
            return int(value or 0)
        except ValueError:
            text = value[:40].decode("utf-8", "backslashreplace")
            raise DataDamaged(self.queue, f"the field {name} of its record is not a number: {text!r}") from None

    @property
    def end(self) -> int | None:
        """The end of the lifetime of the queue, in ms; `None` for a queue without a lifetime."""
        ends = [self.number(since) + self.number(time) for since, time in _LIVES if time in self.fields]
        return min(ends, default=None)

    @property
    def sends(self) -> bool:
        """True if dead letters are on their way to queues in other slots."""
        return bool(self.fields.get("outgoing_at"))

    def lives(self, now: int) -> bool:
        """True if its lifetime is not over, or `on_expire=keep` extends it: messages came after its last end."""
        emptied = self.fields.get("emptied_last_id", b"0-0")
        keeps = self.fields.get("on_expire") == b"keep" and self.fields.get("last_id") != emptied
        return keeps or self.end is None or self.end > now

    def totals(self) -> dict[str, Any]:
        """The fields of `QueueStats` that follow from the record alone."""
        end = self.end
        return {
            **{name: self.number(name) for name in COUNTERS},
            "deaths": {reason: self.number(field) for reason, field in _DEATHS.items()},
            "dropped": {reason: self.number(field) for reason, field in _DROPPED.items()},
            "ends_at": None if end is None else as_datetime(end),
            "paused": "paused" in self.fields,
            "passes_on": "passes_on" in self.fields,
            "next_by_rate": self._next_by_rate(),
        }

    def _next_by_rate(self) -> datetime | None:
        """The time from which the rate lets the next message go: see lua/lib/delivering/control.lua."""
        rate, next_at = (re.fullmatch(rb"(\d+)[/ ](\d+)", self.fields.get(name, b"")) for name in ("rate", "rate_next"))
        if not rate or not next_at:
            return None
        n, per = int(rate[1]), int(rate[2])
        burst = self.number("burst") or max(1, n * 1000 // per)
        return as_datetime(max(0, -(-(int(next_at[1]) * n + int(next_at[2]) - (burst - 1) * per) // n)))


Call = tuple[Word, ...]

#: The cursor of a queue before its first delivery: no message is behind it.
_START = "0-0"


def state_fields(counts: Mapping[str, int], ends: Mapping[str, int | None]) -> dict[str, Any]:
    """The fields of `QueueStats` for the states other than ready: the count of each, and its first end in ms."""
    fields: dict[str, Any] = {}
    for part, state in STATES.items():
        fields[state.name], end = counts.get(part, 0), ends.get(part)
        if state.end:
            fields[state.end] = as_datetime(end) if end is not None else None
    return fields


class Numbers:
    """The numbers of one queue that were read so far. Raises `DataDamaged` if the record is damaged."""

    def __init__(self, keyspace: Keyspace, record: Record, now: int) -> None:
        self._keyspace = keyspace
        self._now = now
        self.queue = record.queue
        self._totals = record.totals()
        self._bytes, self._retention = record.number("ready_bytes"), record.number("message_ttl")
        self._retains = "message_ttl" in record.fields
        self._cursor, self._last = record.text("cursor"), record.text("last_id")
        self._sends = record.sends
        #: The parts of states that a message may be in.
        self._begun = [part for part, state in STATES.items() if record.number(state.begun) > 0]
        self._compacted, self._arrival_at = record.number("compacted") > 0, record.number("arrival_at")
        #: True if work may be overdue. `due_at` is only a lower bound; without it nothing can become due.
        self._suspect = bool(record.fields.get("due_at")) and record.number("due_at") <= now
        self.counts: Mapping[str, int] = {}
        self.outgoing: Mapping[str, int] = {}
        #: Ready messages.
        self.ready = 0
        self.heads: dict[str, Any] = {}

    def ask_counts(self) -> dict[str, Call]:
        """Calls for the numbers of messages and consumers."""
        asked: dict[str, Call] = {
            "log": ("XLEN", self._key("log")),
            "consumers": ("ZCOUNT", self._key("consumers"), f"({self._now}", "+inf"),
        }
        if self._compacted:
            asked["detached"] = ("HLEN", self._key("detached"))
        if self._sends:
            asked[OUTGOING] = ("HGETALL", self._key(OUTGOING))
        return asked | {part: ("ZCARD", self._key(part)) for part in self._begun}

    def count(self, counts: dict[str, Any]) -> None:
        """Take the answers to `ask_counts`. Redis gave one after the other, so their sum may be wrong for a moment."""
        self.outgoing = by_target(self.queue, counts.pop(OUTGOING)) if self._sends else {}
        self.counts = counts
        away = sum([counts.get(part, 0) for part in INSIDE])
        self.ready = max(0, counts["log"] + counts.get("detached", 0) - away)

    def ask_heads(self, *, ends: bool) -> dict[str, Call]:
        """Calls for the oldest ready message; with `ends`, or if work may be overdue, also for the earliest ends."""
        asked: dict[str, Call] = {}
        if self.ready:
            if self._cursor != _START:
                asked["requeued"] = ("ZRANGE", self._key("requeued"), 0, 0)
            if self._last > self._cursor:
                # Redis has no command that gives the id of an entry without its body
                asked["log"] = ("XRANGE", self._key("log"), f"({self._cursor}", "+", "COUNT", 1)
        parts = [part for part in STATES if self.counts.get(part) and (ends or self._suspect)]
        if self.ready and self._suspect:
            parts.append("expiry")
        return asked | {part: ("ZRANGE", self._key(part), 0, 0, "WITHSCORES") for part in parts}

    @property
    def weight(self) -> int:
        """The average size of a ready message, as an estimate for the oldest one."""
        return self._bytes // max(1, self.ready)

    def statistics(self, *, ends: bool) -> QueueStats:
        """The statistics from all answers."""
        first_ends = {part: self._score(part, state.per_ms) for part, state in STATES.items()}
        sequences = [*self.heads.get("requeued", ()), *(sequence for sequence, _ in self.heads.get("log", ()))]
        oldest = min((int(sequence[:13]) for sequence in sequences), default=None)
        kept = oldest + self._retention if oldest is not None and self._retains else None
        work = [*map(first_ends.get, INSIDE), self._score("expiry"), kept]
        if (scheduled := first_ends[SCHEDULED]) is not None:
            work.append(max(scheduled, self._arrival_at))  # a full queue holds it back until then
        dues = [at for at in work if at is not None and at <= self._now]
        return QueueStats(
            ready=self.ready,
            ready_bytes=self._bytes,
            oldest_ready_age=None if oldest is None else timedelta(milliseconds=max(0, self._now - oldest)),
            consumers=self.counts["consumers"],
            **self._totals,
            **state_fields(self.counts, first_ends if ends else {}),
            overdue=timedelta(milliseconds=self._now - min(dues, default=self._now)),
            outgoing=self.outgoing,
        )

    def _score(self, part: str, per_ms: int = 1) -> int | None:
        """The lowest score of a part, in ms. RESP2 gives `[member, score]`, RESP3 a list of such pairs."""
        head = self.heads.get(part)
        if not head:
            return None
        score = head[0][1] if isinstance(head[0], list | tuple) else head[1]
        return int(float(score)) // per_ms

    def _key(self, part: str) -> str:
        return self._keyspace.key(self.queue, part)


T = TypeVar("T")
#: The number of queues that three round trips read together.
PAGE = 500
#: The target for the body bytes of one round trip.
BODIES = 2**22


#: Queues that cannot be read, with the error: their node does not answer, or they are damaged.
Away = dict[str, Exception]


@contextmanager
def _noting_damage(queue: str, away: Away) -> Iterator[None]:
    try:
        yield
    except DataDamaged as error:
        away[queue] = error


def names(keyspace: Keyspace) -> Flow[list[str]]:
    """The names of all existing queues, sorted. A queue whose node is away counts as existing."""
    queues = yield from registered(keyspace)
    away: Away = {}
    found = yield from _all_existing(keyspace, queues, away=away)
    return [queue for queue in queues if queue in found or queue in away]


def _found(found: dict[str, T], away: Away) -> dict[str, T]:
    if away and not found:
        raise next(iter(away.values()))
    if away:
        raise QueuesAway(found, away)
    return found


def read_options(keyspace: Keyspace, queues: Sequence[str], *, declared: bool = False) -> Flow[dict[str, QueueOptions]]:
    """The options in force of each queue, or those that were `declared`."""
    field = "declared" if declared else "options"
    away: Away = {}
    records = yield from _all_existing(keyspace, queues, field, away=away)
    found = {}
    for name, record in records.items():
        with _noting_damage(name, away):
            found[name] = QueueOptions.from_json(name, record.text(field))
    return _found(found, away)


def created(keyspace: Keyspace, queues: Sequence[str], away: Away) -> Flow[list[QueueOptions]]:
    """The declared options of each queue that not only dead letters have to do with: it was declared, or is bound.

    Unreadable ones go to `away`.
    """
    records = yield from _all_existing(keyspace, queues, "declared", "explicit", away=away)
    found: dict[str, QueueOptions] = {}
    for name, record in records.items():
        with _noting_damage(name, away):
            found[name] = QueueOptions.from_json(name, record.text("declared"))
    bound = {queue for options in found.values() for queue in options.bindings or ()}
    return [found[name] for name in found if name in bound or records[name].fields.get("explicit") == b"1"]


def check_existing(keyspace: Keyspace, queues: Sequence[str]) -> Flow[list[QueueForwards]]:
    """Raise `QueueNotFound` if one of the queues does not exist, and the error of a node if the nodes of all are away.

    A queue whose node is away counts as existing while others answer. Returns the errors for those from which nobody
    receives.
    """
    away: Away = {}
    found = yield from _all_existing(keyspace, queues, "passes_on", "options", away=away)
    for queue in queues:
        if queue not in found and queue not in away:
            raise QueueNotFound(queue)
    if not found:
        _found(found, away)
    forwarding = []
    for name, record in found.items():
        if "passes_on" in record.fields:
            try:
                QueueOptions.from_json(name, record.text("options")).check_source()
            except QueueForwards as error:
                forwarding.append(error)
    return forwarding


def options(keyspace: Keyspace, queue: str, *, declared: bool = False) -> Flow[QueueOptions]:
    """See `Queue.options`."""
    return only(queue, read_options(keyspace, [queue], declared=declared))


class StatsAndRecord(NamedTuple):
    """Statistics of a queue, without a sweep, and the record from which they come."""

    stats: QueueStats
    record: Record


def look(keyspace: Keyspace, queues: Sequence[str], *, ends: bool = False) -> Flow[dict[str, QueueStats]]:
    """Statistics of each queue, without a sweep. `ends` adds the ends of the next lease and of the next delay."""
    away: Away = {}
    looks = yield from look_closely(keyspace, queues, (), away, ends=ends)
    return _found({name: look.stats for name, look in looks.items()}, away)


def look_closely(
    keyspace: Keyspace, queues: Sequence[str], fields: Sequence[str], away: Away, *, ends: bool = False
) -> Flow[dict[str, StatsAndRecord]]:
    """Statistics of each queue as in `look`, and its record with further `fields`. They cost no further command.

    The queues of a node that does not answer go to `away`, and damaged ones.
    """
    looks: dict[str, StatsAndRecord] = {}
    for page in _pages(queues):
        records = yield from _existing(keyspace, page, (*STATISTICS, *fields), away)
        numbers = []
        for name, (record, now) in records.items():
            with _noting_damage(name, away):
                numbers.append(Numbers(keyspace, record, now))
        counted = yield from _ask({tally.queue: tally.ask_counts() for tally in numbers}, away)
        for tally in numbers:
            if tally.queue in counted:
                with _noting_damage(tally.queue, away):
                    tally.count(counted[tally.queue])
        for group in _groups([tally for tally in numbers if tally.queue not in away]):
            heads = yield from _ask({tally.queue: tally.ask_heads(ends=ends) for tally in group}, away)
            for tally in group:
                if tally.queue in heads:
                    tally.heads = heads[tally.queue]
                    looks[tally.queue] = StatsAndRecord(tally.statistics(ends=ends), records[tally.queue][0])
    return looks


def held_back(keyspace: Keyspace, queues: Sequence[str]) -> Flow[list[str]]:
    """Say of each queue that holds ready messages back why it does, and when the next one may go."""
    now, told = as_datetime((yield from server_time())), list[str]()
    looks = yield from look_closely(keyspace, queues, ["max_leased"], {}, ends=True)
    for name, (stats, record) in looks.items():
        most = record.number("max_leased")
        if stats.paused:
            why = "paused"
        elif most and stats.leased >= most:
            why = f"at its max_leased of {most}: the next lease ends {format_time(stats.next_lease_end, now)}"
        elif stats.next_by_rate and stats.next_by_rate > now:
            why = f"held by its rate: the next message may go {format_time(stats.next_by_rate, now)}"
        else:
            continue
        if stats.ready:
            told.append(f"{name} has {plural(stats.ready, 'ready message')}, but is {why}")
    return told


def only(queue: str, flow: Flow[dict[str, T]]) -> Flow[T]:
    """The answer for one queue, from a flow for many. Raises `QueueNotFound`."""
    result = yield from flow
    if queue not in result:
        raise QueueNotFound(queue)
    return result[queue]


def _pages(queues: Sequence[str], size: int = PAGE) -> Iterator[Sequence[str]]:
    for start in range(0, len(queues), size):
        yield queues[start : start + size]


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


def _existing(
    keyspace: Keyspace, queues: Sequence[str], fields: Sequence[str], away: Away
) -> Flow[dict[str, tuple[Record, int]]]:
    """The records of the existing queues, those whose lifetime is not over, and the time of each one's node in ms."""
    calls = [("HMGET", keyspace.key(queue, "meta"), *fields) for queue in queues]
    replies, times = yield Read(calls, timed=True, partial=True)
    records = {}
    for queue, reply, now in zip(queues, replies, times, strict=True):
        if isinstance(reply, Exception):
            away[queue] = reply
            continue
        record = Record(queue, {name: value for name, value in zip(fields, reply, strict=True) if value is not None})
        with _noting_damage(queue, away):
            if "version" in record.fields and record.lives(now):
                records[queue] = record, now
    return records


def _all_existing(keyspace: Keyspace, queues: Sequence[str], *fields: str, away: Away) -> Flow[dict[str, Record]]:
    """The records of the existing queues, in pages."""
    found: dict[str, Record] = {}
    for page in _pages(queues):
        records = yield from _existing(keyspace, page, (*LIFETIME, *fields), away)
        found.update((queue, record) for queue, (record, _) in records.items())
    return found


def missing_of(keyspace: Keyspace, queues: Collection[str]) -> Flow[set[str]]:
    """Those of the queues that do not exist, or are at the end of their lifetime. One whose node is away exists."""
    away: Away = {}
    found = yield from _all_existing(keyspace, sorted(queues), away=away)
    return {*queues} - found.keys() - away.keys()


def _ask(asked: Mapping[str, Mapping[str, Call]], away: Away) -> Flow[dict[str, dict[str, Any]]]:
    """Run the calls of all queues in one round trip. An answer has the name of its call."""
    calls = [call for questions in asked.values() for call in questions.values()]
    replies = iter((yield Read(calls, partial=True)) if calls else ())
    answers = {queue: {name: next(replies) for name in questions} for queue, questions in asked.items()}
    for queue, answer in answers.items():
        away.update((queue, reply) for reply in answer.values() if isinstance(reply, Exception))
    return {queue: answer for queue, answer in answers.items() if queue not in away}


#: The number of queues whose statistics one round trip reads.
TOGETHER = 100


def swept_stats(keyspace: Keyspace, queue: str) -> Flow[QueueStats]:
    """Statistics of a queue, after a sweep."""
    first = values = yield from with_config(queue, commands.stats)
    sweeps = 1
    while values.more and sweeps < SWEEPS:
        values, sweeps = (yield from with_config(queue, commands.stats)), sweeps + 1
    away: Away = {}
    return _found((yield from _swept(keyspace, {queue: first}, {queue: values}, away)), away)[queue]


def swept_stats_of(keyspace: Keyspace, queues: Sequence[str]) -> Flow[dict[str, QueueStats]]:
    """Statistics of each queue, after a sweep, in few round trips."""
    statistics: dict[str, QueueStats] = {}
    away: Away = {}
    for page in _pages(queues, TOGETHER):
        firsts: dict[str, Ok] = {}
        lasts: dict[str, Ok] = {}
        left = page
        for _ in range(SWEEPS):
            left = yield from _sweep_once(keyspace, left, firsts, lasts, away)
            if not left:
                break
        found = yield from _swept(keyspace, firsts, lasts, away)
        statistics |= {name: found[name] for name in page if name in found}
    return _found(statistics, away)


def _sweep_once(
    keyspace: Keyspace, queues: Sequence[str], firsts: dict[str, Ok], lasts: dict[str, Ok], away: Away
) -> Flow[list[str]]:
    """Sweep each queue by one bounded step, and note its first and its last answer. Returns those that need another."""
    looks = yield from partly([commands.lookup(keyspace, name) for name in queues], NOT_THERE)
    configs: list[QueueConfig] = []
    for name, look in zip(queues, looks, strict=True):
        lasts.pop(name, None)  # an earlier answer does not count if the queue was deleted since
        if isinstance(look, Exception):
            away[name] = look
        elif type(look) is not Refused:
            with _noting_damage(name, away):
                read = QueueConfig.read(keyspace, name, look.version, look.options, look.declared, look.policies)
                configs.append(read)
        elif look.code == "queue_expired" and (config := (yield from config_if_exists(keyspace, name))):
            configs.append(config)  # it lives on, because it keeps messages
    answers = yield from partly([commands.stats(config) for config in configs], OUTDATED)
    left = []
    for config, answer in zip(configs, answers, strict=True):
        if isinstance(answer, Exception):
            away[config.name] = answer
            lasts.pop(config.name, None)
            continue
        if type(answer) is not Refused:
            firsts.setdefault(config.name, answer)
            lasts[config.name] = answer
        if type(answer) is Refused or answer.more:
            left.append(config.name)
    return left


def _swept(
    keyspace: Keyspace, firsts: Mapping[str, Ok], lasts: Mapping[str, Ok], away: Away
) -> Flow[dict[str, QueueStats]]:
    """Statistics from the first and the last answer of each queue."""
    records = {}
    for queue, values in lasts.items():
        names = (name.decode() for name in values.counters[::2])
        records[queue] = Record(queue, dict(zip(names, values.counters[1::2], strict=True)))
    senders = [queue for queue, record in records.items() if record.sends]
    found = yield from _ask({queue: {OUTGOING: ("HGETALL", keyspace.key(queue, OUTGOING))} for queue in senders}, away)
    statistics = {}
    for queue, record in records.items():
        if queue not in away:
            with _noting_damage(queue, away):
                outgoing = by_target(queue, found[queue][OUTGOING]) if queue in found else {}
                statistics[queue] = _statistics(record, lasts[queue], firsts[queue].overdue, outgoing)
    return statistics


def _statistics(record: Record, values: Ok, overdue: int, outgoing: Mapping[str, int]) -> QueueStats:
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
        outgoing=outgoing,
        **state_fields(counts, ends),
    )


def stats(keyspace: Keyspace, queue: str, *, sweep: bool) -> Flow[QueueStats]:
    """See `Queue.stats`."""
    return swept_stats(keyspace, queue) if sweep else only(queue, look(keyspace, [queue], ends=True))


def stats_of(keyspace: Keyspace, chosen: Iterable[str] | None, *, sweep: bool) -> Flow[dict[str, QueueStats]]:
    """See `Broker.stats`."""
    # a sweep ends queues whose lifetime is over, so they are among them
    queues = yield from registered(keyspace) if chosen is None and sweep else _chosen(keyspace, chosen)
    return (yield from swept_stats_of(keyspace, queues) if sweep else look(keyspace, queues))


def options_of(keyspace: Keyspace, chosen: Iterable[str] | None) -> Flow[dict[str, QueueOptions]]:
    """See `Broker.options`."""
    return (yield from read_options(keyspace, (yield from _chosen(keyspace, chosen))))


def _chosen(keyspace: Keyspace, chosen: Iterable[str] | None) -> Flow[list[str]]:
    """Check names, and return each once; without names, those of all existing queues."""
    if chosen is None:
        return (yield from names(keyspace))
    return list(dict.fromkeys(map(check_queue_name, checks.items(chosen, "names", "names of queues"))))
