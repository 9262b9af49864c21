"""Lifetimes and duplicates against a few lines of Python: is the queue there, what does it hold, where did it go.

A policy may give the queue a lifetime.
"""

import os
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rqttl import Message, Policy, QueueNotFound
from rqttl.policies import PolicySet
from rqttl.store.driver import driver_of
from tests.contract.clocked import START, Clocked, ms
from tests.model.queues import as_written
from tests.unit.policies import reference

RUNS = int(os.environ.get("RQTTL_MODEL_RUNS", "200"))
LIVES = st.sampled_from((None, 20, 50))
OPTIONS = st.fixed_dictionaries(
    {
        "expires": LIVES,
        "auto_delete_on_idle": LIVES,
        "on_expire": st.sampled_from(("drop", "dead-letter", "keep")),
        "duplicate_window": LIVES,
        "dead_letter": st.sampled_from((None, "dead")),
    }
)
STEP = st.one_of(
    st.tuples(st.just("wait"), st.sampled_from((1, 5, 19, 20, 30, 49, 50))),
    st.tuples(st.just("enqueue"), st.tuples(st.lists(st.sampled_from("abc"), min_size=1, max_size=4), LIVES)),
    st.tuples(st.sampled_from(("receive", "ack", "delay", "touch", "peek", "sweep", "stats", "declare")), st.just(0)),
    st.tuples(st.just("update"), OPTIONS),
    st.tuples(
        st.just("policy"),
        st.fixed_dictionaries(
            {},
            optional={
                "expires": LIVES,
                "auto_delete_on_idle": LIVES,
                "on_expire": st.sampled_from(("drop", "dead-letter", None)),
                "dead_letter": st.sampled_from((None, "dead")),
            },
        ),
    ),
)


@dataclass
class Model:
    """The queue `q`. `now` is given to every call; a call of a queue that is over finds none."""

    declared: dict[str, Any]
    used: int
    active: int
    there: bool = True
    messages: list[str] = field(default_factory=list)
    leased: list[str] = field(default_factory=list)
    seen: dict[str, int] = field(default_factory=dict)
    #: Until when calls with a window of their own want ids to be remembered.
    kept: dict[str, int] = field(default_factory=dict)
    dead: int = 0
    #: How many messages have come, and how many had when the end of a lifetime found none.
    arrived: int = 0
    emptied: int = 0
    policies: tuple[Policy, ...] = ()

    @property
    def options(self) -> dict[str, Any]:
        """The options in force."""
        # a declared default is an option left out
        declared = {name: value for name, value in self.declared.items() if value not in (None, "drop")}
        return {"on_expire": "drop", **reference.in_force("q", declared, self.policies)}

    def number(self, name: str) -> int | None:
        value = self.options.get(name)
        return value if isinstance(value, int) else None

    def look(self, now: int) -> bool:
        """Return True if the queue is there for a call at `now`."""
        expires, idle = self.number("expires"), self.number("auto_delete_on_idle")
        ends = [since + life for since, life in ((self.used, expires), (self.active, idle)) if life is not None]
        if self.there and ends and min(ends) <= now:
            held = len(self.messages) + len(self.leased)
            if self.options["on_expire"] == "keep" and (held or self.arrived != self.emptied):
                self.used = self.active = now
                self.emptied = self.emptied if held else self.arrived
            else:
                self.there = False
                if self.options["on_expire"] == "dead-letter" and self.options.get("dead_letter"):
                    self.dead += held
        return self.there

    def enqueue(self, now: int, ids: list[str], own: int | None) -> list[bool]:
        self.active = max(self.active, now)
        window, duplicates = self.number("duplicate_window"), []
        for id in ids:
            known = window is not None and id in self.seen and self.seen[id] + window > now
            duplicates.append(known or (own is not None and self.kept.get(id, 0) > now))
            if not duplicates[-1]:
                self.arrived += 1
                self.messages.append(id)
                if window is not None:
                    self.seen[id] = now
                if own is not None:
                    self.kept[id] = now + own
        return duplicates


def carry_out(clocked: Clocked, model: Model, what: str, more: object) -> None:
    """One step on Redis and on the model; what the caller sees is the same."""
    queue, now = clocked.queue("q"), clocked.now
    if what == "wait":
        assert isinstance(more, int)
        clocked.advance(more)
        return
    if what == "policy":
        assert isinstance(more, dict)
        change_policy(clocked, model, more)
        return
    if what == "declare":
        if not model.look(now):
            renewed = Model(model.declared, now, now, dead=model.dead, policies=model.policies)
            vars(model).update(vars(renewed))
        clocked.declare_queue("q", **as_written(model.declared))
        model.used = model.active = now
        return
    if not model.look(now):
        with pytest.raises(QueueNotFound):
            call(clocked, model, what, more)
        return
    call(clocked, model, what, more)
    assert queue.stats().ready == len(model.messages)


def change_policy(clocked: Clocked, model: Model, definition: dict[str, Any]) -> None:
    """Set the policy, or delete it. That is no use of the queue, but another lifetime begins then."""
    model.look(clocked.now)
    before = model.number("expires"), model.number("auto_delete_on_idle")
    if definition:
        clocked.set_policy("p", "q", as_written(definition))
        model.policies = (Policy.read("p", "q", as_written(definition)),)
    elif model.policies:
        clocked.delete_policy("p")
        model.policies = ()
    if before != (model.number("expires"), model.number("auto_delete_on_idle")):
        model.used = model.active = clocked.now


def call(clocked: Clocked, model: Model, what: str, more: object) -> None:
    queue, now = clocked.queue("q"), clocked.now
    if what == "enqueue":
        assert isinstance(more, tuple)
        ids, own = more
        receipts = queue.enqueue_many([Message(b"x", id=id) for id in ids], duplicate_window=ms(own))
        assert [getattr(one, "duplicate", None) for one in receipts] == model.enqueue(now, ids, own)
    elif what in ("receive", "ack", "delay"):
        receive(clocked, model, what)
    elif what == "peek":
        assert len(queue.peek(100)) == len(model.messages) + len(model.leased)
        model.active = now
    elif what == "update":
        assert isinstance(more, dict)
        if more["duplicate_window"] and model.declared["duplicate_window"]:
            # a longer one knows of what came before no more than has not been forgotten yet
            more = {**more, "duplicate_window": model.declared["duplicate_window"]}
        queue.update(**as_written(more))
        model.declared, model.used, model.active = more, now, now
        if more["duplicate_window"] is None:
            model.seen.clear()
    else:
        getattr(queue, what)()
        if what == "touch":
            model.used = model.active = now


def receive(clocked: Clocked, model: Model, what: str) -> None:
    """The oldest message, and then it is acked, given back with a delay, or held."""
    delivery = clocked.queue("q").receive(lease="1d")
    model.used = model.active = clocked.now
    assert (delivery.id if delivery else None) == (model.messages[0] if model.messages else None)
    if delivery is None:
        return
    id = model.messages.pop(0)
    if what == "ack":
        delivery.ack()
        return
    model.leased.append(id)
    if what == "delay":
        delivery.nack(delay="1d")


@settings(max_examples=RUNS, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(options=OPTIONS, steps=st.lists(STEP, max_size=25))
def test_lifetimes_and_duplicates_are_those_of_the_model(
    client: redis.Redis, clocked: Clocked, options: dict[str, Any], steps: list[tuple[str, object]]
) -> None:
    """One broker for all runs, because each keeps a connection; it forgets what it knows."""
    client.flushall()
    clocked.go_to(0)
    driver_of(clocked).configs.clear()
    driver_of(clocked).memory.policies = PolicySet()
    clocked.declare_queue("q", **as_written(options))
    model = Model(options, START, START)

    for what, more in steps:
        carry_out(clocked, model, what, more)
        there = model.look(clocked.now)
        assert ("q" in clocked.queues()) == there
        if not there:
            with suppress(QueueNotFound):
                clocked.queue("q").sweep()  # looking has left its keys
            assert {*client.keys("*{q}*")} <= {b"rqttl:{q}:tombstone"}
    letters = clocked.queue("dead").peek(1000) if "dead" in clocked.queues() else []
    assert len(letters) == model.dead
