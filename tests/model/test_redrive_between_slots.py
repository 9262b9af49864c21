"""Random redrives to queues in other slots, that lose replies, are killed, and overlap: each letter is in one place.

RQTTL_MODEL_RUNS raises the number of runs. A failure names its seed.
"""

import os
import random
from collections import Counter
from collections.abc import Generator
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
import redis

from rqttl import Queue, QueueNotFound
from rqttl.flows import moving
from rqttl.protocol.commands import Command
from rqttl.store.driver import driver_of
from rqttl.testing.fake import ClockedBroker

RUNS = int(os.environ.get("RQTTL_MODEL_RUNS", "200"))
#: No script of rqttl may touch two of these.
ORIGINS = ("orders", "mails")
HOUR = 3_600_000


class World:
    """Letters in `dead`, and movers that redrive them."""

    def __init__(self, client: redis.Redis, broker: ClockedBroker, seed: int) -> None:
        client.flushall()
        self.random = random.Random(seed)
        self.client, self.broker, self.driver = client, broker, driver_of(broker)
        self.movers: list[tuple[Generator[Any, Any, Any], Any]] = []
        self.taken: list[bytes] = []
        self.deleted: set[bytes] = set()
        self.failed: Counter[bytes] = Counter()
        self.sent = 0
        self.bury()

    def bury(self) -> None:
        """Let some messages die."""
        origin = self.random.choice(ORIGINS)
        limit = self.random.choice([None, 3, 8])
        if origin not in self.broker.queues():
            self.broker.declare_queue(origin, dead_letter="dead", max_length=limit, overflow="reject-publish")
        queue = self.broker.queue(origin)
        bodies = [b"%s %d" % (origin.encode(), self.sent + i) for i in range(self.random.randint(1, 3))]
        if queue.stats().ready == 0:
            queue.enqueue_many(bodies)
            queue.reject_many(queue.receive_many(len(bodies)))
            self.sent += len(bodies)

    def begin(self) -> None:
        """Begin a redrive of some letters, or go on with what another mover has left."""
        origin = self.random.choice(ORIGINS)
        letters = [one.sequence for one in self.broker.queue("dead").peek(20) if one.deaths[0].queue == origin]
        chosen = sorted(self.random.sample(letters, self.random.randint(0, min(4, len(letters)))))
        flow = moving.redrive(self.driver.keyspace, "dead", origin, chosen)
        self.movers.append((flow, next(flow)))

    def go_on(self) -> None:
        """One step of a mover. Its reply may be lost: then the step is carried out twice, or the mover is killed."""
        mover = flow, step = self.movers.pop(self.random.randrange(len(self.movers)))
        if isinstance(step, Command) and self.random.random() < 0.3:
            self.driver.step(step)
        is_killed = self.random.random() < 0.08
        try:
            answer = self.driver.step(step)
        except QueueNotFound as error:
            go_on = partial(flow.throw, error)
        else:
            go_on = partial(flow.send, answer)
        if is_killed:
            return
        try:
            mover = flow, go_on()
        except StopIteration:
            return
        self.movers.append(mover)

    def take(self) -> None:
        """A consumer of an origin takes a message, so there is room."""
        for queue in self.origins():
            for delivery in queue.receive_many(2):
                self.taken.append(delivery.body)
                delivery.ack()

    def fail(self) -> None:
        """Consumers of letters fail."""
        for delivery in self.broker.queue("dead").receive_many(2):
            self.failed[delivery.body] += 1
            delivery.nack()

    def delete(self) -> None:
        """The origins are deleted."""
        for queue in self.origins():
            self.deleted.update(one.body for one in queue.peek(200))
            queue.delete()

    def origins(self) -> list[Queue]:
        return [self.broker.queue(name) for name in self.broker.queues() if name in ORIGINS]

    def turn(self) -> None:
        """Something happens."""
        actions = [self.begin, self.begin, self.take, self.bury, self.bury, self.sweep, self.delete, self.fail]
        if self.movers and self.random.random() < 0.75:
            self.go_on()
        else:
            self.random.choice(actions)()

    def sweep(self) -> None:
        """Time passes, and a reaper comes."""
        self.broker.clock.set(self.broker.clock.ms + self.random.choice([500, 3_000]))
        self.broker.queue("dead").sweep()

    def check(self) -> None:
        """All movers have died. The next sweeps end what they began; then each letter is in one place."""
        for _ in range(3):
            self.broker.clock.set(self.broker.clock.ms + HOUR)
            self.broker.queue("dead").sweep()
        (left,) = self.driver.perform(moving.outgoing(self.driver.keyspace, ["dead"]))
        assert set(left.values()) <= {0}
        found = Counter(self.taken)
        for queue in (self.broker.queue("dead"), *self.origins()):
            found.update(one.body for one in queue.peek(200))
        assert len(found.keys() | self.deleted) == self.sent
        assert set(found.values()) <= {1}, found
        failed = {one.body: one.delivery_count for one in self.broker.queue("dead").peek(200)}
        assert failed == {body: self.failed[body] for body in failed}
        assert self.client.hlen(self.driver.keyspace.key("dead", "failures")) == sum(map(bool, failed.values()))
        stats = self.broker.queue("dead").stats()
        assert stats.ready + stats.redriven == stats.enqueued
        assert stats.ready_bytes == sum(len(one.body) for one in self.broker.queue("dead").peek(200))


@pytest.mark.timeout(1800)
@pytest.mark.spec("A-115")
def test_each_letter_is_in_one_place(client: redis.Redis) -> None:
    broker = ClockedBroker(client, slotted=True)
    for seed in range(RUNS):
        world = World(client, broker, seed)
        try:
            for _ in range(40):
                world.turn()
            world.check()
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error


def test_a_page_that_a_server_has_forgotten_gets_another_number(client: redis.Redis) -> None:
    """After a failover with lost writes the dead-letter queue counts its pages from an older number."""
    broker = ClockedBroker(client, slotted=True)
    orders, dead = broker.declare_queue("orders", dead_letter="dead"), broker.queue("dead")
    pages = driver_of(broker).keyspace.key("dead", "outgoing")
    for page in (b"1", b"2"):
        orders.enqueue(b"x")
        orders.reject_many(orders.receive_many(1))
        client.hset(pages, "redrive>orders", "0 0 - - 0 0")

        assert dead.redrive() == 1

        assert client.hget(pages, "redrive>orders") == b"0 %b - - 0 0" % page
        orders.purge()


@pytest.mark.parametrize("pages", [1, 2])
def test_a_mover_that_slept_for_long_sends_nothing_again_and_ends_no_page(client: redis.Redis, pages: int) -> None:
    """Its page has arrived, and so may have the next one, while another page is under way."""
    broker = ClockedBroker(client, slotted=True)
    orders, dead, driver = broker.declare_queue("orders", dead_letter="dead"), broker.queue("dead"), driver_of(broker)
    orders.enqueue_many([b"1", b"2", b"3"])
    orders.reject_many(orders.receive_many(3))
    first, second, third = [letter.sequence for letter in dead.peek()]
    sleeper = moving.redrive(driver.keyspace, "dead", "orders", [first])
    step = sleeper.send(driver.step(next(sleeper)))
    broker.clock.set(broker.clock.ms + HOUR)
    driver.perform(moving.redrive(driver.keyspace, "dead", "orders", [first, second][1:pages]))
    other = moving.redrive(driver.keyspace, "dead", "orders", [third])
    driver.step(next(other))

    with suppress(StopIteration):
        while True:
            step = sleeper.send(driver.step(step))
    broker.clock.set(broker.clock.ms + HOUR)
    dead.sweep()

    assert [one.body for one in orders.peek()] == [*[b"1", b"2"][:pages], b"3"]
