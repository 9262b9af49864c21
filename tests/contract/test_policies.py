"""Policies: they act on existing queues and the messages in them at once, and leave no trace when they go."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from rqttl import Broker, Policy, PolicyNotFound, QueueFull
from tests.contract.clocked import Clocked
from tests.half_done import store_policy
from tests.lua.states import everything

META = "rqttl:{orders}:meta"
#: Fields of a record that change with each change of its options.
MOVING = {b"version", b"policies", b"due_at"}


def record(client: redis.Redis) -> dict[bytes, bytes]:
    fields: Any = client.hgetall(META)
    return {name: value for name, value in fields.items() if name not in MOVING}


@pytest.mark.spec("POL-11", "A-083", "W5", "QTL-14")
def test_a_shorter_retention_ends_messages_that_wait(clocked: Clocked) -> None:
    queue = clocked.declare_queue("orders", dead_letter_expired="dead")
    for _ in range(10):
        queue.enqueue(b"x")
        clocked.advance("1m")

    result = clocked.set_policy("short", "orders", {"message_ttl": "5m"})

    assert (result.expired, result.trimmed, result.unfinished) == (6, 0, ())
    assert result.changed == {"orders": {"message_ttl": (None, 300_000)}}
    assert queue.stats(sweep=False).ready == 4
    assert clocked.queue("dead").stats().ready == 6
    assert clocked.preview_policy(Policy.read("short", "orders", {"message_ttl": "5m"})).changed == {}


def test_messages_that_are_overdue_are_no_effect_of_a_policy(clocked: Clocked) -> None:
    queue = clocked.declare_queue("orders")
    queue.enqueue(b"overdue", ttl="1s")
    queue.enqueue(b"fresh")
    clocked.advance(1000)

    result = clocked.set_policy("p", "orders", {"message_ttl": "1h"})

    assert (result.expired, result.trimmed) == (0, 0)
    assert queue.stats().deaths["expired"] == 1


@pytest.mark.spec("POL-11", "LEN-25")
def test_a_lower_limit_trims_messages_that_wait(broker: Broker) -> None:
    queue = broker.declare_queue("orders")
    queue.enqueue_many([b"%d" % i for i in range(10)])
    policy = Policy.read("small", "#", {"max_length": 4})

    preview = broker.preview_policy(policy)
    assert queue.stats().ready == 10
    result = broker.set_policy("small", "#", {"max_length": 4})

    assert preview == result
    assert (result.expired, result.trimmed) == (0, 6)
    assert [view.body for view in queue.peek()] == [b"6", b"7", b"8", b"9"]


def test_another_overflow_trims_a_queue_that_is_over_its_limit(broker: Broker) -> None:
    queue = broker.declare_queue("orders")
    queue.enqueue_many([b"x"] * 10)
    broker.set_operator_policy("refuse", "#", {"overflow": "reject-publish"})
    kept = broker.set_policy("small", "#", {"max_length": 4})
    [refuse] = broker.operator_policies()

    preview = broker.preview_policy(refuse, delete=True)
    result = broker.delete_operator_policy("refuse")

    assert (kept.trimmed, preview.trimmed, result.trimmed, queue.stats(sweep=False).ready) == (0, 6, 6, 4)


def test_many_dead_messages_go_in_bounded_steps(broker: Broker) -> None:
    queue = broker.declare_queue("orders")
    for _ in range(12):
        queue.enqueue_many([b"x"] * 1_000)

    result = broker.set_policy("none", "orders", {"max_length": 0})

    assert result.trimmed == 12_000 - queue.stats(sweep=False).ready
    assert (result.unfinished == ("orders",)) == (result.trimmed < 12_000)
    queue.sweep()
    assert queue.stats().ready == 0


@pytest.mark.spec("W21", "POL-15")
def test_a_raised_limit_lets_publishers_in_again(broker: Broker) -> None:
    queue = broker.declare_queue("orders", overflow="reject-publish")
    broker.set_policy("limit", "orders", {"max_length": 2})
    queue.enqueue_many([b"x"] * 2)
    with pytest.raises(QueueFull):
        queue.enqueue(b"x")

    broker.set_policy("limit", "orders", {"max_length": 3})
    queue.enqueue(b"x")
    with pytest.raises(QueueFull):
        queue.enqueue(b"x")

    broker.delete_policy("limit")
    queue.enqueue(b"x")
    assert queue.stats().ready == 4


@pytest.mark.spec("POL-15", "W21")
@pytest.mark.parametrize("operator", [False, True])
def test_a_deleted_policy_leaves_no_trace(broker: Broker, client: redis.Redis, operator: bool) -> None:
    broker.declare_queue("orders", max_length=50)
    before = record(client)
    definition = {"message_ttl": "5m", "max_length": 5, "overflow": "reject-publish", "redelivery_delay": "1s"}
    put, delete = (
        (broker.set_operator_policy, broker.delete_operator_policy)
        if operator
        else (broker.set_policy, broker.delete_policy)
    )

    put("p", "orders", definition)
    with_policy = record(client)
    delete("p")
    assert record(client) == before
    put("p", "orders", definition)

    assert record(client) == with_policy != before


@pytest.mark.spec("POL-16")
def test_a_change_of_a_policy_reaches_leased_messages(broker: Broker) -> None:
    queue = broker.declare_queue("orders", dead_letter_delivery_limit="dead")
    queue.enqueue(b"x")
    first = queue.receive_many(1)

    broker.set_policy("once", "orders", {"max_deliveries": 1})
    queue.nack_many(first)

    assert broker.queue("dead").stats().ready == 1


def test_a_policy_that_is_set_again_changes_nothing(broker: Broker, client: redis.Redis) -> None:
    broker.declare_queue("orders").enqueue(b"x")
    broker.set_policy("p", "orders", {"max_length": 5})
    before = everything(client)

    assert broker.set_policy("p", "orders", {"max_length": 5}).changed == {}
    assert everything(client) == before


def test_a_policy_with_another_pattern_leaves_the_queues_of_the_first(broker: Broker) -> None:
    broker.declare_queue("a")
    broker.declare_queue("b")
    broker.set_policy("p", "a", {"max_length": 5})

    result = broker.set_policy("p", "b", {"max_length": 5})

    assert result.changed == {"a": {"max_length": (5, None)}, "b": {"max_length": (None, 5)}}


def test_other_queues_are_not_touched(broker: Broker, client: redis.Redis) -> None:
    broker.declare_queue("other").enqueue(b"x")
    before = client.hgetall("rqttl:{other}:meta")

    broker.set_policy("p", "orders", {"max_length": 0})

    assert client.hgetall("rqttl:{other}:meta") == before


@pytest.mark.parametrize("delete", ["delete_policy", "delete_operator_policy"])
def test_a_policy_that_does_not_exist_cannot_be_deleted(broker: Broker, client: redis.Redis, delete: str) -> None:
    broker.set_policy("q", "#", {"max_length": 5})
    before = everything(client)

    with pytest.raises(PolicyNotFound, match="policy 'p' does not exist"):
        getattr(broker, delete)("p")

    assert everything(client) == before


@pytest.mark.spec("POL-18")
def test_policies_of_a_namespace_act_there_only(broker: Broker, client: redis.Redis) -> None:
    other = Broker(client, "other")
    queue = other.declare_queue("orders")

    broker.set_policy("p", "#", {"max_length": 5})

    assert other.policies() == []
    assert queue.options()["max_length"] is None


@pytest.mark.spec("POL-01")
def test_policies_are_listed_as_they_were_set(broker: Broker) -> None:
    broker.set_policy("b", "#", {"message-ttl": "5m", "max_length": None}, priority=-3)
    broker.set_policy("a", "orders", {"lease": "1m"}, syntax="regex")
    broker.set_operator_policy("a", "#", {"max_length": 9})

    assert [(one.name, one.operator) for one in broker.policies()] == [("a", False), ("b", False)]
    assert broker.operator_policies() == [Policy.read("a", "#", {"max_length": 9}, operator=True)]
    assert broker.policies()[1] == Policy.read("b", "#", {"message_ttl": "5m", "max_length": "none"}, priority=-3)


def test_reconcile_finishes_the_change_of_a_client_that_died(broker: Broker) -> None:
    queue = broker.declare_queue("orders")
    queue.enqueue_many([b"x"] * 5)
    store_policy(broker, Policy.read("p", "orders", {"max_length": 2}))

    result = broker.reconcile()

    assert result.changed == {"orders": {"max_length": (None, 2)}}
    assert result.trimmed == 3
    assert broker.reconcile() == ({}, 0, 0, (), {}, ())


CASES: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    ({"message_ttl": "5m"}, {"message_ttl": "1m"}, {}, {"message_ttl": 60_000}),
    ({"message_ttl": "1m"}, {"message_ttl": "5m"}, {}, {"message_ttl": 60_000}),
    ({"max_length": 9}, {"max_length": 8}, {"max_length": 7}, {"max_length": 7}),
    ({"lease": "1m"}, {"lease": "2m"}, {}, {"lease": 60_000}),
    ({"overflow": "reject-publish"}, {"overflow": "reject-publish-dlx"}, {}, {"overflow": "reject-publish"}),
    ({"overflow": "reject-publish"}, {}, {"overflow": "reject-publish-dlx"}, {"overflow": "reject-publish-dlx"}),
    ({"dead_letter": "own"}, {"dead_letter": "theirs"}, {}, {"dead_letter": "own"}),
    ({}, {"dead_letter": "theirs"}, {"dead_letter": "last"}, {"dead_letter": "last"}),
]


@pytest.mark.spec("POL-14", "OPP-03", "OPP-05", "OPP-08", "QTL-14")
@pytest.mark.parametrize("declared, policy, operator, expected", CASES)
def test_declared_options_and_policies_merge(
    broker: Broker,
    declared: dict[str, Any],
    policy: dict[str, Any],
    operator: dict[str, Any],
    expected: dict[str, Any],
) -> None:
    queue = broker.declare_queue("orders", **declared)
    if policy:
        broker.set_policy("p", "#", policy)
    if operator:
        broker.set_operator_policy("o", "#", operator)

    assert {name: queue.options()[name] for name in expected} == expected
    assert queue.options(declared=True).as_arguments() == declared
    explanation = queue.explain()
    assert {name: explanation[name].value for name in expected} == expected
    assert explanation.outdated == {}
