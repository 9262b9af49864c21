"""One reader of counters for all who look: samples of the queues, their orders, and the history of this process."""

from __future__ import annotations

import threading
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from itertools import cycle, islice
from math import nan
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from rqttl import outages, text, units
from rqttl.broker import fail_fast
from rqttl.errors import BrokerClosed, QueuesAway, RqttlError
from rqttl.inspector import queues as views
from rqttl.options import REASONS, QueueOptions
from rqttl.types import QueueStats, WorkerInfo

if TYPE_CHECKING:
    from rqttl.broker import Broker

T = TypeVar("T")
#: The queues whose counters a tick reads, and those that have a history: the busiest ones.
MOST, WITH_HISTORY = 1_000, 2_000
#: Seconds between two ticks at least; else so many times what the tick took.
PAUSE, SHARE = 2.0, 20
#: Seconds between two readings of names and of options, and from the last look to the end.
MINUTE, IDLE = 60.0, 3_600.0
#: A death is new for so many ms.
NEW = 600_000
#: A history: the seconds of a slot, and the number of slots.
SPANS = {"10m": (2, 300), "24h": (300, 288)}
#: What a history has of a queue. `depth` is a number of messages, the others are per second.
SERIES = ("depth", "in", "acked", "dead")

# A queue as numbers: an array of a third of a kB, where its `QueueStats` have two. Of them only rows that are shown
# are made.
_RATES = ("in", "out", "acked", "expired", "dead", "refused", "copies", "unrouted")
_COUNTS = tuple(item.name for item in fields(QueueStats) if item.type in ("int", "bool"))
_BY_REASON = {"deaths": REASONS, "dropped": (*REASONS, "cycle")}
_AGES = tuple(item.name for item in fields(QueueStats) if "timedelta" in str(item.type))
_TIMES = tuple(item.name for item in fields(QueueStats) if "datetime" in str(item.type))
#: Those that are added up in totals stand first. A time or an age that there is not is -1.
_SUMS = (
    "rated",
    *(f"{name}/s" for name in _RATES),
    *_COUNTS,
    *(f"{part}:{reason}" for part, keys in _BY_REASON.items() for reason in keys),
)
_PLACES = {name: i for i, name in enumerate((*_SUMS, "outgoing", *_AGES, *_TIMES, "at", "died"))}
_counts_of = attrgetter(*_COUNTS)
Numbers = Sequence[float]


def _pack(stats: QueueStats, rates: Mapping[str, float] | None, at: float, died: float) -> array[float]:
    ages, times = ([getattr(stats, name) for name in names] for names in (_AGES, _TIMES))
    return array(
        "d",
        (
            *((1, *rates.values()) if rates else (0,) * (1 + len(_RATES))),
            *_counts_of(stats),
            *(getattr(stats, part).get(reason, 0) for part, keys in _BY_REASON.items() for reason in keys),
            views.outgoing(stats),
            *(-1 if age is None else views.milliseconds(age) for age in ages),
            *(-1 if time is None else time.timestamp() * 1000 for time in times),
            at,
            died,
        ),
    )


def _unpack(numbers: Numbers) -> tuple[QueueStats, dict[str, float] | None]:
    """The statistics and the rates in numbers. What is on its way is one sum, under an empty name."""
    found: dict[str, Any] = {name: int(numbers[_PLACES[name]]) for name in (*_COUNTS, "outgoing")}
    for part, reasons in _BY_REASON.items():
        found[part] = {reason: int(numbers[_PLACES[f"{part}:{reason}"]]) for reason in reasons}
    for name in _AGES:
        found[name] = None if (ms := numbers[_PLACES[name]]) < 0 else timedelta(milliseconds=ms)
    for name in _TIMES:
        found[name] = None if (ms := numbers[_PLACES[name]]) < 0 else units.as_datetime(int(ms))
    found |= {item: bool(found[item]) for item in ("paused", "passes_on")}
    found["outgoing"] = {"": found["outgoing"]} if found["outgoing"] else {}
    rates = {name: numbers[_PLACES[f"{name}/s"]] for name in _RATES} if numbers[0] else None
    return QueueStats(**found), rates


class Facts(NamedTuple):
    """What the options of a queue say: its limits, where its dead letters go, `topic` or `forwards`."""

    max_length: int | None = None
    max_length_bytes: int | None = None
    targets: tuple[str, ...] = ()
    kind: str | None = None

    def full(self, numbers: Numbers) -> bool:
        """True if one of the limits is reached."""
        pairs = (self.max_length, numbers[_PLACES["ready"]]), (self.max_length_bytes, numbers[_PLACES["ready_bytes"]])
        return any(limit is not None and number >= limit for limit, number in pairs)


_UNKNOWN = Facts()


@dataclass(frozen=True, slots=True)
class QueueRow(views.Row):
    """A queue, or all together: see `inspector.queues.Row`. `age` is that of its numbers, `facts` are its options."""

    age: timedelta = timedelta(0)
    facts: Facts = _UNKNOWN


class Page(NamedTuple):
    """Rows of one page, the number of all rows, and the numbers of the page and of all pages."""

    rows: list[QueueRow]
    found: int
    page: int
    pages: int


class Trouble(NamedTuple):
    """What could not be read, since when (by the clock of the sampler), and why; `queues` are those that are away."""

    what: str
    since: float
    text: str
    queues: Sequence[str] = ()


class Points(NamedTuple):
    """A history, the oldest slot first: numbers by series, NaN for a slot that has none. The last slot is now."""

    seconds: int
    series: Mapping[str, Sequence[float]]


class _Ring:
    """The numbers of the last slots of time."""

    __slots__ = ("_data", "_last", "_times", "seconds", "size")

    def __init__(self, seconds: int, size: int) -> None:
        self.seconds, self.size = seconds, size
        self._last, self._times = -1, 0
        self._data = array("f", [nan]) * (size * len(SERIES))

    def put(self, now: float, values: Sequence[float]) -> None:
        """Put numbers into the slot of this time. A slot with several numbers has their mean."""
        slot, width = int(now // self.seconds), len(SERIES)
        start = slot % self.size * width
        if slot == self._last:
            self._times += 1
            old = self._data[start : start + width]
            values = [b if a != a else a + (b - a) / self._times if b == b else a for a, b in zip(old, values)]  # noqa: B905, PLR0124
        else:
            for missed in range(max(self._last + 1, slot - self.size + 1), slot):
                place = missed % self.size * width
                self._data[place : place + width] = array("f", [nan]) * width
            self._times = 1
        self._data[start : start + width] = array("f", values)
        self._last = slot

    def points(self, now: float) -> Points:
        """The slots until now."""
        slot, data, last, width = int(now // self.seconds), self._data[:], self._last, len(SERIES)
        slots = range(slot - self.size + 1, slot + 1)
        known = [data[one % self.size * width :][:width] if one <= last else (nan,) * width for one in slots]
        return Points(self.seconds, dict(zip(SERIES, zip(*known, strict=True), strict=True)))


class _History:
    """The rings of a queue, one for each span."""

    __slots__ = ("rings",)

    def __init__(self) -> None:
        self.rings = {span: _Ring(*size) for span, size in SPANS.items()}

    def put(self, now: float, numbers: Numbers) -> None:
        rated = numbers[0]
        values = [_depth(numbers), *(numbers[_PLACES[f"{name}/s"]] if rated else nan for name in SERIES[1:])]
        for ring in self.rings.values():
            ring.put(now, values)


def _depth(numbers: Numbers) -> float:
    return sum(numbers[_PLACES[state]] for state in ("ready", "leased", "delayed", "scheduled"))


def _number(name: str) -> Callable[[Numbers, Facts], float]:
    place = _PLACES[name]
    return lambda numbers, _: numbers[place]


#: Orders of queues, the largest first; equal ones by name. Those that need attention leave out all with 0.
SORTS: dict[str, Callable[[Numbers, Facts], float]] = {
    **{name: _number(name) for name in ("ready", "leased", "delayed", "scheduled", "consumers", "overdue")},
    **{name: _number(f"{name}/s") for name in ("in", "out", "acked")},
    "depth": lambda numbers, _: _depth(numbers),
    "oldest": _number("oldest_ready_age"),
    "rate": lambda numbers, _: numbers[_PLACES["in/s"]] + numbers[_PLACES["out/s"]],
    "dead": lambda numbers, _: sum(numbers[_PLACES[f"deaths:{reason}"]] for reason in REASONS),
}
ATTENTION: dict[str, Callable[[Numbers, Facts], float]] = {
    "paused": lambda numbers, _: numbers[_PLACES["paused"]] and 1 + _depth(numbers),
    "full": lambda numbers, facts: facts.full(numbers) and 1 + numbers[_PLACES["ready"]],
    "unconsumed": lambda numbers, _: (
        0 if numbers[_PLACES["consumers"]] or numbers[_PLACES["passes_on"]] else numbers[_PLACES["ready"]]
    ),
    "dying": lambda numbers, _: max(0, numbers[_PLACES["died"]] + NEW - numbers[_PLACES["at"]]),
}


_NOTHING: Numbers = (0.0,) * len(_PLACES)


@dataclass(frozen=True)
class Sample:
    """The queues at one time. It never changes: the next one takes its place.

    `at` is the time of Redis at its newest numbers, `None` before the first ones; `taken` and `now` are by the clock of
    the sampler: when those came, and when this sample was made. `number` grows with each sample. `since` is the start
    of the history. `trouble` says that Redis does not answer, `troubles` has it and all others. `workers` and
    `reapers` are `None` where the user may not read the roster, or its node is away.
    """

    number: int = 0
    at: datetime | None = None
    taken: float = 0.0
    now: float = 0.0
    since: float = 0.0
    names: Sequence[str] = ()
    troubles: tuple[Trouble, ...] = ()
    workers: Sequence[WorkerInfo] | None = None
    reapers: int | None = None
    late: views.LateWork | None = None
    totals: Numbers = _NOTHING
    figures: Mapping[str, Numbers] = field(default_factory=dict)
    facts: Mapping[str, Facts] = field(default_factory=dict)
    orders: Mapping[str, Sequence[str]] = field(default_factory=dict)
    histories: Mapping[str, _History] = field(default_factory=dict)

    @property
    def trouble(self) -> Trouble | None:
        """Redis does not answer; `None` if it does."""
        return next((one for one in self.troubles if one.what == "redis"), None)

    @property
    def age(self) -> timedelta:
        """The age of the newest numbers."""
        return timedelta(seconds=self.now - self.taken)

    @property
    def goes_round(self) -> bool:
        """True if there are so many queues that each tick reads some of them."""
        return len(self.names) > MOST

    @property
    def total(self) -> QueueRow:
        """All queues together. The rates are the sums of the known ones; `paused` counts for one of them."""
        stats, rates = _unpack(self.totals)
        return QueueRow(text.plural(len(self.figures), "queue"), stats, rates, self._depths(""))

    def row(self, name: str) -> QueueRow | None:
        """A queue; `None` if there is none of this name, as far as is known."""
        if (numbers := self.figures.get(name)) is None:
            return None
        facts = self.facts.get(name, _UNKNOWN)
        age = timedelta(milliseconds=self.totals[_PLACES["at"]] - numbers[_PLACES["at"]]) + self.age
        return QueueRow(name, *_unpack(numbers), self._depths(name), facts.kind, age, facts)

    def rows(self, sort: str = "name", patterns: Sequence[str] = (), page: int = 1, size: int = 50) -> Page:
        """A page of the queues that match a pattern or have one of these names, as on the command line.

        `sort` is `name` or one of `SORTS` and `ATTENTION`. A page beyond the last one is the last one.
        """
        names: Sequence[str] = self.orders.get(sort, ()) if sort in ATTENTION else self.orders.get(sort, self.names)
        if patterns:
            names = [name for name in names if any(fnmatchcase(name, one) for one in patterns)]
        pages = max(1, -(-len(names) // size))
        page = min(max(1, page), pages)
        rows = (self.row(name) for name in names[(page - 1) * size : page * size])
        return Page([row for row in rows if row], len(names), page, pages)

    def sources(self, target: str) -> list[str]:
        """The queues whose dead letters go to this one."""
        return [name for name, facts in self.facts.items() if target in facts.targets]

    def history(self, name: str = "", span: str = "10m") -> Points | None:
        """The history of a queue, or of all together; `None` for one that is not among the busiest."""
        history = self.histories.get(name)
        return history.rings[span].points(self.now) if history else None

    def _depths(self, name: str) -> Sequence[int]:
        points = self.history(name)
        return [int(depth) for depth in points.series["depth"] if depth == depth] if points else ()  # noqa: PLR0124


class Sampler:
    """Reads the counters of queues that match a pattern, again and again, into `sample`.

    A program of its own calls `start`; within another one `look` starts it, and an hour after the last look it ends.
    `most` is the number of queues that a tick reads: with more it goes round.
    """

    def __init__(
        self, broker: Broker, pattern: str = "*", *, clock: Callable[[], float] = time.monotonic, most: int = MOST
    ) -> None:
        self._broker, self._pattern, self._clock, self._most = fail_fast(broker), pattern, clock, most
        self._lock, self._stopped, self._first = threading.Lock(), threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._looked = self._named = float("-inf")
        self._keeps = False
        self._next = self._round = 0
        self._overdue: deque[timedelta] = deque(maxlen=views.WAITS)
        self._sorts: Iterator[str] = cycle((*SORTS, *ATTENTION))
        #: The newest sample.
        self.sample = Sample(since=clock(), now=clock())

    def start(self) -> None:
        """Run until `stop`."""
        self._keeps = True
        self._run()

    def stop(self) -> None:
        """End after the tick at hand."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()

    def look(self, patience: float = 2.0) -> None:
        """Note that somebody looks. The first look waits for the first sample, for up to `patience` seconds."""
        self._looked = self._clock()
        self._run()
        self._first.wait(patience)

    def _run(self) -> None:
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._stopped.clear()
                self._thread = threading.Thread(target=self._loop, name="rqttl-dashboard", daemon=True)
                self._thread.start()

    def _loop(self) -> None:
        while self._keeps or self._clock() - self._looked < IDLE:
            try:
                pause = self.tick()
            except BrokerClosed:
                break
            if self._stopped.wait(pause):
                break
        self._first.clear()

    def tick(self) -> float:
        """Take the next sample. Returns the seconds until the one after it."""
        began = self._clock()
        trouble = self._take(began)
        took = self._clock() - began
        self._first.set()
        return PAUSE if trouble else max(PAUSE, SHARE * took)

    def _take(self, now: float) -> bool:
        old, noted = self.sample, dict[str, Trouble]()
        since = {one.what: one.since for one in old.troubles}

        def ask(what: str, question: Callable[[], T], otherwise: T) -> T:
            """The answer to a question; what goes wrong is noted."""
            if "redis" in noted:
                return otherwise
            why: Exception | None
            try:
                answer, why = views.readable(question)
            except BrokerClosed:
                raise
            except (RqttlError, *outages.TEMPORARY) as error:
                answer, why = otherwise, error
            if why is not None:
                words, queues = text.without_secrets(str(why)), getattr(why, "queues", ())
                noted[what] = Trouble(what, since.get(what, now), words, queues)
            return answer

        at = ask("redis", self._broker.server_time, None)
        if at is None:
            self.sample = replace(old, number=old.number + 1, now=self._clock(), troubles=tuple(noted.values()))
            return True
        names = ask("names", lambda: self._names(now), old.names)
        chunk = self._chunk(names)
        nothing: Mapping[str, QueueStats] = {}
        stats = ask("stats", lambda: self._broker.stats(chunk, sweep=False), nothing)
        unread = (noted["stats"].queues or chunk) if "stats" in noted else ()
        due = self._without_new_facts(chunk, names)
        unknown: Mapping[str, QueueOptions] = {}
        options = ask("options", lambda: self._broker.options([name for name in due if name in stats]), unknown)
        workers = ask("roster", self._broker.workers, None)
        reapers = None if workers is None else sum(one.role == "reaper" for one in workers)
        kept = set(names) if names is not old.names else old.figures.keys()
        gone = set(chunk) - stats.keys() - set(unread)
        figures = {name: numbers for name, numbers in old.figures.items() if name in kept and name not in gone}
        ms = at.timestamp() * 1000
        figures |= {name: self._compared(old.figures.get(name), one, ms) for name, one in stats.items()}
        facts = {name: one for name, one in old.facts.items() if name in figures}
        facts |= {name: Facts(one.number("max_length"), one.number("max_length_bytes"), tuple(sorted(one.targets())),
                              "topic" if one.is_topic else "forwards" if one.forward_to else None)
                  for name, one in options.items()}  # fmt: skip
        totals = self._totals(figures.values(), ms)
        self._overdue.append(timedelta(milliseconds=totals[_PLACES["overdue"]]))
        self.sample = Sample(
            number=old.number + 1,
            at=at,
            taken=now,
            now=self._clock(),
            since=old.since,
            names=names,
            troubles=tuple(noted.values()),
            workers=workers,
            reapers=reapers,
            late=views.late_work(self._overdue, reapers),
            totals=totals,
            figures=figures,
            facts=facts,
            orders=self._orders(figures, facts, old.orders),
            histories=self._histories(old, figures, stats, totals, now),
        )
        return False

    def _names(self, now: float) -> Sequence[str]:
        """The names of all queues that match, sorted; where there are many, read once a minute."""
        names = self.sample.names
        if len(names) > self._most and now - self._named < MINUTE:
            return names
        self._named = now
        try:
            return views.select_names(self._broker, [self._pattern])
        except QueuesAway as error:
            return sorted(error.found)

    def _chunk(self, names: Sequence[str]) -> Sequence[str]:
        """The names whose counters are read now."""
        if self._next >= len(names):
            self._next, self._round = 0, self._round + 1
        parts = max(1, -(-len(names) // self._most))
        start, self._next = self._next, self._next - (-len(names) // parts)
        return names[start : self._next]

    def _without_new_facts(self, chunk: Sequence[str], names: Sequence[str]) -> list[str]:
        """Those of the names whose options are read now: each once a minute, or once a round that takes longer."""
        rounds = max(1, int(MINUTE / PAUSE) * self._most // max(self._most, len(names)))
        known = self.sample.facts
        return [name for i, name in enumerate(chunk) if name not in known or (i + self._round) % rounds == 0]

    def _compared(self, old: Numbers | None, stats: QueueStats, ms: float) -> Numbers:
        """The numbers of a queue, with its rates since the old ones."""
        if old is None:
            return _pack(stats, None, ms, -NEW)
        rates = views.rates(_unpack(old)[0], stats, (ms - old[_PLACES["at"]]) / 1000)
        died = ms if rates and rates["dead"] else old[_PLACES["died"]] if rates else -NEW
        return _pack(stats, rates, ms, died)

    def _totals(self, figures: Iterable[Numbers], ms: float) -> Numbers:
        """The sums; the longest age, the earliest time."""
        sums = len(_SUMS) + 1
        totals = [0.0] * sums + [-1.0] * (len(_PLACES) - sums)
        for numbers in figures:
            totals[:sums] = [a + b for a, b in zip(totals, numbers[:sums], strict=False)]
            for name in _AGES:
                totals[_PLACES[name]] = max(totals[_PLACES[name]], numbers[_PLACES[name]])
        totals[_PLACES["overdue"]] = max(0, totals[_PLACES["overdue"]])
        totals[_PLACES["at"]] = ms
        return array("d", totals)

    def _orders(
        self, figures: Mapping[str, Numbers], facts: Mapping[str, Facts], old: Mapping[str, Sequence[str]]
    ) -> Mapping[str, Sequence[str]]:
        """All orders anew; where there are many queues, one of them at each tick."""
        several = len(figures) > self._most and len(old) == len(SORTS) + len(ATTENTION)
        sorts = islice(self._sorts, 1) if several else [*SORTS, *ATTENTION]
        return {**old, **{sort: self._order(sort, figures, facts) for sort in sorts}}

    @staticmethod
    def _order(sort: str, figures: Mapping[str, Numbers], facts: Mapping[str, Facts]) -> Sequence[str]:
        key = SORTS.get(sort) or ATTENTION[sort]
        keys = {name: key(figures[name], facts.get(name, _UNKNOWN)) for name in sorted(figures)}
        if sort in ATTENTION:
            keys = {name: one for name, one in keys.items() if one}
        return sorted(keys, key=keys.__getitem__, reverse=True)

    def _histories(
        self, old: Sample, figures: Mapping[str, Numbers], read: Iterable[str], totals: Numbers, now: float
    ) -> Mapping[str, _History]:
        """The histories of the busiest queues, with the new numbers. A new queue of an old name begins anew."""
        chosen = figures.keys() if len(figures) <= WITH_HISTORY else set(self._busiest(old))
        histories = {name: one for name, one in old.histories.items() if name in chosen or not name}
        for name in read:
            if name in chosen:
                numbers, before = figures[name], old.figures.get(name)
                if before is not None and not numbers[0] and numbers[_PLACES["at"]] > before[_PLACES["at"]]:
                    histories.pop(name, None)  # its counters fell
                histories.setdefault(name, _History()).put(now, numbers)
        histories.setdefault("", _History()).put(now, totals)
        return histories

    @staticmethod
    def _busiest(sample: Sample) -> Sequence[str]:
        return sample.orders.get("rate", ())[:WITH_HISTORY]
