"""Clients and servers that are killed in the middle of a change of policies or of a declaration."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

import pytest
import redis
from redis.exceptions import ConnectionError

from rqttl import Broker, PolicyNotFound, connect
from rqttl.flows.policies import PAGE
from rqttl.reaper import Reaper
from rqttl.store.driver import driver_of
from tests.chaos.stage import MEMORY
from tests.in_force import problems
from tests.process.policy_victims import CALLS, PARTS, Blow, Place, Sends, random_blow, set_up, strike
from tests.servers import Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

#: Random kills in the suite. `make test-policies` makes 200.
KILLS = int(os.environ.get("RQTTL_TEST_KILLS", "20"))
#: Restarts of Redis in the suite, at random places of a change. `make test-policies` makes 40.
RESTARTS = int(os.environ.get("RQTTL_TEST_RESTARTS", "4"))


@pytest.fixture(autouse=True)
def no_patience_with_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reaper takes a name without a queue out of the registry after ten minutes, or here in its next pass."""
    monkeypatch.setattr("rqttl.reaper.registry.STALE", 0.0)


def check_after_a_pass(url: str) -> None:
    """One pass of a reaper puts all in order, and nothing is left for `reconcile`."""
    with connect(url) as broker:
        Reaper(broker).run_once()

        assert problems(broker) == []
        result = broker.reconcile()
        assert result.changed == {}
        keyspace, client = driver_of(broker).keyspace, driver_of(broker).store.client
        assert [name for name in broker.queues() if not client.exists(keyspace.key(name, "meta"))] == []


def world(client: redis.Redis) -> Broker:
    """A broker with empty caches, and the queues and policies of `set_up`."""
    client.flushall()
    with Broker(client) as broker:
        set_up(broker)
    return Broker(client)


@pytest.mark.parametrize("call", CALLS)
def test_a_pass_mends_a_call_that_was_killed_at_any_of_its_steps(
    call: str, client: redis.Redis, redis_url: str
) -> None:
    send = 0
    while strike(world(client), redis_url, Blow(call, Place(send, "before"))):
        check_after_a_pass(redis_url)
        send += 1

    assert send >= 2
    check_after_a_pass(redis_url)


def test_a_pass_mends_any_kill_also_when_another_client_changes_policies(client: redis.Redis, redis_url: str) -> None:
    chance, kills, calls = random.Random(12), 0, Counter[str]()
    sends = {call: count_sends(client, call) for call in CALLS}
    while kills < KILLS:
        blow = random_blow(chance, sends)
        killed = strike(world(client), redis_url, blow)
        check_after_a_pass(redis_url)
        kills += killed
        calls[blow.call] += killed

    print(f"{kills} kills: {dict(calls)}")  # noqa: T201  # the figure of `make test-policies`


def count_sends(client: redis.Redis, call: str) -> int:
    """The number of sends of a call that is not disturbed."""
    broker = world(client)
    broker.policies()
    with Sends().counting() as sends:
        CALLS[call](broker)
    return sends.count


# Redis is killed


@pytest.fixture
def durable(start_server: Callable[..., Server]) -> Server:
    """A server that keeps all acknowledged writes after any end, with more queues than one round trip changes."""
    server = start_server(appendonly="yes", appendfsync="always", within=MEMORY)
    with connect(server.url) as broker:
        for number in range(PAGE + 10):
            broker.declare_queue(f"orders.{number}")
    return server


def begin_again(server: Server) -> None:
    """Undo a change, and fill some of the queues."""
    with connect(server.url) as broker:
        with suppress(PolicyNotFound):
            broker.delete_policy("p")
        for name in broker.queues():
            if name.startswith("EXP."):
                broker.queue(name).delete()
        for number in range(0, PAGE, 50):
            broker.queue(f"orders.{number}").enqueue_many([b"x"] * 3)


def change(broker: Broker) -> None:
    broker.set_policy("p", "orders.#", {"max_length": 2, "dead_letter_maxlen": "EXP.{queue}", "lease": "2m"})


def places(durable: Server) -> list[Place]:
    """Some places of a change of many queues, in random order."""
    begin_again(durable)
    with connect(durable.url) as broker, Sends().counting() as sends:
        change(broker)
    chance = random.Random(12)
    all_of_them = [Place(send, part, chance.random()) for send in range(sends.count) for part in PARTS]
    return chance.sample(all_of_them, min(RESTARTS, len(all_of_them)))


def test_a_change_of_many_queues_goes_on_after_a_restart_of_redis_at_any_place(
    durable: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a slow machine may need longer to start a server than a call is patient
    monkeypatch.setattr("rqttl.store.exchanges.PAUSES", (0.02, *[0.1] * 300))

    def restart() -> None:
        durable.kill()
        durable.start()

    for place in places(durable):
        begin_again(durable)
        sends = Sends()
        sends.at(place, restart)
        with connect(durable.url) as broker:
            with sends.counting():
                change(broker)
            assert sends.done
            assert broker.reconcile().changed == {}
        # a lost reply may have named a queue that a dead letter created: reapers enter that one
        check_after_a_pass(durable.url)


def test_a_pass_finishes_a_change_that_failed_because_redis_was_away(
    durable: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rqttl.store.exchanges.PAUSES", (0.0,))
    for place in places(durable):
        begin_again(durable)
        sends = Sends()
        sends.at(place, durable.kill)
        with connect(durable.url) as broker, sends.counting(), suppress(ConnectionError):
            change(broker)  # succeeds if only the reply to its last note was lost
        assert sends.done
        durable.start()
        check_after_a_pass(durable.url)
