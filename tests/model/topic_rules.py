"""Rules about topics and forwards, about publishing, and what every client does that passes messages on."""

import json
from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from rqttl import InvalidInput, Message, QueueFull, QueueMismatch, QueueNotFound, Receipt
from rqttl.flows import bindings
from rqttl.flows import messages as message_flows
from rqttl.protocol.commands import Command, Reply
from rqttl.units import as_datetime
from tests.contract.clocked import ms
from tests.model.machine import policies_of
from tests.model.policy_rules import PolicyRules
from tests.model.queues import Item, Msg
from tests.model.strategies import clients, lives, names
from tests.model.topics import FILTERS, Copies

T = TypeVar("T")
TOPIC = "t"
bound = st.sampled_from(("a", "a", "b", "b", "dead", "a.late"))
filters = st.sampled_from(FILTERS)


class TopicRules(PolicyRules):
    @initialize(first=filters, second=filters, third=st.none() | filters)
    def declare_topic_and_bind(self, first: Any, second: Any, third: Any) -> None:
        self.declare_topic(0)
        for queue, rules in (("a", first), ("b", second), ("dead", third)):
            if rules is not None:
                self.bind(0, queue, rules)

    # Bindings

    @rule(who=clients)
    def declare_topic(self, who: int) -> None:
        there = self.world.queues.get(TOPIC)
        if there is not None and there.adopted and there.bindings is None:
            self.remove(who, TOPIC)
            self.compare()
        kept = {} if there is None else there.declared
        declared = {name: value for name, value in kept.items() if name != "forward_to"}
        self._declare(who, TOPIC, declared, is_topic=True)
        self.compare()

    @rule(who=clients, queue=bound, rules=filters)
    def bind(self, who: int, queue: str, rules: Any) -> None:
        flow = bindings.bind(self.clients[who].keyspace, TOPIC, queue, rules)
        if not self.is_topic(TOPIC):
            error: type[Exception] = QueueMismatch if TOPIC in self.raw else QueueNotFound
        elif queue not in self.raw:
            error = QueueNotFound
        elif self.world.queues[queue].passes_to is not None and self.world.comes_back(TOPIC, [queue]):
            error = InvalidInput
        elif self.bound.get(queue, rules) != rules:
            error = QueueMismatch
        else:
            self.act(who, flow, "update", lambda: self.rebind(who, {**self.bound, queue: rules}))
            self.compare()
            return
        with pytest.raises(error):
            self.clients[who].perform(flow)

    @precondition(lambda self: self.is_topic(TOPIC) and self.bound)
    @rule(who=clients, which=st.integers(0, 5), rules=st.none() | filters)
    def unbind_or_set_filter(self, who: int, which: int, rules: Any) -> None:
        queue, keyspace = sorted(self.bound)[which % len(self.bound)], self.clients[who].keyspace
        left = {name: value for name, value in self.bound.items() if name != queue}
        if rules is None:
            self.act(who, bindings.unbind(keyspace, TOPIC, queue), "update", lambda: self.rebind(who, left))
        else:
            flow = bindings.set_filter(keyspace, TOPIC, queue, rules)
            self.act(who, flow, "update", lambda: self.rebind(who, {**left, queue: rules}))
        self.compare()

    @rule(who=clients, queue=st.sampled_from(("a.late", "a.late", "dead", TOPIC)))
    def delete_for_long(self, who: int, queue: str) -> None:
        """A queue is gone, and the binding of it perhaps still there."""
        if self._exists(who, queue):
            self.remove(who, queue)
            self.compare()

    @rule(
        who=clients,
        name=names,
        to=st.sampled_from((None, None, None, None, "a", "b", "dead", "a.late", "t")),
        lives=lives,
    )
    def forward(self, who: int, name: str, to: str | None, lives: int | None) -> None:
        """All messages of a queue go on to another one, or no longer do."""
        self.update(who, name, {"forward_to": to}, lives)

    @property
    def bound(self) -> dict[str, Any]:
        return self.world.queues[TOPIC].bindings or {}

    def rebind(self, who: int, now_bound: dict[str, Any]) -> None:
        self.world.bind(TOPIC, now_bound, self.policies_sent(who))

    # Publishing

    def publish(self, who: int, topic: str, batch: list[Item], dies: bool) -> None:
        """Send to a topic. `follow` and `refused` have seen what the calls did; here are the answers of the client."""
        messages = [Message(i.body, ttl=ms(i.ttl), expires_at=i.at, headers=i.headers or None, id=i.id) for i in batch]
        self.sends(batch)
        receipts = self.act(who, message_flows.enqueue(topic, messages), "", lambda: None, deaf=dies)
        q = self.world.queues[topic]
        for number, receipt in enumerate(receipts):
            outcome = self.outcomes.get(number)
            if isinstance(outcome, Msg):
                ends = q.deadline(outcome)
                expires_at = None if ends is None else as_datetime(ends)
                assert isinstance(receipt, Receipt)
                assert (receipt.id, receipt.expires_at) == (outcome.id or outcome.seq.decode(), expires_at)
            else:
                assert isinstance(receipt, QueueFull)
                assert outcome is None or outcome == (receipt.queue, receipt.limit)
                assert self.world.queues[receipt.queue].options.get("overflow", "drop-head") != "drop-head"
        self.compare()

    def act(self, who: int, flow: Generator[Any, Any, T], script: str, apply: Callable[[], object], **how: bool) -> T:
        """See `Machine.act`. Whoever lives passes on what arrives in an operation where nothing had to wait before."""
        clear = {name for name, q in self.world.queues.items() if not q.ready}
        self.held = set()
        result = super().act(who, flow, script, apply, **how)
        self.passing |= set() if how.get("deaf") else clear
        return result

    def compare(self) -> None:
        super().compare()
        passing, self.passing = self.passing & self.raw.keys() - self.held, set()
        for name in passing:
            q = self.world.queues[name]
            if q.passes_on and not self.world.comes_back(name, q.passes_to or ()):
                assert not q.ready, f"{name}: messages wait"

    def left(self, topic: str, item: Item, seq: bytes | None) -> list[str]:
        """The queues that get a message, or have not got it yet."""
        mark = self.world.queues[topic].mark
        found = self.world.route(topic, item.headers, item.deaths)
        return [name for name in found if seq != mark[0] or name > mark[1]]

    # What clients do by themselves

    def follow(self, command: Command, reply: Reply, *, counts: bool) -> None:
        script = command.script.name
        if script == "publish":
            self.applied += 1
            self.copied(command)
        elif script == "enqueue":  # a message that no call can publish now
            self.applied += 1
            step = 2 if command.word("form") in ("", "ids") else 1
            places = self.places(command.words[self.first(command) + step - 1 :: step])
            items = [self.sending[place] for place in places]
            told = self.world.enqueue(command.queue, self.clock.now, items, self.free(command.queue))
            for place, one in zip(places, told, strict=True):
                self.outcomes[place] = one if isinstance(one, Msg) else (command.queue, one)
        elif script == "declare":  # a missing target of a forward
            assert not command.word("declared"), "somebody declares what nobody asked for"
            self.world.found(command.queue, self.clock.now)
        elif script == "update" and command.word("declared"):
            found = json.loads(str(command.word("declared")))["bindings"]
            self.world.unbind_gone(command.queue, found, policies_of(command))
        else:
            super().follow(command, reply, counts=counts)

    def copied(self, command: Command) -> None:
        """A call has stored copies: in the queues that the messages are for, in no other, and nobody refuses one."""
        topic, now, mark = command.queue, self.clock.now, str(command.word("mark"))
        copies, places, items = self.call(command)
        assert self.world.refusal(now, items, copies) is None, f"{topic}: a copy without room"
        seqs = [str(word).encode() for word in self.batch(command)] if command.word("form") == "log" else []
        for number, item in enumerate(items, 1):
            expected = self.left(topic, item, seqs[0] if seqs else None)
            if mark:
                assert expected[-1] > mark.partition(" ")[2]
                expected = [name for name in expected if name <= mark.partition(" ")[2]]
            assert sorted(one.queue for one in copies if number in one.numbers) == expected, f"{topic}: for others"
        if seqs:
            self.world.pass_on(topic, now, seqs, copies, mark)
        else:
            taken = self.world.publish(topic, now, [self.sending[place] for place in places], copies)
            self.outcomes.update(zip(places, taken, strict=True))

    def refused(self, command: Command, reply: Reply) -> None:
        """A call that a full queue refuses, or that has to come again."""
        code = reply[1].decode()
        if command.script.name != "publish" or code not in ("full", "retry"):
            return
        self.applied += 1
        copies, places, items = self.call(command)
        expected = self.world.refusal(self.clock.now, items, copies)
        if code == "retry":
            assert isinstance(expected, Copies), f"{command.queue}: all have room"
            self.world.make_room(self.world.queues[expected.queue], self.clock.now)
        else:
            name, limit, number = reply[2].decode(), reply[3].decode(), int(reply[4])
            assert (name, limit, number) == expected, f"{command.queue}: refused"
            if places:
                self.outcomes[places[number - 1]] = (name, limit)
            elif number == 1:
                self.held.add(command.queue)

    def call(self, command: Command) -> tuple[list[Copies], list[int], list[Item]]:
        """What each queue gets of a call, the places of its messages, and what their copies begin as."""
        q, now, batch = self.world.queues[command.queue], self.clock.now, self.batch(command)
        if command.word("form") == "log":
            places, items = [], self.world.waiting_at(q, now, [str(word).encode() for word in batch])
        else:
            places = self.places(batch[1::2])
            items = self.world.originals(q, now, [self.sending[place] for place in places])[1]
        copies = [
            Copies(name, list(map(int, str(numbers).split())) or range(1, len(items) + 1), self.free(name))
            for name, _, _, _, numbers in self.queues_of(command)
        ]
        return copies, places, items

    def places(self, bodies: Sequence[Any]) -> list[int]:
        """The places of these bodies in what a client sends. Between them are such as were answered."""
        left = iter([place for place in range(len(self.sending)) if place not in self.outcomes])
        return [next(place for place in left if self.sending[place].body == body) for body in bodies]
