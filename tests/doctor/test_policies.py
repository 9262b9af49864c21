"""Policies: damage of the stored ones, and queues whose options in force do not follow them."""

from __future__ import annotations

import pytest
import redis

from rqttl import Broker, PoliciesDamaged, Policy
from rqttl.doctor import examine_queues
from rqttl.store.driver import driver_of
from tests.doctor.looking import of, only, repaired, server, wrong
from tests.drivers import before_step
from tests.half_done import store_policy
from tests.lua.states import everything

KEY = "rqttl:policies"
SHORT = Policy.read("short", "orders", {"max_length": 5, "message_ttl": "5m"})


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rqttl.doctor.policies.PAUSE", 0)


def test_policies_are_no_foreign_key_and_are_counted(broker: Broker) -> None:
    broker.declare_queue("orders")
    assert of(examine_queues(broker), "policies") == []

    broker.set_policy("short", "#", {"max_length": 5})
    broker.set_operator_policy("cap", "#", {"max_length": 4})

    assert wrong(broker) == []
    assert of(examine_queues(broker), "policies") == [("ok", "2 stored, and 1 queue with the options that follow")]


def test_a_queue_with_the_options_of_older_policies_is_a_problem_that_a_repair_ends(broker: Broker) -> None:
    broker.declare_queue("orders")
    broker.declare_queue("other")
    store_policy(broker, SHORT)

    text = (
        "its options in force do not follow its declared options and policies: message_ttl is not set in force, "
        "should be 5m; max_length is not set in force, should be 5"
    )
    assert wrong(broker) == [("orders", "problem", text)]
    assert wrong(broker, "other") == []
    assert repaired(broker) == {("orders", "reconcile"): "message_ttl, max_length changed"}
    assert broker.queue("orders").options()["max_length"] == 5
    assert wrong(broker) == []


def test_looking_at_policies_changes_nothing(broker: Broker, client: redis.Redis) -> None:
    broker.declare_queue("orders")
    store_policy(broker, SHORT)
    before = everything(client)

    assert len(wrong(broker)) == 1
    assert everything(client) == before


def test_a_change_that_ends_meanwhile_is_no_finding(broker: Broker) -> None:
    from rqttl.flows import Sleep

    broker.declare_queue("orders")
    store_policy(broker, SHORT)
    other = Broker(driver_of(broker).store.client)
    before_step(driver_of(broker), Sleep, other.reconcile)

    assert wrong(broker) == []


@pytest.mark.parametrize(
    "field, value, kind, text",
    [
        ("policy short", "{", "remove_policy", "the field 'policy short' of the stored policies cannot be read: "),
        ("policy short", '{"pattern": "#"}', "remove_policy", "the field 'policy short' of the stored policies"),
        ("operator x", "", "remove_policy", "the field 'operator x' of the stored policies"),
        ("stranger", "1", "remove_policy", "the field 'stranger' of the stored policies"),
        ("version", "many", "reset_version", "the field 'version' of the stored policies cannot be read: "),
        ("version", "-1", "reset_version", "the field 'version' of the stored policies cannot be read: "),
    ],
)
def test_a_damaged_field_is_named_and_repaired(
    broker: Broker, client: redis.Redis, field: str, value: str, kind: str, text: str
) -> None:
    broker.declare_queue("orders")
    broker.set_policy("sound", "orders", {"max_deliveries": 3})
    client.hset(KEY, field, value)

    level, result, advice = only(examine_queues(broker), "policies")
    assert (level, result[: len(text)]) == ("problem", text)
    assert "rqttl doctor --repair" in advice
    with pytest.raises(PoliciesDamaged):
        Broker(client).set_policy("other", "other", {"max_length": 3})
    assert list(repaired(broker)) == [(field, kind)]
    assert [policy.name for policy in Broker(client).policies()] == ["sound"]
    assert wrong(broker) == []
    assert Broker(client).queue("orders").options()["max_deliveries"] == 3


def test_a_damaged_policy_and_a_damaged_version_are_repaired_together(broker: Broker, client: redis.Redis) -> None:
    broker.declare_queue("orders")
    broker.set_policy("short", "orders", {"max_length": 5})
    client.hset(KEY, mapping={"policy short": "damage", "version": "many"})

    assert repaired(broker) == {
        ("version", "reset_version"): "a new version is stored; 0 queues got other options",
        ("policy short", "remove_policy"): "removed; 1 queue got other options",
    }
    assert wrong(broker) == []


def test_a_missing_version_is_damage(broker: Broker, client: redis.Redis) -> None:
    broker.declare_queue("orders")
    broker.set_policy("sound", "orders", {"max_deliveries": 3})
    client.hdel(KEY, "version")

    assert only(examine_queues(broker), "policies")[0] == "problem"
    repaired(broker)
    broker.delete_policy("sound")
    assert broker.queue("orders").options()["max_deliveries"] is None


def test_the_queues_of_a_removed_field_get_the_options_that_are_left(broker: Broker, client: redis.Redis) -> None:
    broker.declare_queue("orders")
    broker.set_policy("short", "orders", {"max_length": 5})
    client.hset(KEY, "policy short", "damage")

    assert repaired(broker) == {("policy short", "remove_policy"): "removed; 1 queue got other options"}
    assert broker.queue("orders").options()["max_length"] is None


def test_a_key_of_another_type_is_a_problem_that_a_person_solves(broker: Broker, client: redis.Redis) -> None:
    broker.declare_queue("orders")
    client.set(KEY, "ours")

    level, result, advice = server(broker, "policies")
    assert (level, advice) == ("problem", f"look at it, then DEL {KEY}, and set the policies again")
    assert result == f"the key {KEY} has another type than rqttl gave it; no policy can be read"
    assert [one.repair for one in examine_queues(broker) if one.repair] == []


@pytest.mark.parametrize("name, repair", [("newer", False), ("two words", True)])
def test_a_policy_of_a_newer_rqttl_is_left_to_a_person(
    broker: Broker, client: redis.Redis, name: str, repair: bool
) -> None:
    text = SHORT.as_json().replace("max_length", "warp_factor")
    client.hset(KEY, mapping={"version": 1, f"policy {name}": text})

    level, result, advice = only(examine_queues(broker), "policies")

    assert (level, f"policy {name}" in result) == ("problem", True)
    assert ("set or delete this policy" in advice) is not repair
    assert list(repaired(broker)) == ([(f"policy {name}", "remove_policy")] if repair else [])


@pytest.mark.parametrize("field, value", [("declared", "[]"), ("declared", "{"), ("policies", "many")])
def test_declared_options_that_cannot_be_read_are_a_problem_with_a_remedy(
    broker: Broker, client: redis.Redis, field: str, value: str
) -> None:
    broker.declare_queue("orders", max_length=5)
    client.hset("rqttl:{orders}:meta", field, value)

    ((queue, level, text),) = wrong(broker)
    assert (queue, level) == ("orders", "problem")
    assert text.startswith("its declared options, or the version of its policies, cannot be read")
    client.hset("rqttl:{orders}:meta", mapping={"declared": '{"max_length":5}', "policies": 0})
    assert wrong(broker) == []
    assert broker.queue("orders").options(declared=True)["max_length"] == 5
