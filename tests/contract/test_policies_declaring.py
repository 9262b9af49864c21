"""Policies and declarations: what is declared and what is in force are two things, and no policy makes one fail."""

from __future__ import annotations

from typing import Any

import pytest

from rqttl import Broker, InvalidOption, Policy, QueueMismatch, QueueOptions, flows
from rqttl.flows.steps import Step, drive
from rqttl.protocol.commands import Command
from rqttl.store.driver import driver_of
from tests.contract.clocked import Clocked
from tests.half_done import store_policy

POLICY = {"max_length": 5, "message_ttl": "5m", "overflow": "reject-publish", "dead_letter": "dead"}


@pytest.mark.spec("POL-12")
def test_a_new_queue_has_the_options_of_its_policies(broker: Broker) -> None:
    broker.set_policy("p", "orders.#", POLICY)

    queue = broker.declare_queue("orders.eu", max_length=3)

    assert queue.options().as_arguments() == {**POLICY, "max_length": 3}
    assert queue.options(declared=True).as_arguments() == {"max_length": 3}
    assert broker.reconcile().changed == {}


@pytest.mark.spec("POL-17", "DEC-01")
@pytest.mark.parametrize("first", ["declaration", "policy"])
def test_a_policy_makes_no_declaration_fail(broker: Broker, first: str) -> None:
    if first == "declaration":
        broker.declare_queue("orders", max_length=10)
    broker.set_policy("p", "#", POLICY)
    if first == "policy":
        broker.declare_queue("orders", max_length=10)

    for client in (broker, broker):
        assert client.declare_queue("orders", max_length=10).declared == "existing"
    with pytest.raises(QueueMismatch, match="max_length: requested 5, declared 10"):
        broker.declare_queue("orders", max_length=5)
    broker.delete_policy("p")
    assert broker.declare_queue("orders", max_length=10).options().as_arguments() == {"max_length": 10}


@pytest.mark.spec("POL-17")
def test_the_options_in_force_are_no_declaration(broker: Broker) -> None:
    broker.set_policy("p", "#", {"max_length": 5})
    broker.declare_queue("orders")

    with pytest.raises(QueueMismatch):
        broker.declare_queue("orders", max_length=5)


def test_an_update_changes_what_is_declared_and_policies_act_on_it(broker: Broker) -> None:
    broker.set_policy("p", "#", {"max_length": 5, "lease": "3m"})
    queue = broker.declare_queue("orders", max_length=3)

    result = queue.update(max_length=None, lease="2m")

    assert (result.before["max_length"], result.after["max_length"]) == (3, 5)
    assert queue.options().as_arguments() == {"max_length": 5, "lease": "2m"}
    assert queue.options(declared=True).as_arguments() == {"lease": "2m"}
    assert queue.preview_update(max_length=4).after["max_length"] == 4


def test_a_declaration_applies_policies_that_a_dead_client_left(broker: Broker) -> None:
    broker.declare_queue("orders")
    store_policy(broker, Policy.read("p", "#", {"max_length": 5}))

    queue = broker.declare_queue("orders")

    assert queue.options()["max_length"] == 5


def test_an_adopted_queue_keeps_the_options_of_its_policies(broker: Broker) -> None:
    broker.set_policy("p", "dead", {"max_length": 5})
    broker.declare_queue("orders", dead_letter="dead").enqueue(b"x", ttl=0)

    queue = broker.declare_queue("dead", lease="1m")

    assert queue.declared == "adopted"
    assert queue.options().as_arguments() == {"max_length": 5, "lease": "1m"}


@pytest.mark.parametrize("option", ["expires", "auto_delete_on_idle"])
def test_the_lifetime_that_a_policy_gives_starts_with_the_policy(clocked: Clocked, option: str) -> None:
    clocked.declare_queue("orders")
    clocked.advance("1h")

    clocked.set_policy("p", "orders", {option: "10m"})

    clocked.advance("599s")
    assert clocked.queues() == ["orders"]
    clocked.advance("2s")
    assert clocked.queues() == []


def test_a_change_of_other_options_is_no_use_of_a_queue(clocked: Clocked) -> None:
    clocked.declare_queue("orders", expires="10m")
    clocked.advance("9m")

    clocked.set_policy("p", "orders", {"max_length": 10})
    clocked.reconcile()

    clocked.advance("61s")
    assert clocked.queues() == []


def test_a_queue_whose_lifetime_a_policy_ends_is_declared_anew(clocked: Clocked) -> None:
    clocked.set_policy("p", "#", {"expires": "1m", "max_length": 3})
    clocked.declare_queue("orders", lease="1m")
    clocked.advance("2m")

    queue = clocked.declare_queue("orders")

    assert queue.declared == "created"
    assert queue.options().as_arguments() == {"expires": "1m", "max_length": 3}


@pytest.mark.parametrize("known", ["a missing queue", "an existing queue"])
def test_a_declaration_with_an_old_set_of_policies_ends_with_the_new_one(broker: Broker, known: str) -> None:
    broker.set_policy("p", "#", {"max_length": 5})
    if known == "an existing queue":
        broker.declare_queue("orders")
    driver, changes = driver_of(broker), [7]

    def perform(step: Step) -> object:
        if isinstance(step, Command) and step.script.name == "declare" and changes:
            broker.set_policy("p", "#", {"max_length": changes.pop()})  # after the flow has read the set
        return driver.step(step)

    drive(flows.queues.declare(driver.keyspace, QueueOptions.read("orders", {})), perform)

    assert changes == []
    assert broker.queue("orders").options()["max_length"] == 7
    assert broker.reconcile().changed == {}


MEETINGS: list[tuple[str, Any, Any, Any]] = [
    ("message_ttl", "5m", "100s", "100s"),
    ("message_ttl", "100s", "5m", "100s"),
    ("expires", "1m", "10m", "1m"),
    ("expires", "5m", "100s", "100s"),
    ("max_length", 2, 1, 1),
    ("max_length", 1, 2, 1),
    ("dead_letter", "declared", "policy", "declared"),
]


@pytest.mark.spec("TTL-32", "QTL-14", "LEN-28", "DLX-28", "POL-14")
@pytest.mark.parametrize("option, declared, policy, expected", MEETINGS)
@pytest.mark.parametrize("first", ["declaration", "policy"])
def test_a_policy_and_a_declared_option_meet_in_any_order_and_the_declared_one_outlives_the_policy(
    broker: Broker, option: str, declared: Any, policy: Any, expected: Any, first: str
) -> None:
    arguments: dict[str, Any] = {option: declared}
    if first == "declaration":
        broker.declare_queue("orders", **arguments)
    broker.set_policy("p", "#", {option: policy})
    queue = broker.declare_queue("orders", **arguments)

    assert queue.options().as_arguments() == {option: expected}
    broker.delete_policy("p")
    assert queue.options().as_arguments() == arguments


@pytest.mark.spec("W26")
def test_an_option_changes_in_place_and_an_unknown_one_is_refused(broker: Broker) -> None:
    queue = broker.declare_queue("orders", max_length=5)
    queue.enqueue(b"kept")

    queue.update(max_length=9, lease="1m")

    assert queue.options(declared=True).as_arguments() == {"max_length": 9, "lease": "1m"}
    assert queue.stats().ready == 1
    unknown: dict[str, Any] = {"max_lenght": 9}
    for refused in (lambda: queue.update(**unknown), lambda: broker.declare_queue("orders", **unknown)):
        with pytest.raises(InvalidOption, match="max_lenght"):
            refused()
