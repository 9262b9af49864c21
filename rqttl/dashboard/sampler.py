"""One reader of counters for all who look: samples of the queues, their orders, and the history of this process."""

from __future__ import annotations

import re
import sys
import threading
import time
from array import array
from bisect import bisect
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from fnmatch import fnmatchcase, translate
from functools import lru_cache, partial
from math import isnan, nan
from operator import attrgetter
from typing import Any, Generic, NamedTuple, TypeVar

from rqttl import outages, text
from rqttl.broker import Broker, fail_fast, registered_names
from rqttl.errors import BrokerClosed, RqttlError
from rqttl.inspector import queues as views
from rqttl.options import REASONS, QueueOptions
from rqttl.types import QueueStats, WorkerInfo

T = TypeVar("T")
#: The queues whose counters a tick reads, and those that have a history: the busiest ones.
MOST, WITH_HISTORY = 1_000, 2_000
#: Seconds between two ticks at least, else so many times what the tick took.
PAUSE, SHARE = 2.0, 20
#: Seconds after which a reply, or a sample that should have come, is missed.
LATE = 2.0
#: Seconds between two readings of many names and of options, and from the last look to the end.
MINUTE, IDLE = 60.0, 3_600.0
#: The names of queues on both sides of a missing one that may be meant.
AROUND = 500
#: A death is new for so long.
NEW = timedelta(minutes=10)
#: The seconds and the number of the slots of a history; depths in messages, the other series per second.
SPANS, SERIES = {"10m": (2, 300), "24h": (300, 288)}, ("depth", "in", "acked", "dead")
#: Equal values are one object: 100,000 queues have few different ones.
_same: Callable[[Any], Any] = lru_cache(1_000)(lambda value: value)
_mapping: Callable[[Any], Any] = lru_cache(1_000)(dict)


@dataclass(frozen=True, slots=True)
class QueueRow(views.Row):
    """A queue, or all together, as it was `at` a time of Redis: see `inspector.queues.Row`.

    `age` is that of its numbers. `died` is the time at which its last deaths were seen, if they are new. `targets` has
    the queue for the dead letters of each of `REASONS`, an empty name where they are dropped.
    """

    at: datetime | None = None
    age: timedelta = timedelta(0)
    died: datetime | None = None
    max_length: int | None = None
    max_length_bytes: int | None = None
    targets: Sequence[str] = ()

    def rate(self, *names: str) -> float:
        """The sum of some rates, 0 if they are unknown."""
        return sum(self.rates[name] for name in names) if self.rates else 0.0

    def full(self) -> bool:
        """True if a limit is reached."""
        pairs = (self.max_length, self.stats.ready), (self.max_length_bytes, self.stats.ready_bytes)
        return any(limit is not None and n >= limit for limit, n in pairs)


#: Orders of queues, the largest first; equal ones by name. The order `name` is there as well.
SORTS: dict[str, Callable[[QueueRow], Any]] = {
    **{name: attrgetter(f"stats.{name}") for name in ("depth", "ready", "leased", "delayed", "scheduled", "overdue")},
    "oldest": lambda row: row.stats.oldest_ready_age or timedelta(0),
    "in": lambda row: row.rate("in"),
    "acked": lambda row: row.rate("acked"),
    "rate": lambda row: row.rate("in", "out"),
    "dead": lambda row: views.deaths(row.stats),
}
#: Orders of those alone that may need attention.
ATTENTION: dict[str, Callable[[QueueRow], Any]] = {
    "paused": lambda row: row.stats.paused and 1 + row.stats.depth,
    "full": lambda row: row.full() and 1 + row.stats.ready,
    "unconsumed": lambda row: not (row.stats.consumers or row.stats.passes_on) and row.stats.ready,
    "dying": lambda row: row.died and row.died.timestamp(),
}


@dataclass(frozen=True)
class Page(Generic[T]):
    """Rows of one page, the number of all rows, and the numbers of the page and of all pages."""

    rows: Sequence[T]
    found: int
    page: int
    pages: int


def paged(every: Sequence[T], page: int, size: int = 50) -> Page[T]:
    """A page of a list. One beyond the last is the last one."""
    pages = max(1, -(-len(every) // size))
    page = min(page, pages)
    return Page(every[(page - 1) * size : page * size], len(every), page, pages)


class Trouble(NamedTuple):
    """What could not be read, and why; `queues` are those that are away."""

    what: str
    text: str
    queues: Sequence[str] = ()


class Points(NamedTuple):
    """A history, the oldest slot first: numbers by series, NaN for a slot that has none. The last slot is now."""

    seconds: int
    series: Mapping[str, Sequence[float]]


class _Ring:
    """The numbers of the last slots of time. A slot with several numbers has their mean."""

    __slots__ = ("_data", "_last", "_times", "seconds", "size")

    def __init__(self, seconds: int, size: int) -> None:
        self.seconds, self.size, self._last, self._times = seconds, size, -1, 0
        self._data = array("f", [nan]) * (size * len(SERIES))

    def put(self, now: float, values: Iterable[float]) -> None:
        slot, width = int(now // self.seconds), len(SERIES)
        for missed in range(max(self._last, slot - self.size) + 1, slot + 1):
            start = missed % self.size * width
            self._data[start : start + width] = array("f", [nan]) * width
        self._times = self._times + 1 if slot == self._last else 1
        for place, value in enumerate(values, slot % self.size * width):
            mean = self._data[place]
            self._data[place] = value if isnan(mean) else mean + (value - mean) / self._times
        self._last = slot

    def points(self, now: float) -> Points:
        slot, width = int(now // self.seconds), len(SERIES)
        oldest, since = (slot + 1) % self.size * width, min(self.size, slot - self._last) * width
        data = self._data[oldest:] + self._data[:oldest]
        data[len(data) - since :] = array("f", [nan]) * since
        return Points(self.seconds, {name: data[i::width] for i, name in enumerate(SERIES)})


@dataclass(frozen=True)
class Sample:
    """The queues at one time; the next sample takes its place. Only its history goes on.

    `at` is the time of Redis at its newest numbers, `None` before the first ones; `taken` and `now` are by the clock of
    the sampler: when those came, and when this sample was made. `number` grows with each sample. `since` is the start
    of the history. `troubles` tell what could not be read: `redis` (nothing), `names`, `stats`, `options`, `roster`.
    `workers` and `reapers` are `None` where the user may not read the roster, or its node is away. `total` is that of a
    whole round: the rates are the sums of the known ones, and `paused` is true if one queue is.
    """

    now: float
    since: float
    number: int = 0
    at: datetime | None = None
    taken: float = 0.0
    names: Sequence[str] = ()
    troubles: Sequence[Trouble] = ()
    workers: Sequence[WorkerInfo] | None = None
    reapers: int | None = None
    late: views.LateWork | None = None
    total: QueueRow = QueueRow("", views.aggregate(()))
    queues: Mapping[str, QueueRow] = field(default_factory=dict)
    orders: Mapping[str, Sequence[str]] = field(default_factory=dict)
    rings: Mapping[str, Mapping[str, _Ring]] = field(default_factory=dict)

    @property
    def trouble(self) -> Trouble | None:
        """Redis does not answer; `None` if it does."""
        return next((one for one in self.troubles if one.what == "redis"), None)

    @property
    def age(self) -> timedelta:
        """The age of the newest numbers."""
        return timedelta(seconds=self.now - self.taken)

    def nearest(self, name: str) -> str | None:
        """The name of a queue that is most like that of a missing one, among those around it."""
        place = bisect(self.names, name)
        around = self.names[max(0, place - AROUND) : place + AROUND]
        return text.nearest(name, [one for one in around if one != name])  # it may just have ended

    def row(self, name: str) -> QueueRow | None:
        """A queue; `None` if there is none of this name, as far as is known."""
        row, points = self.queues.get(name), self.history(name)
        if row is None or row.at is None or self.at is None:
            return None
        depths = [int(n) for n in points.series["depth"] if not isnan(n)] if points else []
        few = depths[:: -1 - len(depths) // 30][::-1]  # a sparkline is small
        return replace(row, depths=few, age=self.at - row.at + self.age)

    def rows(self, sort: str = "name", patterns: Sequence[str] = (), page: int = 1, size: int = 50) -> Page[QueueRow]:
        """A page of the queues that match a pattern or have one of these names, as on the command line.

        `sort` is `name` or one of `SORTS` and `ATTENTION`. A page beyond the last one is the last one.
        """
        names = self.orders.get(sort, ())
        if patterns:
            names = [*filter(re.compile("|".join(map(translate, patterns))).match, names)]
        found = paged(names, page, size)
        return Page([*filter(None, map(self.row, found.rows))], found.found, found.page, found.pages)

    def history(self, name: str = "", span: str = "10m") -> Points | None:
        """The history of a queue, or of all together; `None` for one that is not among the busiest."""
        rings = self.rings.get(name)
        return rings[span].points(self.now) if rings else None


class Sampler:
    """Reads the counters of queues that match a pattern, again and again, into `sample`.

    A program of its own calls `start`; within another one `look` starts it, and an hour after the last look it ends.
    `most` is the number of queues that a tick reads: with more it goes round.
    """

    def __init__(
        self, broker: Broker, pattern: str = "*", *, clock: Callable[[], float] = time.monotonic, most: int = MOST
    ) -> None:
        #: The broker of all who look: it waits for no node that is away, and for one server for a short time.
        self.broker = fail_fast(broker, reply=LATE)
        self._pattern, self._clock, self._most = pattern, clock, most
        self._starting, self._stopped, self._first = threading.Lock(), threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._looked = self._named = float("-inf")
        self._due = clock()
        self._next = self._round = 0
        self._parts: list[QueueRow] = []
        self._overdue: deque[timedelta] = deque(maxlen=views.WAITS)
        self._rings: dict[str, dict[str, _Ring]] = {}
        #: The newest sample.
        self.sample = Sample(clock(), clock(), rings=self._rings)

    def start(self) -> None:
        """Run until `stop`."""
        self._looked = float("inf")
        self.look(0)

    def stop(self) -> None:
        """End after the tick at hand."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()

    def look(self, patience: float = LATE) -> None:
        """Note that somebody looks. The first look waits for the first sample, for up to `patience` seconds.

        If a sample does not come, for a tick may wait for Redis for long, the one at hand says so.
        """
        self._looked = max(self._looked, self._clock())
        with self._starting:
            if self._thread is None or not self._thread.is_alive():
                self._stopped.clear()
                self._first.clear()
                self._due = self._clock()
                self._thread = threading.Thread(target=self._run, name="rqttl-dashboard", daemon=True)
                self._thread.start()
        self._first.wait(patience)
        with self._starting:
            if self._clock() - self._due >= LATE:
                self._miss("no answer yet")

    def _miss(self, why: str) -> None:
        """Say that no newer sample comes, and how old this one is."""
        old = self.sample
        trouble = old.trouble or Trouble("redis", why)
        self.sample = replace(old, number=old.number + 1, now=self._clock(), troubles=[trouble])

    def _run(self) -> None:
        pause = 0.0
        try:
            while not self._stopped.wait(pause) and self._clock() - self._looked < IDLE:
                pause = self.tick()
        except BrokerClosed as error:
            self._miss(str(error))
            self._first.set()

    def tick(self) -> float:
        """Take the next sample. Returns the seconds until the one after it."""
        began = self._clock()
        sample, ended = self._take(self.sample, began), self._clock()
        # a wait for what is away is no work
        waited = any(one.queues or one.what == "redis" for one in sample.troubles)
        pause = PAUSE if waited else max(PAUSE, SHARE * (ended - began))
        with self._starting:
            self.sample, self._due = sample, ended + pause
        self._first.set()
        return pause

    def _take(self, old: Sample, now: float) -> Sample:
        troubles: list[Trouble] = []
        ask = partial(_ask, troubles)
        new = replace(old, number=old.number + 1, now=now, troubles=troubles)
        at = ask("redis", self.broker.server_time)
        if at is None:
            return replace(new, now=self._clock())  # it may have waited for long
        names, start = old.names, self._next
        if start == 0 and (len(names) <= self._most or now - self._named >= MINUTE):
            every = ask("names", lambda: registered_names(self.broker))
            names = names if every is None else [sys.intern(name) for name in every if fnmatchcase(name, self._pattern)]
            self._named = now
        workers = ask("roster", lambda: self.broker.workers(consumers=True))
        reapers = None if workers is None else sum(one.role == "reaper" for one in workers)
        new = replace(new, names=names, workers=workers, reapers=reapers)
        end = start - (-len(names) // max(1, -(-len(names) // self._most)))  # all, or one of several equal parts
        part = names[start:end]
        stats = ask("stats", lambda: self.broker.stats(part, sweep=False))
        if stats is None:
            return new
        # the options of each queue once a minute, or in each second round if that takes longer
        turns = max(2, int(MINUTE / PAUSE) * self._most // max(self._most, len(names)))
        due = [name for i, name in enumerate(stats) if name not in old.queues or (i + self._round) % turns == 0]
        options = ask("options", lambda: self.broker.options(due)) or {}
        fresh = {name: _row(name, old.queues.get(name), one, at, options.get(name)) for name, one in stats.items()}
        gone = set(part).difference(stats, *(one.queues for one in troubles))
        queues = {**old.queues, **fresh}
        for name in gone if start else gone | (queues.keys() - names):
            queues.pop(name, None)
        busiest = names if len(names) <= WITH_HISTORY else old.orders.get("rate", names)[:WITH_HISTORY]
        for name in self._rings.keys() - busiest - {""}:
            del self._rings[name]
        for name in fresh.keys() & busiest:
            self._note(name, fresh[name], now, old.queues.get(name))
        self._parts = [*(self._parts if start else ()), QueueRow("", *views.sums([*fresh.values()]))]
        self._next, total = end if end < len(names) else 0, old.total
        if not (self._next and self._round):  # that of a whole round, and of parts only in the first one
            total = QueueRow(text.plural(len(queues), "queue"), *views.sums(self._parts))
            self._overdue.append(total.stats.overdue)
            self._note("", total, now)
        self._round += not self._next
        late, orders = views.late_work(self._overdue, reapers), self._ordered(names, queues)
        return replace(new, at=at, taken=now, late=late, total=total, queues=queues, orders=orders)

    def _ordered(self, names: Sequence[str], queues: Mapping[str, QueueRow]) -> Mapping[str, Sequence[str]]:
        """All orders anew; where there are many queues, one of them at a tick, and not at each."""
        old, every = self.sample.orders, [*SORTS, *ATTENTION]
        turn, rest = divmod(self.sample.number, 1 + len(names) // (10 * self._most))
        if old and rest:
            return old
        names, made = [name for name in names if name in queues], dict[str, Sequence[str]]()
        for sort in [every[turn % len(every)]] if old and len(names) > self._most else every:
            key = SORTS.get(sort) or ATTENTION[sort]
            chosen = names if sort in SORTS else [name for name in names if key(queues[name])]
            made[sort] = sorted(chosen, key=lambda name: key(queues[name]), reverse=True)
        return {**old, **made, "name": names}

    def _note(self, name: str, row: QueueRow, now: float, old: QueueRow | None = None) -> None:
        """Put new numbers into the history of a queue. A new queue of an old name begins anew."""
        if old and old.at and row.at and row.at > old.at and not row.rates:
            self._rings.pop(name, None)
        if name not in self._rings:
            self._rings[name] = {span: _Ring(*size) for span, size in SPANS.items()}
        values = [row.stats.depth, *(row.rates[one] if row.rates else nan for one in SERIES[1:])]
        for ring in self._rings[name].values():
            ring.put(now, values)


def _ask(troubles: list[Trouble], what: str, question: Callable[[], T]) -> T | None:
    """The answer to a question, as far as there is one; what goes wrong is noted."""
    answer: T | None = None
    trouble: Exception | None
    try:
        answer, trouble = views.readable(question)
    except BrokerClosed:
        raise
    except (RqttlError, *outages.TEMPORARY) as error:
        trouble = error
    if trouble is not None:
        troubles.append(Trouble(what, text.without_secrets(str(trouble)), getattr(trouble, "queues", ())))
    return answer


def _row(name: str, old: QueueRow | None, stats: QueueStats, at: datetime, options: QueueOptions | None) -> QueueRow:
    """A queue as it is now, with its rates since the last time."""
    if old and stats == old.stats:
        stats = old.stats
    else:
        parts = {part: _mapping(tuple(getattr(stats, part).items())) for part in ("deaths", "dropped", "outgoing")}
        stats = replace(stats, overdue=_same(stats.overdue), **parts)
    changes: dict[str, Any] = {"stats": stats, "at": at}
    if old and old.at:
        rates = views.rates(old.stats, stats, (at - old.at).total_seconds())
        changes["rates"] = rates and _mapping(tuple(rates.items()))
        changes["died"] = at if rates and rates["dead"] else old.died if old.died and at - old.died < NEW else None
    if options is not None:
        changes["kind"] = "topic" if options.is_topic else "forwards" if options.forward_to else None
        changes |= {name: options.number(name) for name in ("max_length", "max_length_bytes")}
        changes["targets"] = _same(tuple(map(options.target, REASONS)))
    return replace(old or QueueRow(name, stats), **changes)
