"""Topics and forwards of the model: which queues get a message, and what a call that stores copies does."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tests.model.queues import DeathRecord, Item, ModelQueue, Msg
from tests.model.world import World

#: Filters in their canonical form.
FILTERS: tuple[list[dict[str, Any]], ...] = (
    *[[]] * 4,
    [{"n": 1}],
    [{"n": {"exists": False}}],
    [{"death.queue": "a"}, {"n": 1}],
    [{"unmatched": True}],
)
UNMATCHED = FILTERS[-1]


@dataclass
class Copies:
    """What one queue gets in a call: the numbers of messages, and how many consumers wait there for a message."""

    queue: str
    numbers: Sequence[int]
    waiting: int


def matches(rules: list[dict[str, Any]], headers: dict[str, int], death: DeathRecord | None) -> bool:
    values: dict[str, Any] = {**headers, **({"death.queue": death.queue} if death else {})}
    return not rules or any(
        all(
            name not in values if isinstance(wanted, dict) else values.get(name) == wanted for name, wanted in r.items()
        )
        for r in rules
    )


class Topics(World):
    """A world with topics."""

    def route(self, topic: str, headers: dict[str, int], deaths: Sequence[DeathRecord] = ()) -> list[str]:
        """The queues that a message is for, in the order of their names."""
        bindings = self.queues[topic].passes_to or {}
        death = next((d for d in deaths if d.reason != "redriven"), None)
        found = [name for name, rules in bindings.items() if rules != UNMATCHED and matches(rules, headers, death)]
        return sorted(found or [name for name, rules in bindings.items() if rules == UNMATCHED])

    def comes_back(self, source: str, names: Collection[str]) -> bool:
        """Whether what goes on to these queues comes back."""
        seen, pending = set(names), [*names]
        while pending:
            after = set(q.passes_to or ()) if (q := self.queues.get(pending.pop())) else set()
            pending += after - seen
            seen |= after
        return source in seen

    def originals(self, q: ModelQueue, now: int, items: Sequence[Item]) -> tuple[list[Msg], list[Item]]:
        """Messages as a topic takes them, and what each copy of them begins as."""
        last, taken, begun = q.last, [], []
        for item in items:
            own = q.own_ttl(item, now)
            m = Msg(q.next_seq(now), item.body, item.id, item.headers, None if own is None else now + own)
            taken.append(m)
            is_late = item.at is not None and own is not None and own <= 0
            begun.append(
                self._begun(q, m, now, now) if not is_late else replace(item, id=m.id or m.seq.decode(), at=m.own)
            )
        q.last = last
        return taken, begun

    @staticmethod
    def _begun(q: ModelQueue, m: Msg, now: int, arrived: int) -> Item:
        """What the copies of a message begin as: it may live for the rest of its time."""
        ends = [m.own - now] if m.own is not None else []
        if (retention := q.number("message_ttl")) is not None:
            ends.append(arrived + retention - now)
        id = m.id or m.seq.decode()
        return Item(m.body, id, min(ends, default=None), None, m.headers, m.deaths, has_own=m.own is not None)

    def waiting_at(self, q: ModelQueue, now: int, seqs: Sequence[bytes]) -> list[Item]:
        """The first ready messages of a topic, as their copies begin. With a mark its message is the first one."""
        first = sorted(q.ready, key=lambda m: (m.seq != q.mark[0], m.seq))[: len(seqs)]
        assert [m.seq for m in first] == list(seqs), f"{q.name}: passed on, and not the first ones"
        assert not any(q.expired(m, now) for m in first), f"{q.name}: passed on, and expired"
        return [self._begun(q, m, now, m.arrived) for m in first]

    def _fresh(self, into: Copies, now: int, items: Sequence[Item]) -> tuple[list[Msg], list[Msg], list[int]]:
        """The messages of one queue, those that come too late, and the number of each. A dead letter runs no circle."""
        q, fresh, late, numbers = self.queues[into.queue], list[Msg](), list[Msg](), list[int]()
        default = q.number("default_ttl")
        for number in into.numbers:
            item = items[number - 1]
            if item.deaths and self._in_circle(q.name, item.deaths[0].queue, item.deaths[0].reason, item.deaths[1:]):
                continue
            if default is not None and not item.has_own and item.ttl is not None:
                item = replace(item, ttl=min(item.ttl, default))
            own = q.own_ttl(item, now)
            m = Msg(b"", item.body, item.id, item.headers, None if own is None else now + own, item.deaths)
            fresh.append(m)
            numbers.append(number)
            if item.at is not None and own is not None and own <= 0:
                late.append(m)
        return fresh, late, numbers

    def refusal(
        self, now: int, items: Sequence[Item], copies: Sequence[Copies]
    ) -> tuple[str, str, int] | Copies | None:
        """The queue, the limit and the number of the first refused message; or where room must be made first."""
        refused, crowded = [], None
        for into in copies:
            q = self.queues[into.queue]
            fresh, late, numbers = self._fresh(into, now, items)
            must_wait, without_room = self._plan(q, now, fresh, late, into.waiting)
            if must_wait:
                crowded = crowded or into
            elif q.holds_arrivals:
                refused += [
                    (number, q.name, without_room[m])
                    for m, number in zip(fresh, numbers, strict=True)
                    if m in without_room
                ]
        if refused:
            number, name, limit = min(refused, key=lambda one: one[0])
            return name, limit, number
        return crowded

    def store(self, now: int, items: Sequence[Item], copies: Sequence[Copies]) -> None:
        """Copies arrive in the queues of a call, as if they had been sent there."""
        for into in copies:
            q = self.queues[into.queue]
            fresh, late, _ = self._fresh(into, now, items)
            for m in fresh:
                m.seq = q.next_seq(now)
            if fresh:
                self._arrive(q, now, fresh, late, into.waiting)

    def count(self, q: ModelQueue, now: int, items: Sequence[Item], copies: Sequence[Copies], begun: bool) -> None:
        """Count what goes on from a topic. `begun`: a part of its message went on before."""
        made = sum(len(self._fresh(into, now, items)[0]) for into in copies)
        number = sum(len(into.numbers) for into in copies)
        routed = {one for into in copies for one in into.numbers}
        q.counters.update(copies=made, unrouted=0 if begun else len(items) - len(routed))
        q.counters["dropped:cycle"] += number - made

    def publish(self, topic: str, now: int, items: Sequence[Item], copies: Sequence[Copies]) -> list[Msg]:
        """A batch is stored in the queues that it is for. Returns the messages as the topic took them."""
        q = self.queues[topic]
        taken, begun = self.originals(q, now, items)
        for _ in items:
            q.next_seq(now)
        q.counters["enqueued"] += len(items)
        q.gone_on += len(items)
        self.count(q, now, begun, copies, begun=False)
        self.store(now, begun, copies)
        return taken

    def pass_on(self, topic: str, now: int, seqs: Sequence[bytes], copies: Sequence[Copies], mark: str) -> None:
        """What waits at a topic is stored in the queues of a call. Without a new mark it leaves the topic."""
        q = self.queues[topic]
        items, begun = self.waiting_at(q, now, seqs), q.mark[0] == seqs[0]
        self.count(q, now, items, copies, begun)
        seq, _, name = mark.partition(" ")
        q.mark = (seq.encode(), name)
        if not mark:
            q.messages = [m for m in q.messages if m.seq not in seqs]
            q.gone_on += len(seqs)
        self.store(now, items, copies)

    def unbind_gone(self, topic: str, bound: Collection[str], version: int) -> None:
        """A client removes the bindings of queues that are gone, so that these are left."""
        q = self.queues[topic]
        gone = (q.bindings or {}).keys() - set(bound)
        assert gone, f"{topic}: bindings change by themselves"
        assert not gone & self.queues.keys(), f"{topic}: the binding of a queue that exists goes"
        self.bind(topic, {name: rules for name, rules in (q.bindings or {}).items() if name not in gone}, version)

    def bind(self, topic: str, bindings: dict[str, list[dict[str, Any]]], version: int) -> None:
        q = self.queues[topic]
        q.bindings = bindings
        self._declared(q, q.declared, version)
