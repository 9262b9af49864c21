"""Policies that change between two steps of another client: the newest ones are in force at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import redis

from rqttl import Broker, flows
from rqttl.protocol.commands import Command
from rqttl.store.driver import RedisDriver, driver_of
from tests.contract.clocked import Clocked
from tests.drivers import before_step


@pytest.fixture
def other(broker: Broker) -> Broker:
    """A broker with caches of its own, on the same server."""
    return Broker(driver_of(broker).store.client)


@contextmanager
def within_a_read(driver: RedisDriver, action: Callable[[], object]) -> Iterator[None]:
    """Do something once, between the commands of one round trip. Redis may serve other clients there."""
    step, actions = driver.step, [action]

    def carry_out(one: flows.steps.Step) -> object:
        if not isinstance(one, flows.steps.Read) or len(one.calls) < 2 or not actions:
            return step(one)
        replies = step(flows.steps.Read(one.calls[:1]))
        actions.pop()()
        return [*replies, *step(flows.steps.Read(one.calls[1:]))]

    driver.step = carry_out  # type: ignore[method-assign, assignment]
    yield
    driver.step = step  # type: ignore[method-assign]


def test_a_slow_client_puts_no_older_policies_in_force_again(broker: Broker, other: Broker) -> None:
    broker.set_policy("p", "orders", {"max_length": 5})
    queue = broker.declare_queue("orders")
    broker.reconcile()  # the broker remembers these policies

    with within_a_read(driver_of(broker), lambda: other.set_policy("p", "orders", {"max_length": 7})):
        broker.reconcile()

    assert queue.options()["max_length"] == 7
    assert broker.reconcile().changed == {}


def test_a_queue_that_returns_to_the_registry_gets_the_policies_that_missed_it(broker: Broker, other: Broker) -> None:
    """One client deletes a queue and removes its name late, when another client has already created it again."""
    driver = driver_of(broker)
    queue = broker.declare_queue("orders")

    def create_again() -> None:
        other.declare_queue("orders")
        exists = flows.steps.Write([("EXISTS", driver.keyspace.key("orders", "meta"))])
        before_step(driver, exists, lambda: other.set_policy("p", "#", {"max_length": 7}))

    before_step(driver, flows.steps.Write([("SREM", driver.keyspace.registry, "orders")]), create_again)
    queue.delete()

    assert other.queues() == ["orders"]
    assert other.queue("orders").options()["max_length"] == 7
    assert other.reconcile().changed == {}


def test_a_declaration_that_lists_an_existing_queue_gives_it_the_policies_that_missed_it(
    broker: Broker, other: Broker, client: redis.Redis
) -> None:
    driver = driver_of(broker)
    broker.declare_queue("orders")
    client.srem("rqttl:queues", "orders")

    before_step(driver, flows.steps.Register("orders"), lambda: other.set_policy("p", "#", {"max_length": 7}))
    broker.declare_queue("orders")

    assert other.queue("orders").options()["max_length"] == 7
    assert other.reconcile().changed == {}


def test_an_adoption_puts_no_older_policies_in_force_for_a_moment(broker: Broker, other: Broker) -> None:
    broker.set_policy("p", "dead", {"max_length": 1})
    broker.declare_queue("orders", dead_letter="dead").enqueue(b"x", ttl=0)
    broker.reconcile()  # the broker remembers these policies

    def lift_limit() -> None:
        other.delete_policy("p")
        other.queue("dead").enqueue_many([b"x"] * 5)

    before_step(driver_of(broker), Command, lift_limit)
    queue = broker.declare_queue("dead", lease="1m")

    assert (queue.declared, queue.stats().ready) == ("adopted", 6)
    assert queue.options().as_arguments() == {"lease": "1m"}
    assert other.reconcile().changed == {}


def test_an_adoption_ends_although_the_stored_policies_are_lost(broker: Broker, client: redis.Redis) -> None:
    """The queue names a version that is above the stored one."""
    broker.set_policy("p", "dead", {"max_length": 1})
    broker.declare_queue("orders", dead_letter="dead").enqueue(b"x", ttl=0)
    client.delete("rqttl:policies")

    queue = broker.declare_queue("dead")

    assert (queue.declared, queue.options().as_arguments()) == ("adopted", {})


@pytest.mark.parametrize("change", ["policy", "update"])
def test_a_dead_letter_queue_that_nobody_entered_is_listed_before_its_name_is_forgotten(
    broker: Broker, client: redis.Redis, change: str
) -> None:
    """The client that created it died, and no reaper has looked since."""
    broker.set_policy("all", "dead", {"max_length": 7})
    queue = broker.declare_queue("orders", dead_letter="dead" if change == "update" else None)
    if change == "policy":
        broker.set_policy("p", "orders", {"dead_letter": "dead"})
    before_step(driver_of(broker), flows.steps.HandleNotes([b"created", b"dead"]), lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        queue.enqueue(b"x", ttl=0)
    assert broker.queues() == ["orders"]

    if change == "policy":
        broker.delete_policy("p")
    else:
        queue.update(dead_letter=None)

    assert broker.queues() == ["dead", "orders"]
    assert broker.queue("dead").options()["max_length"] == 7


def test_a_damaged_queue_at_the_end_of_its_lifetime_holds_up_no_change(clocked: Clocked, client: redis.Redis) -> None:
    clocked.declare_queue("brief", expires="1m")
    clocked.declare_queue("sound")
    client.set("rqttl:{brief}:log", "damage")
    clocked.advance("2m")

    result = clocked.set_policy("p", "#", {"max_length": 7})

    assert (list(result.changed), list(result.damaged)) == (["sound"], ["brief"])


def test_policies_that_redis_lost_are_not_taken_for_those_of_the_next_change(
    broker: Broker, other: Broker, client: redis.Redis
) -> None:
    """FLUSHALL, or a failover to a replica that lags behind: one client knows policies that nobody has stored."""
    broker.set_policy("p", "orders", {"max_length": 1})
    broker.declare_queue("orders")
    client.flushall()
    other.set_policy("p", "orders", {"max_length": 9})

    queue = broker.declare_queue("orders")

    assert queue.options()["max_length"] == 9
    assert other.reconcile().changed == {}
