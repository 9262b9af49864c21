"""Eight processes enqueue, receive, settle, expire and dead-letter on one queue with limits, all at once.

Afterwards every message that was sent is accounted for exactly once, and nobody who looked ever saw a limit exceeded.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
import redis

import rqttl
from rqttl import Broker, Queue
from rqttl.store.driver import driver_of
from tests.depth import DEPTH, DEPTH_PARTS
from tests.in_force import problems
from tests.process.racers import QUEUE, race

ROLES = ("produce", "produce", "produce", "consume", "consume", "consume", "both", "sweep")
SECONDS = 10
#: The race with policies. `make test-policies` races for longer.
RACE_SECONDS = float(os.environ.get("RQTTL_TEST_RACE_SECONDS", "6"))
LENGTH, BYTES = 40, 2_000
REASONS = ("expired", "maxlen", "rejected", "delivery_limit")


@dataclass
class Race:
    """The common knowledge of all processes, and the states of the queue meanwhile."""

    sent: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    acked: list[str] = field(default_factory=list)
    rejected: list[str] = field(default_factory=list)
    seen: list[list[int]] = field(default_factory=list)


def run(url: str, client: redis.Redis, broker: Broker) -> Race:
    """Let the processes race, and look at the queue all the while."""
    found = Race()
    with Watcher(client, broker) as found.seen:
        for told in race(url, ROLES, SECONDS):
            for name, ids in told.items():
                getattr(found, name).extend(ids)
    return found


class Watcher:
    """Looks at the queue again and again, from a thread of its own."""

    def __init__(self, client: redis.Redis, broker: Broker) -> None:
        self.seen: list[list[int]] = []
        self._look = client.register_script(DEPTH)
        self._keys = [driver_of(broker).keyspace.key(QUEUE, part) for part in DEPTH_PARTS]
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def _watch(self) -> None:
        while not self._done.wait(0.002):  # leaves the machine to those who race
            found: Any = self._look(keys=self._keys)
            self.seen.append(found)

    def __enter__(self) -> list[list[int]]:
        self._thread.start()
        return self.seen

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._thread.join()


def drain(queue: Queue) -> list[str]:
    """Ack all remaining messages, also leased and delayed ones."""
    left: list[str] = []
    while True:
        stats = queue.stats()
        if stats.ready + stats.leased + stats.delayed == 0:
            return left
        batch = queue.receive_many(100, wait="50ms")
        queue.ack_many(batch)
        left += [one.id for one in batch]


def letters(broker: Broker, reason: str) -> list[str]:
    """The ids of all who died of a reason, each with that death on record."""
    name = f"{QUEUE}.{reason}"
    if name not in broker.queues():
        return []
    found = [
        letter for batch in iter(lambda: broker.queue(name).receive_many(250, auto_ack=True), []) for letter in batch
    ]
    assert {(one.deaths[0].queue, one.deaths[0].reason, one.deaths[0].count) for one in found} <= {(QUEUE, reason, 1)}
    return [one.id for one in found]


def check_accounts(broker: Broker, found: Race, dropped: str) -> None:
    """Each message is acked, left over, or one dead letter; those who died of `dropped` are only counted."""
    queue = broker.queue(QUEUE)
    left = drain(queue)
    dead = {reason: letters(broker, reason) for reason in REASONS}
    ends = Counter([*found.acked, *left, *(id for ids in dead.values() for id in ids)])
    stats = queue.stats()

    assert [id for id, times in ends.items() if times > 1] == []
    assert ends.keys() <= set(found.sent)
    assert len(found.sent) - len(ends) == stats.dropped[dropped]
    assert sum(stats.dropped.values()) == stats.dropped[dropped]
    assert stats.enqueued == len(found.sent)
    assert stats.refused == len(found.refused)
    assert stats.acked == len(found.acked) + len(left)
    assert sorted(dead["rejected"]) == sorted(found.rejected)
    assert {reason: len(dead[reason]) for reason in REASONS if reason != dropped} == {
        reason: stats.deaths[reason] for reason in REASONS if reason != dropped
    }
    assert stats.deaths[dropped] == stats.dropped[dropped]
    assert stats.ready_bytes == 0
    assert min(stats.acked, stats.deaths["expired"], stats.deaths["rejected"], stats.deaths["delivery_limit"]) > 0


@pytest.mark.spec("A-063")
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("overflow, dropped", [("drop-head", "delivery_limit"), ("reject-publish", "expired")])
def test_every_message_is_accounted_for_and_no_limit_is_exceeded(
    redis_url: str, client: redis.Redis, broker: rqttl.Broker, overflow: Any, dropped: str
) -> None:
    targets: dict[str, Any] = {
        f"dead_letter_{reason}": f"{{queue}}.{reason}" for reason in REASONS if reason != dropped
    }
    broker.declare_queue(
        QUEUE, max_length=LENGTH, max_length_bytes=BYTES, overflow=overflow, max_deliveries=3, **targets
    )

    found = run(redis_url, client, broker)

    check_accounts(broker, found, dropped)
    assert len(found.seen) > 100
    # an accepted message is not lost: what comes back may exceed a reject-publish limit, what arrives never
    first = 0 if overflow == "drop-head" else 2
    assert max(seen[first] for seen in found.seen) <= LENGTH
    assert max(seen[first + 1] for seen in found.seen) <= BYTES
    assert min(min(seen) for seen in found.seen) >= 0
    if overflow == "drop-head":
        assert broker.queue(QUEUE).stats().deaths["maxlen"] > 0
    else:
        assert found.refused


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_after_a_race_of_policies_with_declarations_and_deaths_nothing_is_left_to_reconcile(
    redis_url: str, broker: Broker
) -> None:
    calls: Counter[str] = Counter()
    for told in race(redis_url, ("work", "work", "work", "work", "change", "change"), RACE_SECONDS):
        calls.update(told)

    print(dict(calls))  # noqa: T201  # the figures of `make test-policies`
    assert min(calls[name] for name in ("created", "existing", "deleted", "updated", "rejected")) > 0
    assert min(calls[name] for name in ("policies set", "policies deleted", "queues changed")) > 0
    first, second = broker.reconcile(), broker.reconcile()
    assert (first.changed, first.damaged) == ({}, {})
    assert (second.changed, second.damaged) == ({}, {})
    assert any(name.startswith("EXP.") for name in broker.queues())
    assert problems(broker) == []
    # every name leads to a queue, too: each call returned
    keyspace = driver_of(broker).keyspace
    assert all(driver_of(broker).store.client.exists(keyspace.key(name, "meta")) for name in broker.queues())
