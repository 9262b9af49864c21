"""Targets of policies: no queue becomes its own target, and no expiry queue gets one of its own."""

from __future__ import annotations

import pytest

from rqttl import Policy
from rqttl.options import QueueOptions
from rqttl.policies import PolicySet
from rqttl.policies.merging import origin_of
from tests.unit.policies.sets import in_force, policy

PER_REASON = ["dead_letter", "dead_letter_expired", "dead_letter_maxlen", "dead_letter_delivery_limit"]


@pytest.mark.parametrize("option", PER_REASON)
@pytest.mark.parametrize("target", ["dead", "{queue}"])
def test_a_policy_whose_target_is_the_queue_itself_gives_it_none(option: str, target: str) -> None:
    assert in_force("dead", policy("p", "#", **{option: target})) == {}
    assert in_force("orders", policy("p", "#", **{option: "dead"})) == {option: "dead"}


@pytest.mark.parametrize("target", ["dead", "{queue}"])
def test_a_rejected_message_may_go_to_the_end_of_its_own_queue(target: str) -> None:
    assert in_force("dead", policy("p", "#", dead_letter_rejected=target)) == {"dead_letter_rejected": target}


def test_a_target_that_the_queue_cannot_have_ends_the_search_as_none_does() -> None:
    first, next_one = policy("a", "#", priority=1, dead_letter="dead"), policy("b", "#", dead_letter="other")

    assert in_force("dead", first, next_one) == {}
    assert in_force("orders", first, next_one) == {"dead_letter": "dead"}
    assert in_force("dead", first, next_one, dead_letter="own") == {"dead_letter": "own"}
    assert in_force("dead", first, policy("o", "#", True, dead_letter="third")) == {"dead_letter": "third"}


@pytest.mark.parametrize(
    "template,made", [("EXP.{queue}", "EXP.orders"), ("{queue}.dead", "orders.dead"), ("x.{queue}/y", "x.orders/y")]
)
def test_a_queue_that_a_template_made_gets_no_target_from_a_template(template: str, made: str) -> None:
    each = policy("each", "#", dead_letter_expired=template)

    assert in_force("orders", each) == {"dead_letter_expired": template}
    assert in_force(made, each) == {}
    assert in_force(made, each, policy("other", "#", True, dead_letter_maxlen="{queue}.full")) == {}
    assert in_force(made, each, policy("plain", "#", dead_letter_maxlen="full")) == {"dead_letter_maxlen": "full"}


def test_the_chain_of_expiry_queues_ends_after_one() -> None:
    found, queue, chain = PolicySet(1, (policy("each", "#", dead_letter_expired="EXP.{queue}"),)), "orders", []
    while queue := found.resolve(QueueOptions(queue, {})).options.target("expired"):
        chain.append(queue)

    assert chain == ["EXP.orders"]


def test_policies_that_name_queues_in_turn_end_after_one() -> None:
    policies = (
        Policy.read("a", "^(EXP[.]B[.]|orders)", {"dead_letter": "EXP.A.{queue}"}, syntax="regex"),
        Policy.read("b", "^EXP[.]A[.]", {"dead_letter": "EXP.B.{queue}"}, syntax="regex"),
    )
    found = PolicySet(1, policies)

    assert found.resolve(QueueOptions("orders", {})).options.target("expired") == "EXP.A.orders"
    made = found.resolve(QueueOptions("EXP.A.orders", {}))
    assert made.options.target("expired") == ""
    assert made.explained["dead_letter"].note == (
        "policy b: the template 'EXP.A.{queue}' of policy a made the name 'EXP.A.orders': "
        "no template of any policy acts on it"
    )


def test_a_template_makes_names_only_of_queues_that_its_policy_matches() -> None:
    narrow, each = (
        policy("narrow", "orders.#", dead_letter="{queue}/dead"),
        policy("each", "#", dead_letter="EXP.{queue}"),
    )

    assert in_force("mails/dead", narrow, each) == {"dead_letter": "EXP.{queue}"}
    assert in_force("orders/dead", narrow, each) == {}


def test_a_template_that_keeps_the_name_made_no_queue() -> None:
    again, each = policy("again", "#", dead_letter_rejected="{queue}"), policy("each", "#", dead_letter="EXP.{queue}")

    assert in_force("orders", again, each) == {"dead_letter_rejected": "{queue}", "dead_letter": "EXP.{queue}"}


def test_a_target_with_a_name_that_no_queue_may_have_is_none() -> None:
    each = policy("each", "#", dead_letter="EXP.{queue}")

    assert in_force("q" * 124, each) == {"dead_letter": "EXP.{queue}"}
    assert in_force("q" * 125, each) == {}
    assert in_force("{tag}.orders", each) == {}


def test_an_empty_target_of_one_reason_drops_its_messages() -> None:
    options = PolicySet(1, (policy("p", "#", dead_letter="dead", dead_letter_expired=""),)).resolve(
        QueueOptions("q", {})
    )

    assert (options.options.target("expired"), options.options.target("maxlen")) == ("", "dead")


@pytest.mark.parametrize(
    "queue,template,made",
    [
        ("EXP.orders", "EXP.{queue}", True),
        ("EXP.", "EXP.{queue}", False),
        ("EXP", "EXP.{queue}", False),
        ("EXP.-a", "EXP.{queue}", False),
        ("exp.a", "EXP.{queue}", False),
        ("a.dead", "{queue}.dead", True),
        ("a.a", "{queue}.{queue}", True),
        ("a.b", "{queue}.{queue}", False),
        ("a.aa", "{queue}.{queue}", False),
        ("x.y.x.y", "{queue}.{queue}", True),
        ("aXaXa", "{queue}X{queue}X{queue}", True),
        ("a", "{queue}.{queue}", False),
        ("aba", "a{queue}a", True),
        ("aa", "a{queue}a", False),
    ],
)
def test_a_template_made_a_name_if_some_queue_name_gives_it(queue: str, template: str, made: bool) -> None:
    assert bool(origin_of(queue, template)) is made
