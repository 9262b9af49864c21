"""Following queues, on the driver: which there are, how far a query has got, where its next batch ends."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rqttl.keys import Keyspace, queue_names
from spark_connectors.errors import NoSuchQueue
from spark_connectors.options import patterns
from spark_connectors.options.options import Options
from spark_connectors.ranges import before
from spark_connectors.read.loss import Alarm, judge
from spark_connectors.read.marks import FIELDS, Mark, State, beginning, placed
from spark_connectors.read.plan import facts, may_read, partitions
from spark_connectors.read.watch import Span, ask, now, traces
from spark_connectors.redis.bulk_reader import Wire
from spark_connectors.stream.limits import Part, ShareOut
from spark_connectors.stream.offsets import Offset, ranges
from spark_connectors.stream.walk import Sizes, Walker


@dataclass(frozen=True, slots=True)
class Limit:
    """The most that a batch may read: messages, or bytes of headers and bodies."""

    amount: int
    in_bytes: bool = False


class Follower:
    """One query's view of its queues. Cheap to make; connects when it is first asked something.

    What it remembers only saves questions or sharpens alarms: a new one with the same offsets goes on in the same way.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._keys = Keyspace(options.text("namespace"))
        self._alarm = Alarm(fail=options.flag("failOnDataLoss"))
        self._wire: Wire | None = None
        self._initial: Offset | None = None
        #: Queues that no offset has a mark of yet, as they were when first seen.
        self._first: dict[str, Mark] = {}
        self._states: dict[str, State] | None = None
        self._target: dict[str, State] | None = None

    def close(self) -> None:
        """Close the connection; the next question opens it again."""
        if self._wire is not None:
            self._wire.close()

    # -------------------------------------------------------------------------------------------- offsets

    def initial(self) -> Offset:
        """Where a new query begins; found out once, so that `latest` stays the same place."""
        if self._initial is None:
            states = self._look(self._names(()))
            if missing := [name for name in self._options.queues if name not in states]:
                raise NoSuchQueue(
                    f"queues: there is no queue {missing[0]!r} in namespace {self._keys.namespace!r}; a queue that may "
                    "come later can be named with option queuePattern"
                )
            self._initial = Offset({name: self._start(name, state) for name, state in states.items()}, initial=True)
        return self._initial

    def latest(self, start: Offset, limit: Limit | None) -> Offset:
        """The end of the next batch: all that is there, or what the limit admits of it. `start` if there is nothing.

        Raises `DataLoss` if the query is to fail when something is lost.
        """
        self._states = self._look(self._names(start.marks))
        there = self._within_target(self._states)
        now = self._settled(start, there)
        ends = {name: mark.at_end(there[name]) for name, mark in now.items()}
        turn = ""
        if limit is not None:
            turn = self._limited(now, there, ends, limit, start.turn)
        if all(mark.after == now[name].after for name, mark in ends.items()):
            return start
        kept = {name: mark for name, mark in start.marks.items() if not self._is_gone(name)}
        return start.followed({**kept, **ends}, turn)

    def newest(self) -> Offset:
        """The end of all that was there when last looked."""
        if self._states is None:
            self._states = self._look(self._names(()))
        return Offset({name: beginning(state).at_end(state) for name, state in self._states.items()})

    def stay(self) -> None:
        """From now on, nothing that comes later is there."""
        self._target = self._look(self._names(()))

    def spans(self, start: Offset, end: Offset) -> list[Span]:
        """What a batch reads. Raises `DataLoss` if something of that is gone since the batch was first planned."""
        wanted = ranges(start, end)
        there = facts(self._connected(), self._keys, [found.queue for found in wanted])
        born = {name: one.born for name, one in there.items()}
        left = [found.queue for found in wanted if born.get(found.queue) != end.marks[found.queue].born]
        lost = traces(self._connected(), self._keys, left)
        kept = []
        for found in wanted:
            one, mark = there.get(found.queue), end.marks[found.queue]
            state = None if one is None else State(one.born, one.last, one.trimmed, 0)
            begun = replace(mark, after=found.after, ahead=found.rows)
            self._alarm.tell(judge(found.queue, begun, state, lost.get(found.queue), unseen=now() - mark.seen))
            if one is not None and one.born == mark.born:
                rows, loose = min(found.rows, one.length + one.loose), bool(one.loose) or not one.settled
                kept.append(Span(replace(found, rows=max(1, rows), loose=loose), mark.born, mark.missed, now()))
        return kept

    def parts(self, spans: Sequence[Span]) -> list[list[Span]]:
        """Who reads what of a batch. One part after the other, rows come by queue and sequence, however it is split."""
        by_queue = {span.range.queue: span for span in spans}
        whole = [span.range for span in spans]
        may_read(self._connected(), self._keys, whole)
        split = partitions(self._options, self._connected(), self._keys, whole, in_order=True) if whole else []
        return [[replace(by_queue[piece.queue], range=piece) for piece in part] for part in split]

    # ------------------------------------------------------------------------------------------ the parts

    def _start(self, name: str, state: State) -> Mark:
        """Where to begin with a queue that is there when the query is new."""
        since, offsets = self._options.maybe_number("startingTimestamp"), self._options.offsets("startingOffsets")
        if since is not None:
            return placed(state, before(since))
        place = offsets if isinstance(offsets, str) else offsets.get(name, "earliest")
        if place == "latest":
            return beginning(state).at_end(state)
        # what lay behind a place that the user names and is gone counts as lost, unlike what was gone before the first
        return beginning(state) if place == "earliest" else replace(placed(state, place), missed="")

    def _within_target(self, states: Mapping[str, State]) -> dict[str, State]:
        """What is there for this query: with a target, nothing that came after it was set."""
        if self._target is None:
            return dict(states)
        there = {}
        for name, state in states.items():
            target = self._target.get(name)
            if target is not None and target.born == state.born:
                there[name] = replace(state, last=target.last, enqueued=target.enqueued)
        return there

    def _settled(self, start: Offset, there: Mapping[str, State]) -> dict[str, Mark]:
        """How far the query has got in each queue that is there, once what is lost has been told."""
        self._tell_deleted(start, there)
        marks, first = {}, {}
        for name, state in there.items():
            known = start.marks.get(name)
            if known is None or not known.continues(state):
                known = first[name] = self._first_mark(name, state, made_again=known is not None)
            self._alarm.tell(judge(name, known, state))
            marks[name] = known
        self._first = first
        return marks

    def _tell_deleted(self, start: Offset, there: Mapping[str, State]) -> None:
        """Tell what was lost with queues that are gone, or other ones by now."""
        known = {**self._first, **start.marks}
        selected = set(self._selected(known))
        left = {
            name: mark for name, mark in known.items()
            if name in selected and (not mark.continues(there[name]) if name in there else self._is_gone(name))
        }  # fmt: skip
        found = traces(self._connected(), self._keys, left)
        for name, mark in left.items():
            # one of which nothing has been read goes without a word, unless something was lost
            if name in start.marks or name in found:
                self._alarm.tell(judge(name, mark, there.get(name), found.get(name), unseen=now() - mark.seen))

    def _first_mark(self, name: str, state: State, *, made_again: bool) -> Mark:
        """Before the first message. Of a queue that the query follows nothing was gone before it began."""
        known = self._first.get(name)
        if known is not None and known.continues(state):
            return known
        return replace(beginning(state), missed="") if made_again else beginning(state)

    def _limited(
        self, now: Mapping[str, Mark], there: Mapping[str, State], ends: dict[str, Mark], limit: Limit, turn: str
    ) -> str:  # fmt: skip
        """Cut `ends` down to the limit. Returns whose turn it is next."""
        open_ = [name for name in now if ends[name].after != now[name].after]
        held = self._held(open_)
        most = {name: min(sum(held[name]), now[name].unread(there[name])) for name in open_}
        if not limit.in_bytes and sum(most.values()) <= limit.amount:
            return ""
        parts = {name: Part(now[name].after, there[name].last) for name, n in most.items() if n}
        shares = ShareOut(limit.amount, parts, turn)
        self._walk(shares, limit, [name for name in parts if held[name][1]])
        for name, part in shares.parts.items():
            ends[name] = now[name].moved(part.upto if part.done else part.after, part.rows, there[name])
        return shares.turn

    def _walk(self, shares: ShareOut, limit: Limit, loose: Sequence[str]) -> None:
        walker = Walker(
            self._connected(), self._keys, {name: self._loose(name) for name in loose}, in_bytes=limit.in_bytes,
            most=self._options.number("fetchEntries"), reply=self._options.number("fetchBytes"),
        )  # fmt: skip
        asking = shares.run()
        try:
            wishes = next(asking)
            while True:
                wishes = asking.send(walker.answer(wishes))
        except StopIteration:
            return

    # ------------------------------------------------------------------------------------------ questions

    def _names(self, known: Iterable[str]) -> list[str]:
        """The queues to look at: those that are named, or all that match, which may be there no longer."""
        if self._options.queues:
            return sorted(self._options.queues)
        registered = queue_names(self._connected().ask("SMEMBERS", self._keys.registry))
        return self._selected({*registered, *known})

    def _selected(self, names: Iterable[str]) -> list[str]:
        pattern = self._options.maybe_text("queuePattern")
        return sorted(self._options.queues) if pattern is None else patterns.select(pattern, names)

    def _look(self, names: Iterable[str]) -> dict[str, State]:
        """The state of each of these queues that is there."""
        looked = list(names)
        found = self._ask([("HMGET", self._keys.key(name, "meta"), *FIELDS) for name in looked])
        states = {name: State.of(fields) for name, fields in zip(looked, found, strict=True)}
        return {name: state for name, state in states.items() if state is not None}

    def _held(self, names: Sequence[str]) -> dict[str, tuple[int, int]]:
        """How many messages each of these queues has in its log, and how many beside it."""
        parts = (("XLEN", "log"), ("HLEN", "loose"))
        found = self._ask([(word, self._keys.key(name, part)) for name in names for word, part in parts])
        return dict(zip(names, zip(found[::2], found[1::2], strict=True), strict=True))

    def _loose(self, name: str) -> Sizes:
        """The messages that a queue has beside its log, in order."""
        pages = self._connected().hash_pages(self._keys.key(name, "loose"))
        return sorted(
            {place.decode(): len(joined) - joined.index(b":") - 1 for page in pages for place, joined in page}.items()
        )

    def _is_gone(self, name: str) -> bool:
        return self._states is not None and name not in self._states

    def _ask(self, calls: list[tuple[str, ...]]) -> list[Any]:
        return ask(self._connected(), calls)

    def _connected(self) -> Wire:
        if self._wire is None:
            self._wire = Wire(self._options)
        return self._wire
