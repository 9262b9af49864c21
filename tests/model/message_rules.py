"""Rules about messages: sending, receiving, waiting and settling."""

from collections.abc import Sequence
from typing import Any, TypeVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from rqttl import Message, QueueForwards, QueueFull, Receipt
from rqttl.consuming import settling
from rqttl.flows import messages as message_flows
from rqttl.flows import queues, receive, single, steps
from rqttl.options import CONTROLS
from rqttl.protocol import commands
from rqttl.protocol.commands import ABSENT, Command, Presence
from rqttl.protocol.contract import Ok
from rqttl.units import as_datetime
from tests.contract.clocked import ms
from tests.model import strategies
from tests.model.machine import Waiter, words_of
from tests.model.queues import PICKUP, Item, Msg, Pair, Scheduled, Taken
from tests.model.strategies import MEANWHILE, Said, actions, clients, delays, items, leases, names, picks, rarely
from tests.model.topic_rules import TOPIC, TopicRules

T = TypeVar("T")
INTERVENTIONS = st.sampled_from(("delete", "expired", "rejected", "redeliver", "move", "move"))

#: For how long a consumer counts as waiting after its block: it is about to look again.
LATE = 5_000


class QueueMachine(TopicRules):
    consumers = 0

    # Messages

    @rule(who=clients, name=names, said=items, dies=rarely)
    def enqueue(self, who: int, name: str, said: list[Said], dies: bool) -> None:
        if not self._exists(who, name):
            return
        now, batch = self.clock.now, list[Item]()
        for one in said:
            is_like = self.goes_on(name) and any(not item.body for item in batch)  # a call is known by its bodies
            body = self.body(one.size or 4 * is_like)
            at = now + one.at if one.at is not None and one.ttl is None else None
            id = f"id{self.bodies}" if one.named else None
            batch.append(Item(body, id, one.ttl, at, {"n": 1} if one.headed else {}))
        if self.goes_on(name):
            self.publish(who, name, batch, dies)
            return
        messages = [Message(i.body, ttl=ms(i.ttl), expires_at=i.at, headers=i.headers or None, id=i.id) for i in batch]
        outcomes: list[Msg | str] = []
        receipts = self.act(
            who,
            message_flows.enqueue(name, messages),
            "enqueue",
            lambda: outcomes.extend(self.world.enqueue(name, now, batch, self.free(name))),
            deaf=dies,
        )
        q = self.world.queues[name]
        for receipt, outcome in zip(receipts, outcomes, strict=True):
            if isinstance(outcome, str):
                assert isinstance(receipt, QueueFull)
                assert receipt.limit == outcome
            else:
                assert isinstance(receipt, Receipt)
                deadline = q.deadline(outcome)
                assert receipt.id == (outcome.id or outcome.seq.decode())
                assert receipt.expires_at == (None if deadline is None else as_datetime(deadline))
                assert receipt.expired == (q.is_mortal(outcome, now) and outcome.state != "leased")
        self.compare()
        handed = [m for m in outcomes if isinstance(m, Msg) and m.state == "leased" and m in q.messages]
        tickets = [m.seq + b" " + (m.token or b"") for m in handed]
        assert self.raw[name].wakeup[-len(tickets) :] == tickets or not tickets

    # Topics

    @rule(who=clients, said=items, dies=rarely)
    def publish_some(self, who: int, said: list[Said], dies: bool) -> None:
        if not self.is_topic(TOPIC):
            self.declare_topic(who)
        self.enqueue(who, TOPIC, said, dies)

    @rule(
        who=clients,
        to=names,
        limits=st.sampled_from(((2, None), (1, None), (2, "reject-publish"), (0, "reject-publish"))),
        waiting=st.sampled_from((1, 1, 2, 3)),
        first=st.sampled_from(([Said(4)], [Said(4), Said(4, 100)], [Said(10, 100), Said(4)])),
        late=st.sampled_from((0, 100)),
        said=strategies.sudden,
    )
    def publish_where_consumers_wait(
        self,
        who: int,
        to: str,
        limits: tuple[int, str | None],
        waiting: int,
        first: list[Said],
        late: int,
        said: list[Said],
    ) -> None:
        """Copies for a queue with little room, where consumers wait, and some messages have expired, perhaps."""
        if to == TOPIC or not self._exists(who, to):
            return
        self.bind(who, to, [])
        self.update(who, to, {"max_length": limits[0], "overflow": limits[1]}, None)
        for _ in range(waiting):
            self.wait(who, to, 1, 1000, [])
        self.enqueue(who, to, first, dies=False)
        self.clock.move(late)
        self.publish_some(who, said, False)

    # Scheduled messages

    @rule(
        who=clients,
        name=names,
        count=st.sampled_from((0, 1, 1, 2)),
        said=strategies.sudden,
        full=rarely,
        then=st.sampled_from(("sweep", "stats")),
    )
    def arrive_where_consumers_wait(
        self, who: int, name: str, count: int, said: list[Said], full: bool, then: str
    ) -> None:
        """Consumers wait at a due time, perhaps at a queue that takes nothing else."""
        if not self._exists(who, name):
            return
        if full:
            self.update(who, name, {"max_length": 1, "overflow": "reject-publish"}, None)
        self.schedule(who, name, [(one, None, 5) for one in (*said, *said)], False)
        for _ in range(count):
            self.wait(who, name, 1, 100, [])
        self.clock.move(5)
        self.look(who, name, then, False, 1, 0)

    @rule(who=clients, name=names, said=strategies.comings, dies=rarely)
    def schedule(self, who: int, name: str, said: list[tuple[Said, str | None, int]], dies: bool) -> None:
        if not self._exists(who, name):
            return
        now, batch, messages = self.clock.now, [], []
        for one, id, after in said:
            at = now + one.at if one.at is not None and one.ttl is None else None
            item = Item(self.body(one.size), id, one.ttl, at, {"n": 1} if one.headed else {})
            batch.append((item, now + after))
            due: dict[str, Any] = {"delay": ms(after)} if after >= 0 else {"deliver_at": now + after}
            ttl, headers = ms(item.ttl), item.headers or None
            messages.append(Message(item.body, ttl=ttl, expires_at=at, headers=headers, id=id, **due))
        told: list[Any] = []
        receipts = self.act(
            who,
            message_flows.enqueue(name, messages),
            "schedule",
            lambda: told.extend(self.world.schedule(name, now, batch)),
            deaf=dies,
        )
        for receipt, (scheduled, deadline) in zip(receipts, told, strict=True):
            expires_at = None if deadline is None else as_datetime(deadline)
            id = scheduled.item.id or scheduled.seq.decode()
            assert receipt == Receipt(id, expires_at, deliver_at=as_datetime(scheduled.due))
        self.compare()

    @precondition(lambda self: any(q.scheduled for q in self.world.queues.values()))
    @rule(
        who=clients,
        which=st.integers(0, 9),
        by=st.sampled_from(("id", "place", "nothing")),
        after=st.sampled_from((None, None, 0, 5, 50, 300, -5)),
        dies=rarely,
    )
    def cancel_or_reschedule(self, who: int, which: int, by: str, after: int | None, dies: bool) -> None:
        """By an id or a first place, also of a message that is due, or that was never there."""
        chosen = [(q.name, s) for q in self.world.queues.values() for s in q.scheduled]
        name, one = chosen[which % len(chosen)]
        id = one.item.id if by == "id" and one.item.id else one.seq.decode() if by != "nothing" else "nothing"
        now, keyspace = self.clock.now, self.clients[who].keyspace
        expected: list[int] = []
        if after is None:
            flow = message_flows.cancel(keyspace, name, id)
            done = self.act(who, flow, "cancel", lambda: expected.append(self.world.cancel(name, id)), deaf=dies)
        else:
            due: dict[str, Any] = {"delay": ms(after)} if after >= 0 else {"deliver_at": now + after}
            flow = message_flows.reschedule(keyspace, name, id, **{"delay": None, "deliver_at": None, **due})
            move = lambda: expected.append(self.world.reschedule(name, id, now + after))  # noqa: E731
            done = self.act(who, flow, "reschedule", move, deaf=dies)
        assert [done] == expected
        self.compare()

    @precondition(lambda self: any(q.scheduled for q in self.world.queues.values()))
    @rule(
        who=clients,
        which=st.integers(0, 9),
        off=st.sampled_from((0, 0, 1, 30, -1)),
        then=st.sampled_from(("sweep", "sweep", "receive", "stats", "peek")),
        dies=rarely,
    )
    def leap_to_a_due_time(self, who: int, which: int, off: int, then: str, dies: bool) -> None:
        """The clock goes to a due time, or past it, and somebody looks."""
        chosen = [(q.name, s) for q in self.world.queues.values() for s in q.scheduled]
        name, one = chosen[which % len(chosen)]
        self.clock.move(max(0, one.due + off - self.clock.now))
        if then == "receive":
            self._receive(who, name, 3, dies=dies)
        else:
            self.look(who, name, then, dies, 100, 0)

    @rule(
        who=clients,
        name=names,
        count=st.sampled_from((1, 1, 2, 5, 0)),
        lease=leases,
        auto=rarely,
        finish=st.none() | picks,
        again=rarely,
        dies=rarely,
    )
    def receive(
        self, who: int, name: str, count: int, lease: int, auto: bool, finish: list[int] | None, again: bool, dies: bool
    ) -> None:
        finished: list[Pair] = []
        if finish and self.seen:
            name, finished = self.deliveries(finish, foreign=False)
        if self._exists(who, name):
            self._receive(who, name, count, lease, auto=auto, finished=finished, again=again, dies=dies)

    def _receive(
        self,
        who: int,
        name: str,
        count: int,
        lease: int = 50,
        *,
        auto: bool = False,
        finished: Sequence[Pair] = (),
        again: bool = False,
        dies: bool = False,
        presence: Presence = ABSENT,
    ) -> bool:
        """Returns whether anything was taken."""
        if count and self.goes_on(name):
            with pytest.raises(QueueForwards):
                self.clients[who].perform(receive.receive_once(name, count, lease))
            return False
        now = self.clock.now
        expected: list[Taken] = []
        unknown: list[bytes] = []

        def apply() -> None:
            """The flow comes again after a sweep, if only that can let messages arrive."""
            first, before = not expected, self.before[name]
            waiter = self.raw[name].waiters.get(presence.consumer.encode(), 0)
            taken = self.world.receive(
                name,
                now,
                count,
                lease,
                auto=auto,
                finished=finished if first else (),
                again=again,
                due=before.due,
                ticket=presence.ticket,
                late=before.wakeup if presence.consumer and not presence.block else [],
                others=sum(end > now for end in before.ends) - (first and waiter > now),
            )
            if first:
                unknown.extend(self.world.unknown)
            expected.append(taken if first else Taken(taken.messages, expected[0].lost))

        broker = self.clients[who]
        answers = list[Ok]()
        flow = receive.receive_once(
            name,
            count,
            lease,
            auto_ack=auto,
            presence=presence,
            finished=words_of(finished),
            replay=again,
            answered=answers.append,
        )
        claimed = self.act(who, flow, "receive", apply, deaf=dies, again=True)
        taken = expected[-1]
        assert [entry[0] for entry in claimed.entries] == [m.seq for m in taken.messages]
        assert [entry[2] for entry in claimed.entries] == [m.body for m in taken.messages]
        assert [seq for answer in answers for seq in answer.lost] == taken.lost
        assert [seq for answer in answers for seq in answer.unknown] == unknown
        assert claimed.failures == {m.seq: m.failures for m in taken.messages if m.failures}
        for m in taken.messages:
            assert (claimed.token == b"") == auto
            if not auto:
                m.token = claimed.token
                assert (name, m.seq, m.token) not in self.seen, "a token was given twice"
                self.seen.append((name, m.seq, m.token))
        followed = len(broker.log) > 1
        self.compare()
        if not self.world.queues[name].options.keys() & set(CONTROLS):
            # a consumer that leaves may ring, which makes the queue due, and does not look again
            assert followed or not count or claimed.due == self.raw[name].due
        return bool(taken.messages)

    @rule(
        who=clients,
        name=names,
        take=st.sampled_from(((1, 200), (1, 1000), (2, 200), (5, 1000))),
        action=actions,
        delay=delays,
        counted=st.sampled_from((True, True, False)),
        description=strategies.descriptions,
        dies=rarely,
        meanwhile=st.lists(st.sampled_from(MEANWHILE), max_size=3),
        more=items,
    )
    def work(
        self,
        who: int,
        name: str,
        take: tuple[int, int],
        action: str,
        delay: int | None,
        counted: bool,
        description: str | None,
        dies: bool,
        meanwhile: list[str | int],
        more: list[Said],
    ) -> None:
        """The usual work of a consumer: it takes messages from any queue and settles them after a while."""
        count, lease = take
        if not self._exists(who, name):
            return
        if not self.world.queues[name].ready:
            self.enqueue(who, name, more, dies=False)
            name = next((other for other, q in self.world.queues.items() if q.ready), name)
        if not self._receive(who, name, count, lease):
            return
        q = self.world.queues[name]
        m = q.find(self.seen[-1][1])
        deadline = None if m is None else q.deadline(m)
        for what in meanwhile:
            if what == "fill":
                self.enqueue(who, name, more, dies=False)
            elif what == "fade":
                self.enqueue(who, name, [Said(4, 1), Said(4, 1)], dies=False)
                self.clock.move(1)
            elif what == "sweep":
                self.sweep(who, name, dies=False)
            elif what == "deadline" and deadline is not None:
                self.clock.move(min(lease, max(0, deadline - self.clock.now)))
            elif isinstance(what, int):
                self.clock.move(what)
        self.settle(who, action, list(range(count)), False, delay, counted, 50, description, dies)

    @rule(
        who=clients,
        name=names,
        lapses=rarely,
        late=st.sampled_from((0, 0, 10)),
        more=items,
        descriptions=st.lists(strategies.descriptions, min_size=3, max_size=3),
    )
    def fail_again(
        self, who: int, name: str, lapses: bool, late: int, more: list[Said], descriptions: list[str | None]
    ) -> None:
        """A message fails, is away for its pause, and fails again for another reason."""
        for description in descriptions:
            if not self._exists(who, name):
                return
            if not self.world.queues[name].ready:
                self.enqueue(who, name, more, dies=False)
            if not self._receive(who, name, 1, 10):
                return
            if lapses:
                self.clock.move(10 + late)
                self.sweep(who, name, dies=False)
            else:
                self.settle(who, "nack", [0], False, None, True, 50, description, False)
            m = self.world.queues[name].find(self.seen[-1][1])
            if m is not None and m.state == "delayed":
                self.clock.move(m.until - self.clock.now)

    @rule(
        who=clients,
        first=st.integers(0, 9),
        chosen=picks,
        home=st.sampled_from((True, True, True, False)),
        name=names,
        strange=rarely,
        again=rarely,
        dies=rarely,
        full=rarely,
    )
    def redrive(
        self,
        who: int,
        first: int,
        chosen: list[int],
        home: bool,
        name: str,
        strange: bool,
        again: bool,
        dies: bool,
        full: bool,
    ) -> None:
        """Dead letters go back to where they died, or elsewhere, from any state; a foreign one is not there."""
        letters = [(q, m) for q in self.world.queues.values() for m in q.messages if m.deaths]
        if not letters:
            return
        d, letter = letters[first % len(letters)]
        source, origin = (
            d.name,
            next((r.queue for r in letter.deaths if r.reason != "redriven"), name) if home else name,
        )
        if origin == source or not self._exists(who, origin):
            return
        if full:
            self.update(who, origin, {"max_length": 0, "overflow": "reject-publish-dlx"}, None)
            if letter not in d.messages:
                return
        seqs = [letter.seq, *[d.messages[pick % len(d.messages)].seq for pick in chosen]]
        seqs = list(dict.fromkeys([*seqs, b"%013d-999999" % self.clock.latest] if strange else seqs))
        now, known = self.clock.now, {m.seq for m in d.messages}
        became: list[Msg | str | None] = []
        flow = steps.with_config(origin, lambda at: commands.redrive(at, source, seqs))
        if again:
            flow = _marked(flow, "redrive")
        move = lambda: became.extend(self.world.redrive(source, origin, now, seqs, self.free(origin)))  # noqa: E731
        reply = self.act(who, flow, "redrive", move, deaf=dies)
        for seq, told, one in zip(seqs, reply.results, became, strict=True):
            if one is None:
                assert told == (b"=" if again and seq not in known else b"-")
            else:
                place = told.split(b" ")[0]
                q = self.world.queues[origin]
                dead = not isinstance(one, str) and q.is_mortal(one, now) and one.state != "leased"
                assert place == (b"!" + one.encode() if isinstance(one, str) else b"~" * dead + one.seq)
        self.compare()

    # Single messages

    @precondition(lambda self: any(q.everything for q in self.world.queues.values()))
    @rule(who=clients, one=st.integers(0, 99), chosen=picks, held=rarely, what=INTERVENTIONS, to=names, dies=rarely)
    def intervene(self, who: int, one: int, chosen: list[int], held: bool, what: str, to: str, dies: bool) -> None:
        """Somebody picks messages in any state; without `held` mostly such as no consumer has."""
        if what == "move" and not self._exists(who, to):
            return
        everything = [(q, m) for q in self.world.queues.values() for m in q.everything]
        q, first = everything[one % len(everything)] if everything else (None, None)
        if q is None or first is None or (what, to) == ("move", q.name):
            return
        self.find(who, q.name, first)
        seqs = list(dict.fromkeys([first.seq, *(q.everything[pick % len(q.everything)].seq for pick in chosen)]))
        if not held:
            seqs = [seq for seq in seqs if (m := q.find(seq)) is None or m.state != "leased"] or seqs
        now, expected = self.clock.now, list[tuple[Any, ...]]()
        if what == "move":
            flow = steps.with_config(to, lambda at: commands.move(at, q.name, seqs))
            apply = lambda: expected.append(self.world.move(q.name, to, now, seqs, self.free(to)))  # noqa: E731  # short
        else:
            flow = steps.with_config(q.name, lambda at: commands.intervene(at, what, seqs, description=b"why"))
            apply = lambda: expected.append(self.world.intervene(q.name, now, what, seqs, "why"))  # noqa: E731  # short
        reply: Any = self.act(who, flow, "move" if what == "move" else "intervene", apply, deaf=dies)
        told = (reply.done, reply.leased, *([reply.limit.decode()] if what == "move" else []))
        assert [told] == expected
        self.compare()

    @precondition(lambda self: any(q.everything for q in self.world.queues.values()))
    @rule(
        who=clients,
        one=st.integers(0, 99),
        chosen=picks,
        to=names,
        room=st.sampled_from((0, 1, 2)),
        waiting=st.sampled_from((1, 1, 2, 3)),
        said=strategies.sudden,
    )
    def move_where_consumers_wait(
        self, who: int, one: int, chosen: list[int], to: str, room: int, waiting: int, said: list[Said]
    ) -> None:
        """Messages for a queue that refuses what has no room, and where consumers wait, perhaps for those there."""
        if not self._exists(who, to):
            return
        self.update(who, to, {"max_length": room, "overflow": "reject-publish"}, None)
        for _ in range(waiting):
            self.wait(who, to, 1, 100, [])
        self.enqueue(who, to, said, dies=False)
        everything = [q for q in self.world.queues.values() for _ in q.everything]
        others = [i for i, q in enumerate(everything) if q.name != to]
        if others:
            self.intervene(who, others[one % len(others)], chosen, False, "move", to, False)

    def find(self, who: int, name: str, one: Msg | Scheduled) -> None:
        """Whoever looks for a message finds all that have its id."""
        q, now, client = self.world.queues[name], self.clock.now, self.clients[who]
        id = (one.id if isinstance(one, Msg) else one.item.id) or one.seq.decode()
        alive = [m for m in q.messages if m.state == "leased" or not q.expired(m, now)]
        wanted = [m.seq for m in alive if m.seq.decode() == id]
        wanted = wanted or [*(s.seq for s in q.named(id)), *(m.seq for m in alive if (m.id or m.seq.decode()) == id)]
        views, complete = client.perform(single.search(client.keyspace, name, id))
        assert complete
        assert sorted(view.sequence.encode() for view in views) == sorted(wanted)

    # Waiting

    @rule(
        who=clients,
        name=names,
        count=st.sampled_from((1, 1, 3)),
        block=st.sampled_from((5, 100, 1000)),
        then=st.lists(strategies.sudden, max_size=2),
    )
    def wait(self, who: int, name: str, count: int, block: int, then: list[list[Said]]) -> None:
        """A consumer waits. Messages come at once, also some that only it can save."""
        if self._exists(who, name):
            self.consumers += 1
            waiter = Waiter(f"consumer{self.consumers}", name, who, count)
            self._look(waiter, block, b"")
            for said in then:
                self.enqueue(who, name, said, dies=False)

    def _look(self, waiter: Waiter, block: int, ticket: bytes) -> None:
        name = waiter.queue
        presence = Presence(waiter.consumer, block, 0, ticket)
        found = self._receive(waiter.who, name, waiter.count, presence=presence)
        if waiter.count and self.goes_on(name):
            return
        waits = not found and block > 0
        until = self.raw[name].waiters.get(waiter.consumer.encode())
        assert (until is not None) == waits
        # it looks at the end of its wait, or when the queue is due
        assert until is None or self.clock.now <= until - LATE <= self.clock.now + block
        if waits:
            self.waiters.append(waiter)

    @precondition(lambda self: self.waiters)
    @rule(
        which=st.integers(0, 3),
        block=st.sampled_from((0, 50, 1000)),
        woken=st.sampled_from((True, True, False)),
        late=st.sampled_from((False, False, False, False, False, True)),
        leaves=rarely,
    )
    def wake(self, which: int, block: int, woken: bool, late: bool, leaves: bool) -> None:
        """A consumer is woken, or its wait is over. Then it looks again, and may go on waiting; or it leaves."""
        waiter = self.waiters.pop(which % len(self.waiters))
        if late:
            self.clock.move(PICKUP)
        wakeup = self.clients[0].keyspace.key(waiter.queue, "wakeup")
        ticket: Any = self.client.lpop(wakeup) if woken else None
        if ticket is not None:
            self.raw[waiter.queue].wakeup.pop(0)
        if leaves:
            waiter.count = block = 0
        self._look(waiter, block, ticket or b"")

    # Settling

    @precondition(lambda self: self.seen)
    @rule(
        who=clients,
        action=actions,
        chosen=picks,
        foreign=rarely,
        delay=delays,
        counted=st.sampled_from((True, True, False)),
        lease=leases,
        description=strategies.descriptions,
        dies=rarely,
    )
    def settle(
        self,
        who: int,
        action: str,
        chosen: list[int],
        foreign: bool,
        delay: int | None,
        counted: bool,
        lease: int,
        description: str | None,
        dies: bool,
    ) -> None:
        name, pairs = self.deliveries(chosen, foreign=foreign)
        if not self._exists(who, name):
            return
        now, world, broker = self.clock.now, self.world, self.clients[who]
        if action == "renew":
            self._renew(who, name, pairs, lease)
            return

        def apply(again: bool) -> list[bytes]:
            at = self.clock.now
            if action == "ack":
                return world.ack(name, at, pairs, again=again)
            if action == "nack":
                return world.nack(name, at, pairs, again=again, delay=delay, counted=counted, description=description)
            return world.reject(name, at, pairs, again=again, description=description)

        words, text = words_of(pairs), (description or "").encode()
        flow = {
            "ack": settling.ack(broker.keyspace, name, words, wakes=False),
            "nack": steps.with_config(
                name, lambda at: commands.nack(at, words, delay=delay, counted=counted, description=text)
            ),
            "reject": steps.with_config(name, lambda at: commands.reject(at, words, description=text)),
        }[action]
        lost: list[bytes] = []
        reply = self.act(who, flow, action, lambda: lost.extend(apply(False)), deaf=dies)
        assert (list(reply.unknown), list(reply.lost)) == ([], lost)
        assert now == self.clock.now
        self.settled[who] = (self.ran(who, action), apply)
        self.compare()

    def _renew(self, who: int, name: str, pairs: list[Pair], lease: int) -> None:
        expected = []
        flow = steps.run(commands.renew(self.clients[who].keyspace, name, words_of(pairs), lease=lease))
        now = self.clock.now
        reply = self.act(who, flow, "renew", lambda: expected.append(self.world.renew(name, now, pairs, lease)))
        ((held, lost),) = expected
        assert list(reply.lost) == lost
        for m in held:
            m.token = reply.token
            self.seen.append((name, m.seq, reply.token))
        self.compare()

    @precondition(lambda self: any(self.settled))
    @rule(who=clients)
    def settle_again(self, who: int) -> None:
        """The reply to the last settle was lost, so the client repeats it, in any later state of the queue."""
        settled = self.settled[who]
        if settled is None:
            return
        command, apply = settled
        if command.queue in self.raw:
            broker = self.clients[who]
            broker.clear_log()
            reply = broker.step(command.as_replay())
            if reply[0] == b"ok":
                lost = apply(True)
                assert [list(part) for part in reply[2:]] == [self.world.unknown, lost]
                self.attempt(who, queues.follow(broker.keyspace, reply[1] or (), set(), {}), "", lambda: None)
            self.compare()

    # One rule is as likely as the other, so what matters most stands here more than once.
    send_more = send_even_more = enqueue
    publish_more = publish_even_more = publish_some
    redrive_more = redrive
    leap_more = leap_to_a_due_time
    cancel_more = cancel_or_reschedule
    schedule_more = schedule
    intervene_more = intervene
    work_more = work_even_more = work_all_day = work


def _marked(flow: steps.Flow[T], script: str) -> steps.Flow[T]:
    """The flow, its call of `script` marked as the repetition of one whose reply was lost."""
    try:
        step = next(flow)
        while True:
            marked = step.as_replay() if isinstance(step, Command) and step.script.name == script else step
            try:
                answer = yield marked
            except Exception as error:  # noqa: BLE001  # the flow decides about it
                step = flow.throw(error)
            else:
                step = flow.send(answer)
    except StopIteration as done:
        result: T = done.value
        return result
