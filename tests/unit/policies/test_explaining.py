"""The explanation: each option in force with its source, and all that lost against it, with the reason."""

from __future__ import annotations

import pytest

from rqttl import Contender, Explained, Policy, QueueOptions
from rqttl.options import OPTIONS
from rqttl.policies import PolicySet
from tests.unit.policies.sets import policy


def explained(queue: str, *policies: Policy, **declared: object) -> dict[str, Explained]:
    """The explanation of the options that a policy or a declaration names."""
    found = PolicySet(1, policies).resolve(QueueOptions.read(queue, declared)).explained
    assert list(found) == list(OPTIONS)
    return {name: one for name, one in found.items() if one != Explained(OPTIONS[name].default, "default")}


def test_without_policies_an_option_is_declared_or_a_default() -> None:
    assert explained("q", lease="5s") == {"lease": Explained(5_000, "declared")}


def test_each_option_names_the_policy_that_it_comes_from() -> None:
    policies = policy("p", "#", lease="1s", never_expire=False), policy("o", "#", True, max_length=5)

    assert explained("q", *policies) == {
        "lease": Explained(1_000, "policy p"),
        "never_expire": Explained(False, "policy p"),
        "max_length": Explained(5, "operator policy o"),
    }


def test_a_policy_names_the_one_that_came_first_and_the_reason() -> None:
    policies = (
        policy("win", "orders.#", priority=2, max_length=1),
        policy("low", "orders.#", priority=-1, max_length=2),
        policy("zebra", "orders.#", priority=2, max_length=3),
        policy("wide", "#", priority=2, max_length=4),
    )

    assert explained("orders.eu", *policies)["max_length"] == Explained(
        1,
        "policy win",
        (
            Contender(3, "policy zebra", "overridden by policy win: first by name"),
            Contender(4, "policy wide", "overridden by policy win: more specific pattern"),
            Contender(2, "policy low", "overridden by policy win: higher priority, 2 against -1"),
        ),
    )


def test_of_limits_the_larger_ones_lost() -> None:
    policies = policy("p", "#", max_length=5, lease="9s"), policy("o", "#", True, max_length=7, lease="9s")

    assert explained("q", *policies, max_length=6, lease="20s") == {
        "max_length": Explained(
            5,
            "policy p",
            (
                Contender(6, "declared", "overridden by policy p (lower)"),
                Contender(7, "operator policy o", "overridden by policy p (lower)"),
            ),
        ),
        "lease": Explained(
            9_000,
            "policy p",
            (
                Contender(20_000, "declared", "overridden by policy p (lower)"),
                Contender(9_000, "operator policy o", "overridden by policy p (equal)"),
            ),
        ),
    }


def test_of_other_options_the_rule_is_named() -> None:
    policies = policy("p", "#", overflow="reject-publish"), policy("o", "q", True, dead_letter="x")

    assert explained("q", *policies, overflow="reject-publish-dlx", dead_letter="d") == {
        "overflow": Explained(
            "reject-publish-dlx",
            "declared",
            (Contender("reject-publish", "policy p", "overridden by the declaration"),),
        ),
        "dead_letter": Explained(
            "x",
            "operator policy o",
            (Contender("d", "declared", "overridden by operator policy o: an operator policy beats all others"),),
        ),
    }


def test_none_and_all_that_it_stopped_are_named() -> None:
    policies = policy("stop", "q", max_length=None), policy("all", "#", max_length=5)

    assert explained("q", *policies) == {
        "max_length": Explained(
            None,
            "default",
            (
                Contender(None, "policy stop", "none: it and all policies after it give no value"),
                Contender(5, "policy all", "overridden by policy stop: more specific pattern"),
            ),
        ),
    }


def test_a_floor_that_the_ceiling_cut_is_noted() -> None:
    reason = "10s is more than max_ttl, 5s (operator policy o): the smaller limit counts"

    assert explained("q", policy("p", "#", min_ttl="10s"), policy("o", "#", True, max_ttl="5s")) == {
        "min_ttl": Explained(
            5_000, "operator policy o", (Contender(10_000, "policy p", reason),), f"policy p: {reason}"
        ),
        "max_ttl": Explained(5_000, "operator policy o"),
    }


def test_a_rule_for_pauses_without_a_delay_is_noted() -> None:
    reason = "it does nothing without redelivery_delay"

    assert explained("q", policy("p", "#", redelivery_jitter=0.5)) == {
        "redelivery_jitter": Explained(0, "default", (Contender(0.5, "policy p", reason),), f"policy p: {reason}"),
    }


@pytest.mark.parametrize(
    "queue,target,reason",
    [
        ("dead", "dead", "'dead' names the queue itself"),
        ("a", "{queue}", "'{queue}' names the queue itself"),
        (
            "EXP.a",
            "EXP.{queue}",
            "the template 'EXP.{queue}' of policy p made the name 'EXP.a': no template of any policy acts on it",
        ),
        ("{t}.a", "EXP.{queue}", "'EXP.{t}.a' is no valid queue name"),
    ],
)
def test_a_target_that_the_queue_cannot_have_is_noted(queue: str, target: str, reason: str) -> None:
    found = explained(queue, policy("p", "#", dead_letter=target), policy("r", "#", dead_letter="other"))

    assert found["dead_letter"] == Explained(
        None,
        "default",
        (
            Contender(target, "policy p", reason),
            Contender("other", "policy r", "overridden by policy p: first by name"),
        ),
        f"policy p: {reason}",
    )


def test_an_explanation_is_made_at_its_first_use(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def explain(*arguments: object) -> dict[str, Explained]:
        asked.append(arguments)
        return {}

    monkeypatch.setattr("rqttl.policies.merging.explain", explain)
    found = PolicySet(1, (policy("p", "#", lease="1s"),)).resolve(QueueOptions("q", {}))

    assert (found.options.lease, asked) == (1_000, [])
    assert (found.explained, len(asked)) == ({}, 1)
