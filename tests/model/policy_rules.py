"""Rules about policies: setting and deleting them, reconciling, and two clients at once."""

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import rule

from rqttl import InvalidOption, Message, Policy, PolicyNotFound, QueueMismatch, QueueNotFound
from rqttl.flows import messages
from rqttl.flows import policies as policy_flows
from rqttl.flows import queues as queue_flows
from rqttl.flows.steps import Flow
from rqttl.options import OPTIONS, QueueOptions
from rqttl.types import PolicyResult
from tests.model.queue_rules import QueueRules
from tests.model.queues import Item, ModelQueue, Msg, Options, as_written, consistent
from tests.model.strategies import clients, lives, names, policies, some_options
from tests.unit.policies import reference

#: Options whose change may let messages die at once.
DEADLY = {"message_ttl", "max_length", "max_length_bytes", "overflow"}
#: The acts of one client, and those of another one that comes between: `undo` takes back the change of a policy.
ACTS = ("set", "set", "delete", "update", "declare", "reconcile", "send", "forward")
RIVALS = ("set", "set", "undo", "undo", "delete", "update", "reconcile", "forward")
#: The script before whose call the other one comes.
MOMENTS = ("update", "update", "update", "change_policies", "declare", "sweep", "publish")


class PolicyRules(QueueRules):
    @rule(who=clients, policy=policies, lives=lives)
    def set_policy(self, who: int, policy: Policy, lives: int | None) -> None:
        self._change(who, [policy], [], lives)

    @rule(who=clients, which=st.integers(0, 5), lives=lives)
    def delete_policy(self, who: int, which: int, lives: int | None) -> None:
        stored = self.world.policies[-1]
        if stored:
            self._change(who, [], [stored[which % len(stored)]], lives)
        else:
            with pytest.raises(PolicyNotFound):
                self.clients[who].perform(policy_flows.delete(self.clients[who].keyspace, "p", operator=False))

    @rule(who=clients, chosen=st.none() | st.lists(names, max_size=3, unique=True), lives=lives)
    def reconcile(self, who: int, chosen: list[str] | None, lives: int | None) -> None:
        """Queues that are outdated because a client died have the right options afterwards."""
        keyspace = self.clients[who].keyspace
        if chosen is None:
            queues, flow = self.registry, policy_flows.reconcile_all(keyspace)
        else:
            queues, flow = set(chosen), policy_flows.reconcile(keyspace, chosen)
        if lives is None:
            self._reconciled(queues, lambda: self.attempt(who, flow, "", lambda: None))
        else:
            self.die(who, flow, "", lambda: None, lives)
        self.compare()

    def _change(self, who: int, stored: Sequence[Policy], removed: Sequence[Policy], lives: int | None) -> None:
        """All queues whose names one of the policies matches, old or new, are up to date at the end."""
        now_stored = self.world.policies[-1]
        old = [policy for policy in now_stored if policy.field in {p.field for p in stored}]
        flow = self._changing(who, stored, removed)

        def apply() -> None:
            self.world.change_policies(stored, removed)

        if lives is not None:
            self.die(who, flow, "change_policies", apply, lives)
        else:
            listed = self.registry & self.raw.keys()
            touched = [*stored, *removed, *old]
            queues = {name for name in listed if reference.is_made(name, touched)}
            queues |= {name for name in listed if any(reference.matches(policy, name) for policy in touched)}
            self._reconciled(queues, lambda: self.attempt(who, flow, "change_policies", apply))
            assert (now_stored is self.world.policies[-1]) == (not removed and old == [*stored])
        self.compare()

    def _changing(self, who: int, stored: Sequence[Policy], removed: Sequence[Policy]) -> Flow[PolicyResult]:
        keyspace = self.clients[who].keyspace
        for policy in removed:
            return policy_flows.delete(keyspace, policy.name, operator=policy.operator)
        return policy_flows.change(keyspace, stored)

    def _reconciled(self, queues: Collection[str], carry_out: Callable[[], PolicyResult]) -> None:
        """The options in force that follow replace others; the result has the changes and the number of deaths."""
        before = {q: (q.options, q.ready) for q in self.world.queues.values()}
        unlisted = before.keys() - {self.world.queues[name] for name in self.registry & self.world.queues.keys()}
        result = carry_out()
        expected = {}
        for q, (options, ready) in before.items():
            # a queue that nobody had entered is listed, and reconciled, when its last source gives it up
            if q.name not in queues and not (q in unlisted and q.name in result.changed):
                continue
            assert q.policies == self.world.version, f"{q.name}: not reconciled"
            if q.options != options:
                expected[q.name] = differences(options, q.options)
                if DEADLY & expected[q.name].keys():
                    self._check_deaths(q, ready)
        assert result.changed == expected
        assert [result.expired, result.trimmed] == [sum(n) for n in zip([0, 0], *self.killed.values(), strict=True)]
        assert result.unfinished == ()

    def _check_deaths(self, q: ModelQueue, ready: Sequence[Msg]) -> None:
        """No message that was ready before the change is there against the new options."""
        left = [m for m in ready if m in q.ready]
        assert not any(q.expired(m, self.clock.now) for m in left), f"{q.name}: retention waits"
        if q.drops_head:
            assert not q.over(len(left), sum(len(m.body) for m in left)), f"{q.name}: a limit waits"

    # Two clients

    @rule(
        who=clients,
        name=names,
        act=st.sampled_from(ACTS),
        policy=policies,
        options=some_options,
        moment=st.sampled_from(MOMENTS),
        rival=st.sampled_from(RIVALS),
        other=policies,
        changes=some_options,
    )
    def race(
        self,
        who: int,
        name: str,
        act: str,
        policy: Policy,
        options: Options,
        moment: str,
        rival: str,
        other: Policy,
        changes: Options,
    ) -> None:
        """A client acts between two calls of another one. At the end the options in force are those that follow."""
        before, stored = self.world.outdated() | self.unlisted, self.world.policies[-1]
        if act == "declare" and name in self.raw:
            self.remove(who, name)
        if rival == "undo":
            old = next((one for one in stored if one.field == policy.field), None)
            rival, other = ("delete", policy) if old is None else ("set", old)
        at, after = name, "b" if name == "a" else "a"
        if act == "forward":
            act, options = "update", {"forward_to": after}
        if rival == "forward":  # perhaps both close a circle
            rival, at, changes = "update", after, {"forward_to": name}
        self.clients[who].meanwhile = (moment, lambda: self._do(1 - who, rival, other, at, changes))
        self._do(who, act, policy, name, options)
        self.clients[who].meanwhile = None
        wrong = self.world.outdated() - before
        assert not wrong, f"other options in force than those that follow: {wrong}"
        self.compare()

    def _do(self, who: int, act: str, policy: Policy, name: str, options: Options) -> None:
        """One act of a race. It fails where the other one has made it impossible."""
        keyspace = self.clients[who].keyspace
        with suppress(InvalidOption, PolicyNotFound, QueueMismatch, QueueNotFound):
            if act in ("set", "delete"):
                stored, removed = ([policy], []) if act == "set" else ([], [policy])
                flow = self._changing(who, stored, removed)
                self.attempt(who, flow, "change_policies", lambda: self.world.change_policies(stored, removed))
            elif act == "update":
                update = queue_flows.update(keyspace, name, as_written(options))
                self.attempt(who, update, act, lambda: self.update_now(who, name, options))
            elif act == "declare":
                self._do_declare(who, name, {option: value for option, value in options.items() if value is not None})
            elif act == "reconcile":
                self.attempt(who, policy_flows.reconcile_all(keyspace), "", lambda: None)
            else:
                self._send_dead(who, name)

    def _do_declare(self, who: int, name: str, declared: Options) -> None:
        if consistent(name, declared):
            flow = queue_flows.declare(self.clients[who].keyspace, QueueOptions.read_stored(name, declared))
            self.attempt(who, flow, "declare", lambda: self.declare_now(who, name, declared))
            self.unlisted.discard(name)

    def _send_dead(self, who: int, name: str) -> None:
        """A message dies on arrival, and perhaps creates a queue."""
        item, now = Item(self.body(4), ttl=0), self.clock.now
        self.sends([item])
        flow = messages.enqueue(name, [Message(item.body, ttl=0)])
        self.attempt(who, flow, "enqueue", lambda: self.world.enqueue(name, now, [item], self.free(name)))


def differences(before: Options, after: Options) -> dict[str, tuple[object, object]]:
    """The differing options, each with both values, as results have them."""
    values = {
        name: tuple(side.get(name, option.default) for side in (before, after)) for name, option in OPTIONS.items()
    }
    return {name: (was, is_now) for name, (was, is_now) in values.items() if was != is_now}
