"""Survivors among many expired messages move aside so that memory comes back, and nothing else changes.

The random operations of the model test never leave a thousand holes, so this brings them about.
"""

import random
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from tests.model.clients import CLIENTS, Client
from tests.model.machine import NAMES
from tests.model.message_rules import QueueMachine
from tests.model.raw import Reader
from tests.model.strategies import Said

SHORT = 1000


class Waves(QueueMachine):
    """Many messages at once, beside the model as ever."""

    def begin(self, seed: int, **options: object) -> None:
        self.random = random.Random(seed)
        self._declare(0, "a", dict(options))
        self.compare()

    def key(self, part: str) -> str:
        return self.clients[0].keyspace.key("a", part)

    @property
    def detached(self) -> int:
        return int(self.client.hlen(self.key("detached")))

    @property
    def memory(self) -> int:
        used: Any = self.client.memory_usage(self.key("log"), samples=0)
        return used or 0

    def fill(self, batches: int) -> None:
        """Of sixteen messages, fifteen live short."""
        for _ in range(batches):
            said = [Said(200, SHORT if self.random.random() < 15 / 16 else None) for _ in range(250)]
            self.enqueue(0, "a", said, dies=False)
            self.clock.move(1)

    def expire(self) -> None:
        self.clock.move(SHORT)
        self.sweep(1, "a", dies=False)

    def step(self) -> None:
        """Something that a client does."""
        who, few = self.random.randrange(CLIENTS), self.random.randint(1, 6)
        how = self.random.randrange(6)
        if how == 0:
            self.enqueue(who, "a", [Said(50, self.random.choice((None, 20, 200))) for _ in range(few)], dies=False)
        elif how == 1:
            self.look(who, "a", self.random.choice(("sweep", "stats", "peek")), False, 100, 0)
        elif how == 2:
            self._receive(who, "a", few, 30)
        else:
            action = self.random.choice(("ack", "nack", "nack", "reject", "renew"))
            self.work(who, "a", (few, 200), action, self.random.choice((None, 0, 10)), True, "no", False, [], [])
        self.clock.move(self.random.choice((0, 1, 5, 20)))

    def drain(self) -> None:
        self.clock.move(SHORT)
        self.sweep(0, "a", dies=False)
        while self._receive(0, "a", 100, auto=True):
            pass


@pytest.fixture
def waves(client: redis.Redis) -> Iterator[Waves]:
    reader = Reader(client, NAMES)
    yield Waves(client, [Client(client) for _ in range(CLIENTS)], reader)
    reader.close()


def test_survivors_keep_their_order_and_give_memory_back(waves: Waves) -> None:
    waves.begin(1)
    waves.fill(20)
    full = waves.memory
    waves._receive(0, "a", 20, lease=100_000)

    waves.expire()

    survivors = len(waves.world.queues["a"].ready)
    assert 200 < survivors < 500
    assert waves.detached > survivors / 2
    assert waves.memory < full / 4
    waves.peek(0, "a", 1000, 0)
    waves.drain()
    # what was leased is all there is, and it has moved too
    assert waves.detached == 20
    assert {m.state for m in waves.world.queues["a"].messages} == {"leased"}


@pytest.mark.parametrize("seed", range(4))
def test_life_goes_on_between_waves_of_expiry(waves: Waves, seed: int) -> None:
    waves.begin(seed, max_deliveries=3, dead_letter="dead", dead_letter_expired="")
    moved = 0
    for _ in range(3):
        waves.fill(6)
        for _ in range(10):
            waves.step()
        waves.expire()
        moved = max(moved, waves.detached)
        for _ in range(30):
            waves.step()
        waves.peek(0, "a", 1000, 0)

    assert moved > 50
    waves.clock.move(SHORT)
    waves.drain()
    assert waves.world.queues["a"].messages == []
    assert waves.detached == 0


def test_retention_and_limits_reach_what_was_moved_aside(waves: Waves) -> None:
    waves.begin(5)
    waves.fill(8)
    waves.expire()
    assert waves.detached > 50

    waves.update(0, "a", {"max_length": 40, "dead_letter_maxlen": "dead"}, lives=None)
    assert len(waves.world.queues["a"].ready) == 40
    waves.update(1, "a", {"message_ttl": 2 * SHORT}, lives=None)
    waves.fill(1)
    waves.clock.move(SHORT)
    waves.sweep(0, "a", dies=False)
    waves.clock.move(SHORT)
    waves.sweep(0, "a", dies=False)

    assert waves.world.queues["a"].messages == []


def test_a_queue_that_holds_dead_letters_is_left_whole(waves: Waves) -> None:
    waves.begin(6, dead_letter_rejected="a")
    waves.fill(1)
    waves.work(0, "a", (1, 200), "reject", 0, True, None, False, [], [])
    waves.fill(8)

    waves.expire()

    assert waves.detached == 0
