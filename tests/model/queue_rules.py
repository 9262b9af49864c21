"""Rules about queues as a whole: declaring, changing, emptying, deleting, counting and looking; and time."""

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from rqttl import InvalidOption, QueueMismatch, QueueNotFound
from rqttl.flows import messages, queues, reading, sweeping
from rqttl.flows.steps import Flow
from rqttl.options import QueueOptions
from rqttl.types import Declared
from rqttl.units import as_datetime
from tests.model.clients import Died
from tests.model.machine import Machine, policies_of
from tests.model.queues import PICKUP, Options, as_written, consistent
from tests.model.raw import COUNTERS
from tests.model.strategies import clients, lives, names, picks, rarely, some_options


def _without_switch(options: Options) -> Options:
    return {name: value for name, value in options.items() if name != "paused"}


class QueueRules(Machine):
    @initialize(a=some_options, b=some_options, dead=some_options)
    def declare_all(self, a: Options, b: Options, dead: Options) -> None:
        for name, options in (
            ("a", {"dead_letter": "dead", **a}),
            ("b", {"dead_letter": "a.late", **b}),
            ("dead", {"dead_letter": "a", "message_ttl": 50, **dead}),
        ):
            kept = {option: value for option, value in options.items() if value is not None}
            self._declare(0, name, kept if consistent(name, kept) else {})
        self.compare()

    # Queues

    def _declare(self, who: int, name: str, options: Options, *, is_topic: bool = False) -> None:
        made: list[Declared] = []
        there = self.world.queues.get(name)
        read = QueueOptions.read_stored(name, options)
        flow = queues.declare(self.clients[who].keyspace, read.as_topic() if is_topic else read)
        is_other = there is not None and (
            (there.bindings is not None) != is_topic or _without_switch(there.declared) != _without_switch(options)
        )
        if self.closes_circle(name, options):
            with pytest.raises(InvalidOption):
                self.clients[who].perform(flow)
            return
        if there is not None and there.adopted and is_other:
            with pytest.raises(QueueMismatch):
                self.clients[who].perform(flow)
        else:
            apply = lambda: made.append(self.declare_now(who, name, options, is_topic=is_topic))  # noqa: E731  # short
            result = self.act(who, flow, "declare", apply)
            assert [result] == made
            assert self.world.queues[name].policies == self.world.version, f"{name}: declared, and not reconciled"
        self.unlisted.discard(name)

    def declare_now(self, who: int, name: str, options: Options, *, is_topic: bool = False) -> Declared:
        """The call of the client that has just been carried out declares a queue."""
        return self.world.declare(name, options, self.clock.now, self.policies_sent(who), is_topic=is_topic)

    def update_now(self, who: int, name: str, changes: Options) -> None:
        """The call of the client that has just been carried out updates a queue."""
        self.world.update(name, changes, self.policies_sent(who))
        self.changed.add(name)

    def policies_sent(self, who: int) -> int:
        return policies_of(self.clients[who].log[-1][0])

    def is_topic(self, name: str) -> bool:
        return name in self.world.queues and self.world.queues[name].bindings is not None

    def goes_on(self, name: str) -> bool:
        """Whether nobody receives messages here, since all of them go on."""
        return name in self.world.queues and self.world.queues[name].passes_to is not None

    def closes_circle(self, name: str, options: Options) -> bool:
        target = str(options.get("forward_to") or "")
        return bool(target) and self.world.comes_back(name, [target])

    def declare(self, who: int, name: str, options: Options, *, is_topic: bool = False) -> None:
        kept = {option: value for option, value in options.items() if value is not None}
        if consistent(name, kept):
            self._declare(who, name, kept, is_topic=is_topic)
        self.compare()

    @precondition(lambda self: any(not q.adopted for q in self.world.queues.values()))
    @rule(who=clients, options=some_options)
    def adopt(self, who: int, options: Options) -> None:
        """Somebody declares a queue that a dead letter made."""
        self.declare(who, next(name for name, q in self.world.queues.items() if not q.adopted), options)

    @rule(who=clients, name=names)
    def declare_again(self, who: int, name: str) -> None:
        """The same declaration holds under any policies, and applies those that a dead client left."""
        if name in self.world.queues:
            self.declare(who, name, self.world.queues[name].declared, is_topic=self.is_topic(name))

    @rule(who=clients, name=names, changes=some_options, lives=lives)
    def update(self, who: int, name: str, changes: Options, lives: int | None) -> None:
        if not self._exists(who, name):
            return
        flow = queues.update(self.clients[who].keyspace, name, as_written(changes))
        merged = {**self.world.queues[name].declared, **changes}
        kept = {option: value for option, value in merged.items() if value is not None}
        forwards = changes.get("forward_to", self.world.queues[name].declared.get("forward_to"))
        is_new = forwards != self.world.queues[name].declared.get("forward_to")
        is_wrong = is_new and (self.is_topic(name) or self.closes_circle(name, changes))
        if is_wrong or not consistent(name, kept):
            with pytest.raises(InvalidOption):
                self.clients[who].perform(flow)
        elif lives is not None:
            self.die(who, flow, "update", lambda: self.update_now(who, name, changes), lives)
        else:
            before = self.world.queues[name].options
            result = self.act(who, flow, "update", lambda: self.update_now(who, name, changes))
            killed = self.killed.get(name, [0, 0])
            assert (result.before.non_default, [result.expired, result.trimmed]) == (before, killed)
            assert self.world.queues[name].policies == self.world.version, f"{name}: updated by older policies"
        self.compare()

    @rule(who=clients, name=names, paused=st.sampled_from((True, None, None)), lives=lives)
    def pause_or_resume(self, who: int, name: str, paused: bool | None, lives: int | None) -> None:
        self.update(who, name, {"paused": paused}, lives)

    def die(self, who: int, flow: Flow[object], script: str, apply: Callable[[], object], lives: int) -> None:
        """The client dies after some calls. Its successor knows nothing."""
        before = set(self.world.queues)
        self.clients[who].lives = lives
        with suppress(Died):
            self.attempt(who, flow, script, apply)
        self.clients[who].configs.clear()
        self.unlisted |= self.world.queues.keys() - before

    def _exists(self, who: int, name: str) -> bool:
        if name not in self.raw:
            with pytest.raises(QueueNotFound):
                self.clients[who].perform(reading.swept_stats(self.clients[who].keyspace, name))
        return name in self.raw

    def purge(self, who: int, name: str, chosen: list[bytes] | None = None) -> None:
        if self._exists(who, name):
            expected: list[int] = []
            keyspace = self.clients[who].keyspace
            if chosen is None:
                flow = messages.purge(keyspace, name)
            else:
                flow = messages.purge_many(keyspace, name, [seq.decode() for seq in chosen])
            purged = self.act(who, flow, "purge", lambda: expected.append(self.world.purge(name, chosen)))
            assert [purged] == expected
            self.compare()

    @rule(who=clients, name=names, chosen=picks, strange=rarely)
    def purge_some(self, who: int, name: str, chosen: list[int], strange: bool) -> None:
        """Purge chosen messages in any state; a foreign sequence is not in the queue."""
        q = self.world.queues.get(name)
        if q is not None and q.messages:
            seqs = [q.messages[pick % len(q.messages)].seq for pick in chosen]
            self.purge(who, name, [*seqs, b"%013d-999999" % self.clock.latest] if strange else seqs)

    def delete(self, who: int, name: str, options: Options) -> None:
        if self._exists(who, name):
            is_topic = self.is_topic(name)
            self.remove(who, name)
            self.declare(who, name, options, is_topic=is_topic)

    def remove(self, who: int, name: str) -> None:
        """Delete a queue that exists."""
        expected: list[int] = []
        flow = queues.delete(self.clients[who].keyspace, name, if_unused=False, if_empty=False)
        removed = self.act(who, flow, "delete", lambda: expected.append(self.world.delete(name)))
        assert [removed] == expected
        self.waiters = [waiter for waiter in self.waiters if waiter.queue != name]
        self.seen = [delivery for delivery in self.seen if delivery[0] != name]

    @rule(
        who=clients,
        name=names,
        what=st.sampled_from(("purge", "scripts", "forth", "back", "declare", "delete")),
        options=some_options,
        ms=st.sampled_from((1, 10, 40)),
    )
    def do_what_is_rare(self, who: int, name: str, what: str, options: Options, ms: int) -> None:
        """Empty, declare or delete a queue; lose all scripts; much time passes, or the clock steps back."""
        if what == "purge":
            self.purge(who, name)
        elif what == "declare":
            self.declare(who, name, options)
        elif what == "delete":
            self.delete(who, name, options)
        elif what == "scripts":
            self.client.script_flush()
        else:
            self.clock.move(-ms if what == "back" else PICKUP)

    # Time

    @rule(ms=st.sampled_from((1, 1, 5, 10, 30)))
    def tick(self, ms: int) -> None:
        self.clock.move(ms)

    @rule(name=names, which=st.integers(0, 3), off=st.sampled_from((0, 0, 0, -1, 1)))
    def tick_to_a_deadline(self, name: str, which: int, off: int) -> None:
        q = self.world.queues.get(name)
        if q is not None:
            times = {m.until for m in q.messages if m.state != "ready"} | {q.deadline(m) for m in q.messages}
            times |= {s.due for s in q.scheduled} | {q.arrival_at}
            ahead = sorted(at for at in times if at is not None and at > self.clock.now)
            if ahead:
                self.clock.move(ahead[min(which, len(ahead) - 1)] + off - self.clock.now)

    @rule(
        who=clients,
        name=names,
        what=st.sampled_from(("sweep", "stats", "peek")),
        dies=rarely,
        limit=st.sampled_from((100, 1, 3)),
        skip=st.integers(0, 3),
    )
    def look(self, who: int, name: str, what: str, dies: bool, limit: int, skip: int) -> None:
        if what == "sweep":
            self.sweep(who, name, dies)
        elif what == "stats":
            self.stats(who, name)
        else:
            self.peek(who, name, limit, skip)

    def sweep(self, who: int, name: str, dies: bool) -> None:
        if self._exists(who, name):
            now = self.clock.now
            self.act(who, sweeping.sweep(name), "sweep", lambda: self.world.sweep(name, now), deaf=dies)
            self.compare()

    # Looking

    def stats(self, who: int, name: str) -> None:
        if not self._exists(who, name):
            return
        now, q = self.clock.now, self.world.queues[name]

        expected: list[tuple[object, ...]] = []
        lag = timedelta(0)

        def apply() -> None:
            nonlocal lag
            due = self.before[name].due
            if due is not None and due <= now:
                if not expected:
                    lag = timedelta(milliseconds=max(0, now - min(q.next_due(known=True) or now, q.arrival_at or now)))
                self.world.sweep(name, now)
            age = timedelta(milliseconds=max(0, now - q.ready[0].arrived)) if q.ready else None
            numbers = [len(q.in_state(state)) for state in ("ready", "leased", "delayed")]
            # the sweeps that follow elsewhere may bring letters back here, after the answer
            coming = min((s.due for s in q.scheduled), default=None)
            numbers.append(len(q.scheduled))
            expected.append((*numbers, coming and as_datetime(coming), q.size, age, lag, +q.counters))

        found = self.act(who, reading.swept_stats(self.clients[who].keyspace, name), "stats", apply, again=True)
        counters = {one: getattr(found, one) for one in COUNTERS}
        counters |= {f"deaths:{reason}": n for reason, n in found.deaths.items()}
        counters |= {f"dropped:{reason}": n for reason, n in found.dropped.items()}
        numbers = (found.ready, found.leased, found.delayed, found.scheduled, found.next_scheduled, found.ready_bytes)
        assert expected[-1:] == [(*numbers, found.oldest_ready_age, found.overdue, +Counter(counters))]
        self.compare()

    def peek(self, who: int, name: str, limit: int, skip: int) -> None:
        q = self.world.queues.get(name)
        if q is None:
            return
        all_seqs = [m.seq.decode() for m in q.messages]
        after = all_seqs[skip - 1] if 0 < skip <= len(all_seqs) else None
        shown = [m for m in q.messages if m.state == "leased" or not q.expired(m, self.clock.now)]
        shown = [m for m in shown if after is None or m.seq.decode() > after][:limit]
        peeked = self.clients[who].perform(messages.peek(self.clients[who].keyspace, name, limit, after))
        assert [(p.sequence, p.state, p.body, p.delivery_count, p.description) for p in peeked] == [
            (m.seq.decode(), m.state, m.body, m.failures + (m.state == "leased"), m.description) for m in shown
        ]
