"""Stored policies that cannot be read: no sender and no declaration is stopped, and nothing in force is stripped."""

from __future__ import annotations

import json
import logging

import pytest
import redis

from rqttl import Broker, DataDamaged, Policy
from rqttl.reaper import Reaper

KEY = "rqttl:policies"
#: A policy of a newer rqttl: it has an option that this one does not know.
NEWER = {
    "apply_to": "queues",
    "definition": {"max_length": 7, "warp_factor": 9},
    "pattern": "orders.#",
    "priority": 5,
    "syntax": "wildcard",
}


def put(client: redis.Redis, field: str, value: object, version: int = 50) -> None:
    """Write a policy as another program, or a newer rqttl, does."""
    text = value if isinstance(value, str) else json.dumps(value)
    client.hset(KEY, mapping={"version": version, field: text})


def record(client: redis.Redis, queue: str) -> dict[str, object]:
    options, policies = client.hmget(f"rqttl:{{{queue}}}:meta", "options", "policies")
    assert options is not None
    assert policies is not None
    return {"policies": int(policies), **json.loads(options)}


def apply_newer(client: redis.Redis, queue: str, version: int = 50) -> None:
    """Put the options of `NEWER` in force, as a newer rqttl does."""
    options = {"max_length": 7, "warp_factor": 9}
    fields: dict[str, str | int] = {
        "options": json.dumps(options, separators=(",", ":")),
        "policies": version,
        "max_length": 7,
    }
    client.hset(f"rqttl:{{{queue}}}:meta", mapping=fields | {"warp_factor": 9, "option_set": "custom"})  # type: ignore[arg-type]  # dict is invariant


@pytest.mark.parametrize("field", ["policy x", "operator x", "stranger", "version"])
def test_a_damaged_policy_stops_no_declaration_and_is_logged(
    broker: Broker, client: redis.Redis, field: str, caplog: pytest.LogCaptureFixture
) -> None:
    broker.set_policy("sound", "#", {"max_deliveries": 3})
    put(client, field, "{" if field != "version" else "many")
    other = Broker(client)

    with caplog.at_level(logging.WARNING, "rqttl"):
        queue = other.declare_queue("orders")
        other.declare_queue("orders")

    assert queue.enqueue(b"x").id
    assert queue.options()["max_deliveries"] == 3
    assert [policy.name for policy in other.policies()] == ["sound"]
    assert [line for line in caplog.messages if repr(field) in line and "rqttl doctor" in line] == caplog.messages
    assert len(caplog.messages) == 1


def test_policies_of_another_type_stop_no_declaration(broker: Broker, client: redis.Redis) -> None:
    client.set(KEY, "ours")

    assert broker.declare_queue("orders", max_length=3).options()["max_length"] == 3
    assert "another type" in broker.queue("orders").explain().damaged[0]
    with pytest.raises(DataDamaged):
        broker.set_policy("short", "#", {"max_length": 3})


def test_damage_keeps_the_options_in_force(broker: Broker, client: redis.Redis) -> None:
    queue = broker.declare_queue("orders")
    broker.set_policy("graves", "#", {"dead_letter": "{queue}/dead", "max_length": 7})
    put(client, "policy graves", "{")
    other = Broker(client)

    assert other.reconcile().changed == {}
    Reaper(other).run_once()
    other.declare_queue("orders")

    assert (queue.options()["dead_letter"], queue.options()["max_length"]) == ("{queue}/dead", 7)


def test_policies_change_only_after_the_damage_is_mended(broker: Broker, client: redis.Redis) -> None:
    queue = broker.declare_queue("orders")
    broker.set_policy("graves", "#", {"max_length": 7})
    put(client, "policy graves", "{")
    other = Broker(client)

    with pytest.raises(DataDamaged, match="policy graves"):
        other.set_policy("short", "#", {"message_ttl": "5m"})
    with pytest.raises(DataDamaged, match="policy graves"):
        other.preview_policy(Policy.read("short", "#", {"message_ttl": "5m"}))
    assert client.hget(KEY, "version") == b"50"

    assert other.set_policy("graves", "#", {"max_length": 5}).changed == {"orders": {"max_length": (7, 5)}}
    other.set_policy("short", "#", {"message_ttl": "5m"})
    put(client, "policy graves", "{", 90)
    assert list(Broker(client).delete_policy("graves").changed) == ["orders"]
    assert queue.options()["max_length"] is None


def test_an_old_process_leaves_a_queue_with_options_of_a_newer_one_alone(broker: Broker, client: redis.Redis) -> None:
    broker.declare_queue("orders.eu")
    broker.declare_queue("mails")
    put(client, "policy new", NEWER)
    apply_newer(client, "orders.eu")
    old = Broker(client)

    with pytest.raises(DataDamaged, match="warp_factor"):
        old.declare_queue("orders.eu")
    old.reconcile()
    Reaper(old).run_once()
    with pytest.raises(DataDamaged, match="warp_factor"):
        old.set_policy("low", "#", {"max_length": 3})
    result = old.delete_policy("new")

    assert record(client, "orders.eu") == {"policies": 50, "max_length": 7, "warp_factor": 9}
    assert (result.changed, list(result.damaged)) == ({}, ["orders.eu"])
    assert list(old.set_policy("low", "#", {"max_length": 3}).changed) == ["mails"]


def test_a_queue_that_an_old_process_creates_waits_for_a_newer_one(broker: Broker, client: redis.Redis) -> None:
    put(client, "policy new", NEWER)
    broker.declare_queue("orders.eu")
    broker.declare_queue("orders.eu")

    assert record(client, "orders.eu") == {"policies": 0}
    explanation = broker.queue("orders.eu").explain()
    assert len(explanation.damaged) == 1
    assert "'policy new'" in explanation.damaged[0]
    assert "warp_factor" in explanation.damaged[0]
