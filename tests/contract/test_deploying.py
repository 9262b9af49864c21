"""Plans of deployments: policies change in one call, queues follow, and a plan that broke off is finished later."""

from __future__ import annotations

import pytest

from rqttl import Broker, CommandEvent, DataDamaged, Policy, QueueOptions
from rqttl.cli.deployment import carrying
from rqttl.deployments import Deployment, Plan, make_plan
from rqttl.flows.steps import Register
from rqttl.store.driver import driver_of
from tests.drivers import before_step


def policy(name: str, pattern: str = "#", operator: bool = False, **definition: object) -> Policy:
    return Policy.read(name, pattern, definition, operator=operator)


def present(broker: Broker) -> Deployment:
    driver = driver_of(broker)
    return driver.perform(carrying.present(driver.keyspace))


def plan(broker: Broker, desired: Deployment) -> Plan:
    return make_plan(desired, present(broker), prune=True)


def carry_out(broker: Broker, steps: Plan) -> carrying.Effect:
    driver = driver_of(broker)
    return driver.perform(carrying.carry_out(driver.keyspace, steps))


DESIRED = Deployment.of(
    [QueueOptions.read("a", {"max_length": 5}), QueueOptions.read("b", {})],
    [policy("p", max_deliveries=3), policy("q", "a", lease="1m"), policy("p", operator=True, max_length=4)],
)


@pytest.fixture
def older(broker: Broker) -> Broker:
    """A broker with other queues and policies."""
    broker.declare_queue("a", max_length=50).enqueue_many([b"x"] * 9)
    broker.declare_queue("old").enqueue_many([b"x"] * 2)
    broker.set_policy("old", "#", {"lease": "5m"})
    broker.set_operator_policy("old", "#", {"max_message_bytes": 9})
    return broker


def test_all_policies_of_a_plan_change_in_one_call(older: Broker) -> None:
    calls: list[str] = []
    older.events.subscribe(lambda event: calls.append(event.name), CommandEvent)

    carry_out(older, plan(older, DESIRED))

    assert calls.count("change_policies") == 1
    assert calls.index("change_policies") < calls.index("declare")
    assert present(older) == DESIRED


def test_the_effect_is_counted_before_and_after(older: Broker) -> None:
    driver, steps = driver_of(older), plan(older, DESIRED)

    ahead = driver.perform(carrying.preview(driver.keyspace, steps))
    effect = carry_out(older, steps)

    # the policy would trim to 4, and the update to 5: a message counts once
    for counts in (ahead, effect):
        assert (counts.expired, counts.trimmed, counts.deleted) == (0, 5, 2)
    assert older.queue("a").stats().ready == 4


def test_no_message_dies_by_options_between_two_steps(broker: Broker) -> None:
    queue = broker.declare_queue("a", lease="1m")
    queue.enqueue_many([b"x"] * 9)
    desired = Deployment.of([QueueOptions.read("a", {"overflow": "reject-publish"})], [policy("p", max_length=2)])
    driver, steps = driver_of(broker), plan(broker, desired)

    ahead = driver.perform(carrying.preview(driver.keyspace, steps))
    effect = carry_out(broker, steps)

    assert (ahead.trimmed, effect.trimmed) == (0, 0)
    assert queue.stats().ready == 9
    assert (queue.options()["max_length"], queue.options()["overflow"]) == (2, "reject-publish")


def test_a_plan_that_broke_off_is_finished_by_the_next(older: Broker) -> None:
    def die() -> None:
        raise KeyboardInterrupt

    before_step(driver_of(older), Register("b"), die)
    with pytest.raises(KeyboardInterrupt):
        carry_out(older, plan(older, DESIRED))
    assert older.queues() == ["a", "old"]

    rest = plan(older, DESIRED)
    assert [(step.action, step.name) for step in rest.steps] == [("create", "b"), ("update", "a"), ("delete", "old")]
    carry_out(older, rest)

    assert present(older) == DESIRED
    assert plan(older, DESIRED).steps == ()
    assert older.reconcile().changed == {}


def test_a_damaged_record_is_raised(broker: Broker) -> None:
    broker.declare_queue("a")
    driver_of(broker).store.client.hset("rqttl:{a}:meta", "declared", "[]")

    with pytest.raises(DataDamaged, match="its record holds no options"):
        present(broker)


def test_queues_are_deployed_beside_a_damaged_policy(broker: Broker) -> None:
    broker.declare_queue("a").enqueue_many([b"x"] * 3)
    driver_of(broker).store.client.hset("rqttl:policies", mapping={"version": 1, "policy p": "{"})
    desired = Deployment.of([QueueOptions.read("a", {"max_length": 1})], [])
    driver, steps = driver_of(broker), plan(broker, desired)

    assert driver.perform(carrying.preview(driver.keyspace, steps)).trimmed == 2
    assert carry_out(broker, steps).trimmed == 2
