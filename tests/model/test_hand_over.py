"""Random steps of up to four movers that hand dead letters over to queues in other slots, on a real Redis.

A step of a mover is one call. It may be carried out, its reply may be lost, and any other mover may come between two
of them, however late. Meanwhile messages die, queues are deleted, and all keys of a slot go back to an older state, as
after a failover that loses writes. At the end everything that waits is moved by those who look when a queue is due.

RQTTL_MODEL_RUNS raises the number of runs, RQTTL_MODEL_FIRST is the number of the first one. A run is its number.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import pytest
import redis

from rqttl import Broker
from rqttl.flows import moving, registry
from rqttl.flows.steps import Flow, HandleNotes, Step
from rqttl.flows.sweeping import sweep
from rqttl.protocol.commands import Command
from rqttl.testing.fake import Clock, ClockedDriver

RUNS = int(os.environ.get("RQTTL_MODEL_RUNS", "300"))
FIRST = int(os.environ.get("RQTTL_MODEL_FIRST", "0"))
STEPS = 60
MOVERS = 4
#: The queue whose messages die, and the targets of its dead letters: of two reasons one, of the third another.
SOURCE, TARGETS = "s", ("a", "b")
MOST, TTL = 6, 60_000
OPTIONS: dict[str, Any] = {
    "max_length": MOST,
    "message_ttl": f"{TTL}ms",
    "dead_letter": "a",
    "dead_letter_expired": "b",
}
#: Longer than any mover holds a page.
LONG = 31_000


class Driver(ClockedDriver):
    """A driver that leaves notes to others in place of following them."""

    notes: list[str] | None = None

    def step(self, step: Step) -> Any:
        if self.notes is None or not isinstance(step, HandleNotes):
            return super().step(step)
        self.notes += [
            name.decode() for kind, name in zip(step.notes[::2], step.notes[1::2], strict=True) if kind == b"move"
        ]
        return None


class Past(NamedTuple):
    """The keys of a slot, and what the model knew of the source."""

    keys: dict[bytes, bytes]
    ready: list[tuple[int, int]]
    exists: bool
    needed: dict[str, set[int]]


class World:
    """Source and targets in Redis, and what must become of the messages. A message is its number."""

    def __init__(self, client: redis.Redis, number: int) -> None:
        client.flushall()
        self.client, self.random = client, random.Random(number)
        self.clock = Clock(1_700_000_000_000)
        self.driver = Driver(client, "rqttl", self.clock, slotted=True)
        self.broker = Broker(client, driver=lambda *_, **__: self.driver)
        self.movers: list[tuple[Flow[None], Step]] = []
        self.messages = 0
        self.ready: list[tuple[int, int]] = []
        self.exists, self.was_set_back = True, False
        #: By target: all deaths in order; the dead that must arrive; those that a deletion or a set-back took out.
        self.died: dict[str, list[int]] = {target: [] for target in TARGETS}
        self.needed: dict[str, set[int]] = {target: set() for target in TARGETS}
        self.taken: dict[str, list[int]] = {target: [] for target in TARGETS}
        self.past: dict[str, list[Past]] = {name: [] for name in (SOURCE, *TARGETS)}
        self.broker.declare_queue(SOURCE, **OPTIONS)
        self.driver.notes = []

    # Messages

    def enqueue(self) -> None:
        bodies = range(self.messages, self.messages + self.random.choice((1, 3, 12)))
        self.messages = bodies.stop
        self.broker.queue(SOURCE).enqueue_many([b"%d" % body for body in bodies])
        self.ready += [(body, self.clock.ms) for body in bodies]
        self.die("a", len(self.ready) - MOST)

    def reject(self) -> None:
        queue = self.broker.queue(SOURCE)
        deliveries = queue.receive_many(self.random.choice((1, 2, MOST)))
        queue.reject_many(deliveries)
        assert [int(delivery.body) for delivery in deliveries] == [body for body, _ in self.ready[: len(deliveries)]]
        self.die("a", len(deliveries))

    def pass_time(self) -> None:
        self.clock.set(self.clock.ms + self.random.choice((1, 500, 2_000, 2_500, LONG)))
        self.sweep()

    def sweep(self) -> None:
        if self.exists:
            self.driver.perform(sweep(SOURCE, rounds=9))
            self.die("b", sum(since + TTL <= self.clock.ms for _, since in self.ready))

    def die(self, target: str, count: int) -> None:
        """The first messages have died."""
        dead, self.ready = [body for body, _ in self.ready[: max(count, 0)]], self.ready[max(count, 0) :]
        self.died[target] += dead
        self.needed[target] |= set(dead)

    # Queues

    def delete_source(self) -> None:
        self.broker.queue(SOURCE).delete()
        self.exists, self.ready = False, []

    def declare_source(self) -> None:
        self.broker.declare_queue(SOURCE, **OPTIONS)
        self.exists = True

    def delete_target(self) -> None:
        target = self.random.choice(TARGETS)
        present = self.present(target)
        if self.client.exists(f"rqttl:{{{target}}}:meta"):
            self.broker.queue(target).delete()
        self.lose(target, present)

    def lose(self, target: str, letters: list[int]) -> None:
        self.taken[target] += letters
        self.needed[target] -= set(letters)

    def present(self, target: str) -> list[int]:
        entries: Any = self.client.xrange(f"rqttl:{{{target}}}:log")
        return [int(body) for _, pair in entries for body in pair.values()]

    # Set-backs

    def remember(self) -> None:
        name = self.random.choice((SOURCE, *TARGETS))
        keys = self._keys(name)
        needed = {target: set(letters) for target, letters in self.needed.items()}
        dumps: Any = [self.client.dump(key) for key in keys]
        self.past[name].append(Past(dict(zip(keys, dumps, strict=True)), list(self.ready), self.exists, needed))

    def set_back(self) -> None:
        name = self.random.choice([name for name, past in self.past.items() if past] or [""])
        if not name:
            return
        past = self.random.choice(self.past[name])
        before = {target: self.present(target) for target in TARGETS}
        if keys := self._keys(name):
            self.client.delete(*keys)
        for key, dump in past.keys.items():
            self.client.restore(key, 0, dump)
        self.was_set_back = True
        if name == SOURCE:
            self.ready, self.exists = list(past.ready), past.exists
            for target in TARGETS:  # what has died since is undone, unless it has arrived
                self.needed[target] &= past.needed[target] | set(before[target])
            self.sweep()
        else:
            kept = set(self.present(name))
            self.lose(name, [body for body in before[name] if body not in kept])

    def _keys(self, name: str) -> list[bytes]:
        keys: Any = self.client.keys(f"rqttl:{{{name}}}*")
        return list(keys)

    # Movers

    def begin(self) -> None:
        """Follow a note, or move without one."""
        assert self.driver.notes is not None
        if len(self.movers) == MOVERS:
            return
        name = self.driver.notes.pop() if self.driver.notes else f"{SOURCE}>{self.random.choice(TARGETS)}"
        if name == SOURCE:
            name = f"{SOURCE}>{self.random.choice(TARGETS)}"
        flow = moving.hand_over(self.driver.keyspace, *name.split(">"))
        self.movers.append((flow, next(flow)))

    def go_on(self) -> None:
        """Let a mover have its reply, and come to its next call; the last one is the most eager."""
        if self.movers:
            at = self.random.choice((-1, -1, self.random.randrange(len(self.movers))))
            flow, step = self.movers.pop(at)
            with suppress(StopIteration):
                self.movers.append((flow, flow.send(self.driver.step(step))))

    def lose_reply(self) -> None:
        """Carry out the call of a mover that will make it again."""
        calls = [step for _, step in self.movers if isinstance(step, Command)]
        if calls:
            self.driver.step(self.random.choice(calls))

    def kill(self) -> None:
        if self.movers:
            self.movers.pop(self.random.randrange(len(self.movers)))

    # The end

    def settle(self) -> None:
        """Look at the source when it is due, as a reaper does, and at that of a deleted one."""
        self.driver.notes = None
        for _ in range(8):
            self.clock.set(self.clock.ms + LONG)
            due = self.client.hget(f"rqttl:{{{SOURCE}}}:meta", "due_at")
            if not self.exists:
                self.driver.perform(registry.emptied(self.driver.keyspace, [SOURCE]))
            elif due and int(due) <= self.clock.ms:
                self.sweep()
        while self.movers:  # those that paused until now change nothing
            self.go_on()

    def check(self) -> None:
        (outgoing,) = self.driver.perform(moving.outgoing(self.driver.keyspace, [SOURCE]))
        assert not any(outgoing.values())
        assert self.client.exists(*[f"rqttl:{{{SOURCE}}}:outbox>{target}" for target in TARGETS]) == 0
        for target in TARGETS:
            arrived = self.taken[target] + self.present(target)
            if self.was_set_back:
                assert self.needed[target] <= set(arrived)
            else:
                assert arrived == self.died[target]


#: The steps of a run and their weights. Only the second half of the runs has set-backs.
LIVING: dict[Callable[[World], None], int] = {World.enqueue: 8, World.reject: 8, World.delete_source: 1}
ALWAYS: dict[Callable[[World], None], int] = {
    World.pass_time: 6,
    World.begin: 12,
    World.go_on: 40,
    World.lose_reply: 6,
    World.kill: 3,
    World.delete_target: 1,
}
SET_BACKS: dict[Callable[[World], None], int] = {World.remember: 4, World.set_back: 3}


def play(client: redis.Redis, number: int, steps: int = STEPS) -> None:
    """Carry out a run. An error names its steps."""
    world = World(client, number)
    log: list[str] = []
    try:
        for _ in range(steps):
            possible = ALWAYS | (LIVING if world.exists else {World.declare_source: 10})
            possible |= SET_BACKS if number % 2 else {}
            (step,) = world.random.choices(list(possible), list(possible.values()))
            log.append(step.__name__)
            step(world)
        world.settle()
        world.check()
    except Exception as error:
        raise AssertionError(f"run {number}: {' '.join(log)}") from error
    finally:
        world.broker.close()


@pytest.mark.timeout(7200)
def test_each_letter_arrives_whatever_happens_to_movers(client: redis.Redis) -> None:
    for number in range(FIRST, FIRST + RUNS):
        play(client, number)
