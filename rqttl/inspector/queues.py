"""Queues by name or pattern, and their statistics: at one time, over time, added up, and as JSON."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from rqttl import text
from rqttl.checks import is_pattern
from rqttl.errors import QueueNotFound, QueuesAway
from rqttl.filters import SUBJECT, Rule
from rqttl.options import OPTIONS, REASONS, QueueOptions
from rqttl.policies import Explanation
from rqttl.policies.policy import DECLARED
from rqttl.types import ConsumerInfo, MessageView, QueueStats, State
from rqttl.units import as_size

if TYPE_CHECKING:
    from rqttl.broker import Broker
    from rqttl.queue import Queue

T = TypeVar("T")


def plain_names(patterns: Sequence[str]) -> list[str]:
    """The names among names and patterns, each once."""
    return [text for text in dict.fromkeys(patterns) if not is_pattern(text)]


def select_names(broker: Broker, patterns: Sequence[str]) -> list[str]:
    """All plain names, also of missing queues, then the queues that match a pattern. Without patterns, all queues."""
    names = plain_names(patterns)
    if patterns and len(names) == len(set(patterns)):
        return names
    matches = [name for name in broker.queues() if not patterns or any(fnmatchcase(name, text) for text in patterns)]
    return list(dict.fromkeys([*names, *matches]))


def existing_names(broker: Broker, patterns: Sequence[str]) -> list[str]:
    """The names of existing queues that match, sorted.

    Raises `QueueNotFound` for a plain name without a queue, and `InvalidName`.
    """
    names = sorted(select_names(broker, patterns))
    plain = plain_names(patterns)
    existing = set(broker.queues()) if plain else ()
    for name in plain:
        if name not in existing:
            raise QueueNotFound(broker.queue(name).name)
    return names


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The queues at one time. `reapers` is the number that runs, `None` if the user may not ask for it.

    `away` is the error for queues whose node does not answer. `kinds` is that of topics and their like.
    """

    at: datetime
    queues: Mapping[str, QueueStats]
    reapers: int | None = None
    away: QueuesAway | None = None
    kinds: Mapping[str, str] = field(default_factory=dict)


def take_snapshot(broker: Broker, patterns: Sequence[str]) -> Snapshot:
    """The queues that match, as they are now. A name without a queue is left out. The queues are not swept."""
    at = broker.server_time()
    stats, away = readable(lambda: broker.stats(select_names(broker, patterns), sweep=False))
    return Snapshot(at, stats, running_reapers(broker), away, kinds(broker, stats))


def readable(ask: Callable[[], T]) -> tuple[T, QueuesAway | None]:
    """The answer of a call for many queues; without those that cannot be read, and then with the error for them."""
    try:
        return ask(), None
    except QueuesAway as error:
        return error.found, error


def kinds(broker: Broker, stats: Mapping[str, QueueStats]) -> dict[str, str]:
    """What the queues are whose messages go on to others: `topic`, or `forwards`."""
    names = [name for name, one in stats.items() if one.passes_on]
    options = readable(lambda: broker.options(names))[0] if names else {}
    return {name: "topic" if one.is_topic else "forwards" for name, one in options.items()}


def marked(name: str, stats: QueueStats, kind: str | None = None) -> str:
    """The name of a queue, with what is unusual about it in brackets."""
    marks = ([kind] if kind else []) + ["paused"] * stats.paused
    return f"{name} ({', '.join(marks)})" if marks else name


def running_reapers(broker: Broker) -> int | None:
    """The number of reapers that run; `None` if the user may not ask for it, or the node of the roster is away."""
    return _from_roster(broker, lambda fast: fast.reaper_count())


def living_consumers(broker: Broker, queue: str) -> list[ConsumerInfo] | None:
    """The consumers and workers of a queue that live; `None` as for `running_reapers`."""
    return _from_roster(broker, lambda fast: fast.queue(queue).consumers())


def _from_roster(broker: Broker, ask: Callable[[Broker], T]) -> T | None:
    from redis.exceptions import RedisError  # slow to load, as is the broker

    from rqttl.broker import fail_fast

    try:
        return ask(fail_fast(broker))
    except RedisError:
        return None


def consumer_to_json(consumer: ConsumerInfo) -> dict[str, Any]:
    """All facts of a consumer but the list of its leases, for `text.dump_json`."""
    return {item.name: getattr(consumer, item.name) for item in fields(ConsumerInfo) if item.name != "leases"}


#: The durations among the statistics. In JSON they are milliseconds; of several queues the longest counts.
_DURATIONS = tuple(item.name for item in fields(QueueStats) if "timedelta" in str(item.type))
#: The times among the statistics. Of several queues the earliest counts.
_TIMES = tuple(item.name for item in fields(QueueStats) if "datetime" in str(item.type))


def deaths(stats: QueueStats) -> int:
    """The number of deaths in a queue, for all reasons."""
    return sum(stats.deaths.values())


def outgoing(stats: QueueStats) -> int:
    """The number of dead letters on their way to other slots, for all targets."""
    return sum(stats.outgoing.values())


def to_json(stats: QueueStats) -> dict[str, Any]:
    """All statistics of a queue, for `text.dump_json`. A duration is named `<name>_ms`."""
    document: dict[str, Any] = {}
    for item in fields(QueueStats):
        value = getattr(stats, item.name)
        if item.name in _DURATIONS:
            document[f"{item.name}_ms"] = None if value is None else milliseconds(value)
        else:
            document[item.name] = dict(value) if isinstance(value, Mapping) else value
    return document


def milliseconds(time: timedelta) -> int:
    """A duration in whole milliseconds."""
    return round(time / timedelta(milliseconds=1))


def aggregate(queues: Iterable[QueueStats]) -> QueueStats:
    """Several queues as one: numbers are added up; the longest duration and the earliest time count."""
    every = list(queues)
    totals: dict[str, Any] = {}
    for item in fields(QueueStats):
        values = [value for stats in every if (value := getattr(stats, item.name)) is not None]
        if item.name in _DURATIONS:
            totals[item.name] = max(values, default=None if "None" in str(item.type) else timedelta(0))
        elif item.name in _TIMES:
            totals[item.name] = min(values, default=None)
        elif item.type == "bool":
            totals[item.name] = any(values)
        elif "Mapping" in str(item.type):
            reasons = dict.fromkeys(reason for value in values for reason in value)
            totals[item.name] = {reason: sum(value.get(reason, 0) for value in values) for reason in reasons}
        else:
            totals[item.name] = sum(values)
    return QueueStats(**totals)


#: The number of snapshots whose depths, and whose late work, a trend remembers.
DEPTHS, WAITS = 60, 5
#: Due work is late from this age on. Younger work is no sign of a missing reaper.
LATE = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class Row:
    """A queue, or all queues together. `rates` are per second, `None` without an earlier snapshot."""

    name: str
    stats: QueueStats
    rates: Mapping[str, float] | None = None
    depths: Sequence[int] = ()
    kind: str | None = None


class LateWork(NamedTuple):
    """Due work that no reaper has done. `overdue` is the age of the oldest, `reapers` is `None` if unknown."""

    overdue: timedelta
    reapers: int | None

    @property
    def advice(self) -> str:
        """A line with the age of the oldest due work, and with the thing to do."""
        waits = f"oldest due work waits {text.format_age(self.overdue)}"
        if self.reapers:
            run = "a reaper runs" if self.reapers == 1 else f"{self.reapers} reapers run"
            return f"{run}, but {waits}: look at its log"
        return f"{'no reaper runs' if self.reapers == 0 else 'no reaper?'}: {waits} (`rqttl reaper` does it)"


def sums(rows: Sequence[Row]) -> tuple[QueueStats, dict[str, float] | None]:
    """Statistics and rates of several queues as those of one; the rates are the sums of all known rates."""
    known = [row.rates for row in rows if row.rates]
    totals = {counter: sum(growth[counter] for growth in known) for counter in next(iter(known), ())}
    return aggregate(row.stats for row in rows), totals or None


def counters(stats: QueueStats) -> dict[str, int]:
    """The counters that have rates: arrivals, deliveries, deaths, refusals, and what topics do."""
    return {
        "in": stats.enqueued,
        "out": stats.delivered,
        "acked": stats.acked,
        "expired": stats.deaths.get("expired", 0),
        "dead": deaths(stats),
        "refused": stats.refused,
        "copies": stats.copies,
        "unrouted": stats.unrouted,
    }


def rates(before: QueueStats, now: QueueStats, seconds: float) -> dict[str, float] | None:
    """The growth of each counter per second. `None` if a counter fell: then the queue is a new one of the same name."""
    past, present = counters(before), counters(now)
    if seconds <= 0 or any(present[name] < past[name] for name in present):
        return None
    return {name: (present[name] - past[name]) / seconds for name in present}


def late_work(overdue: Sequence[timedelta], reapers: int | None) -> LateWork | None:
    """Due work that nobody does, as far as the ages of the oldest one in the last snapshots show it.

    Without a reaper one late snapshot is proof. Where a reaper runs, or where that is unknown, most of the last
    `WAITS` must be late.
    """
    late = [age for age in overdue if age >= LATE]
    if reapers == 0:
        return LateWork(overdue[-1], 0) if overdue[-1] >= LATE else None
    return LateWork(max(late), reapers) if len(late) > WAITS // 2 else None


class Trend:
    """The newest snapshot, and its comparison with the earlier ones."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        #: Seconds between the newest snapshot and the one before.
        self.elapsed: float | None = None
        self._rates: dict[str, dict[str, float]] = {}
        self._depths: dict[str, deque[int]] = {}
        self._all_depths: deque[int] = deque(maxlen=DEPTHS)
        self._overdue: deque[timedelta] = deque(maxlen=WAITS)
        self._remember(snapshot)

    def add(self, snapshot: Snapshot) -> None:
        """Compare a new snapshot with the newest one, and replace that."""
        past, self.snapshot = self.snapshot, snapshot
        self.elapsed = (snapshot.at - past.at).total_seconds()
        self._rates = {}
        for name, stats in snapshot.queues.items():
            growth = rates(past.queues[name], stats, self.elapsed) if name in past.queues else None
            if growth is not None:
                self._rates[name] = growth
            elif self.elapsed > 0:  # a clock that stands still or steps back says nothing about the queue
                self._depths.pop(name, None)
        self._remember(snapshot)

    def _remember(self, snapshot: Snapshot) -> None:
        before, self._depths = self._depths, {}
        for name, stats in snapshot.queues.items():
            self._depths[name] = before.get(name, deque(maxlen=DEPTHS))
            self._depths[name].append(stats.depth)
        self._all_depths.append(sum(stats.depth for stats in snapshot.queues.values()))
        self._overdue.append(max((stats.overdue for stats in snapshot.queues.values()), default=timedelta(0)))

    def rows(self) -> list[Row]:
        """The queues, sorted by name."""
        queues, kinds = self.snapshot.queues, self.snapshot.kinds
        return [
            Row(name, queues[name], self._rates.get(name), tuple(self._depths[name]), kinds.get(name))
            for name in sorted(queues)
        ]

    def total(self, name: str) -> Row:
        """All queues together."""
        return Row(name, *sums(self.rows()), tuple(self._all_depths))

    def late_work(self) -> LateWork | None:
        """Due work that nobody does, as far as a trend shows it: see the function of this name."""
        return late_work(self._overdue, self.snapshot.reapers)


#: Counters in the order of a message's life.
COUNTERS = (
    *("cancelled", "activated", "enqueued", "delivered", "redelivered", "acked", "refused", "purged", "redriven"),
    *("copies", "unrouted"),
)
#: The time at which the first message leaves a state, and what happens then, for people.
EVENTS = {
    "leased": ("next_lease_end", "lease ends"),
    "delayed": ("next_delay_end", "ready"),
    "scheduled": ("next_scheduled", "due"),
}


def facts(name: str, stats: QueueStats, explanation: Explanation, now: datetime, *, utc: bool) -> list[tuple[str, str]]:
    """What the statistics of a queue say, for people."""
    time = partial(text.format_time, now=now, utc=utc)
    age = stats.oldest_ready_age
    oldest = f", the oldest from {time(now - age)}" if age is not None else ""
    pairs = [("queue", name)]
    if stats.paused:
        source, effect = explanation["paused"].source, "messages wait" if stats.passes_on else "consumers get nothing"
        pairs.append(("paused", f"{effect}{'' if source == DECLARED else f' ({source})'}"))
    pairs += [("ready", f"{text.format_count(stats.ready)} ({as_size(stats.ready_bytes)}){oldest}")]
    for state, (end, event) in EVENTS.items():
        n, at = getattr(stats, state), getattr(stats, end)
        first = f", the first {event} {time(at)}" if at else ""
        if n or (state != "scheduled" and not stats.passes_on):
            most = explanation["max_leased"].value if state == "leased" else None
            pairs.append((state, f"{text.format_count(n)}{f' of at most {most:,}' if most else ''}{first}"))
    if stats.next_by_rate and stats.next_by_rate > now:
        pairs.append(("next by rate", time(stats.next_by_rate)))
    if stats.overdue:
        pairs.append(("overdue", f"the oldest due work waits {text.format_age(stats.overdue)}"))
    if stats.outgoing:
        counts = [f"{text.plural(n, 'dead letter')} to {target}" for target, n in sorted(stats.outgoing.items())]
        pairs.append(("on their way", ", ".join(counts)))
    if stats.consumers or not stats.passes_on:
        pairs.append(("consumers", text.format_count(stats.consumers)))
    if stats.ends_at:
        pairs.append(("expires", f"{time(stats.ends_at)}, unless it is used"))
    words = {"copies": "copied"}
    totals = [f"{text.format_count(n)} {words.get(one, one)}" for one in COUNTERS if (n := getattr(stats, one))]
    return [*pairs, ("so far", ", ".join(totals) or "-")]


def death_rows(stats: QueueStats, options: QueueOptions) -> list[list[str]]:
    """Each reason of a death, the numbers of those that died and that left no dead letter, and where others go."""
    rows = []
    for reason in REASONS:
        died, dropped = text.format_count(stats.deaths[reason]), text.format_count(stats.dropped[reason])
        rows.append([reason, died, dropped, options.target(reason) or "(dropped)"])
    if stats.dropped["cycle"]:
        rows.append(["cycle", "-", text.format_count(stats.dropped["cycle"]), "(dropped)"])
    return rows


#: Of the consumers of a queue. `in flight` are messages, `oldest` is the one that was taken first.
CONSUMERS = ("role", "program", "host", ">pid", "started", ">prefetch", ">in flight", "oldest")


def consumer_row(consumer: ConsumerInfo, now: datetime, *, utc: bool) -> list[str]:
    """A consumer as a row of `CONSUMERS`."""
    oldest = ""
    if consumer.oldest is not None and consumer.oldest_since is not None:
        since = consumer.oldest_since
        held = f"since {text.format_time(since, now, utc=True)}" if utc else f"for {text.format_age(now - since)}"
        oldest = f"{text.escape(consumer.oldest, 40)}, {held}"
    who = text.escape(consumer.role), text.escape(consumer.program, 40), text.escape(consumer.host), str(consumer.pid)
    counts = map(text.format_count, (consumer.prefetch, consumer.in_flight))
    return [*who, text.format_time(consumer.started, now, utc=utc), *counts, oldest]


def format_filter(rules: list[Rule]) -> str:
    """A filter as it can be given again, if it is not for everything."""
    short = [rule[SUBJECT] if [*rule] == [SUBJECT] and isinstance(rule[SUBJECT], str) else rule for rule in rules]
    if not short:
        return "everything"
    if len(short) > 1 or (isinstance(short[0], str) and short[0].startswith(("{", "["))):
        return text.dump_json(short)
    return text.escape(short[0]) if isinstance(short[0], str) else text.dump_json(short[0])


def option_rows(explanation: Explanation) -> list[tuple[str, str, str]]:
    """The options that are set or not up to date: the name, the value in force, and its source."""
    rows = []
    for name, one in explanation.items():
        value = explanation.outdated.get(name, one.value)
        if one.source != "default" or name in explanation.outdated:
            late = " (not in force yet: a reaper brings it there)" if name in explanation.outdated else ""
            rows.append((name.replace("_", "-"), OPTIONS[name].format(value), f"{one.source}{late}"))  # type: ignore[arg-type]  # the value of an option
    return rows


#: The messages at which each call for a page of them looks at most, and about the most bytes of their bodies.
LOOKS, LOOK_BYTES = (100, 250, 250), 1 << 22


def page_of(queue: Queue, stats: QueueStats, state: State, after: str, size: int = 50) -> tuple[list[MessageView], str]:
    """One page of the messages in a state, and the place where the next one begins, if there is more.

    Messages in other states may stand between them, and bodies may be large. A few calls look at some hundreds, and the
    next page goes on there; `stats` of the queue tell where to end.
    """
    room = max(1, LOOK_BYTES * max(1, stats.ready) // max(1, stats.ready_bytes))
    if state == "scheduled":
        found = queue.peek(size + 1, after or None, state=state) if stats.scheduled else []
        return found[:size], found[size - 1].sequence if len(found) > size else ""
    found, left, total = [], stats.depth - stats.scheduled, None if after else getattr(stats, state)
    for look in LOOKS:
        most = min(look, left, room)
        if most <= 0 or len(found) == total:
            return found, ""
        looked = queue.peek(most, after or None)
        found += [message for message in looked if message.state == state]
        if len(found) > size:
            return found[:size], found[size - 1].sequence
        if len(looked) < most:
            return found, ""
        left, after = left - len(looked), looked[-1].sequence
    return found, after if left and len(found) != total else ""
