"""The merge: per option, the order of policies first, then declared options and operator policies.

RabbitMQ applies one policy to a queue and leaves the order of equal priorities open (weaknesses W17 and W18 of the
behaviour specification). Its guides contradict each other about arguments and policies (X3). Each of these has one
answer here.
"""

from __future__ import annotations

import pytest

from rqttl import Policy, QueueOptions
from rqttl.options import OPTIONS
from rqttl.policies import PolicySet
from tests.unit.policies.sets import in_force, policy

LIMITS = [name for name, option in OPTIONS.items() if option.kind in ("duration", "count", "size")]
RULES = {
    "never_expire": (True, False),
    "overflow": ("reject-publish", "reject-publish-dlx"),
    "on_expire": ("keep", "dead-letter"),
    "dead_letter": ("d", "p"),
    "dead_letter_expired": ("d", ""),
    "dead_letter_maxlen": ("d", "p"),
    "dead_letter_rejected": ("", "p"),
    "dead_letter_delivery_limit": ("d", "p"),
    "redelivery_multiplier": (3, 2),
    "redelivery_jitter": (0.25, 0.5),
}
#: An option that each of these needs.
DELAY = {"redelivery_delay": "1ms"}


def with_delay(name: str, value: object) -> dict[str, object]:
    return {**(DELAY if name.startswith("redelivery") else {}), name: value}


def value(name: str, number: int) -> object:
    return f"{number}ms" if OPTIONS[name].kind == "duration" else number


def merged(name: str, *, declared: object = None, user: object = None, operator: object = None) -> object:
    """The value in force of an option that some of the three kinds set."""
    policies = []
    if user is not None:
        policies.append(Policy.read("u", "#", with_delay(name, user)))
    if operator is not None:
        policies.append(Policy.read("o", "#", with_delay(name, operator), operator=True))
    options = QueueOptions.read("q", {} if declared is None else with_delay(name, declared))
    return PolicySet(1, tuple(policies)).resolve(options).options[name]


def test_every_option_is_a_limit_or_has_a_rule() -> None:
    assert sorted([*LIMITS, *RULES]) == sorted(OPTIONS)


@pytest.mark.spec("POL-14", "OPP-03", "OPP-04", "OPP-06")
@pytest.mark.parametrize("name", LIMITS)
def test_of_limits_and_durations_the_smallest_counts(name: str) -> None:
    low, middle, high = (value(name, number) for number in (2, 3, 4))

    for declared, user, operator in [(low, middle, high), (high, low, middle), (middle, high, low)]:
        assert merged(name, declared=declared, user=user, operator=operator) == 2
    for kinds in (
        {"declared": low, "user": high},
        {"user": low, "operator": high},
        {"declared": high, "operator": low},
    ):
        assert merged(name, **kinds) == 2
    for kind in ("declared", "user", "operator"):
        assert merged(name, **{kind: high}) == 4


@pytest.mark.spec("POL-14", "OPP-05", "OPP-06")
@pytest.mark.parametrize("name", RULES)
def test_of_other_options_the_operator_beats_the_declaration_and_that_beats_the_policy(name: str) -> None:
    one, other = RULES[name]
    default = OPTIONS[name].default

    assert merged(name, declared=one, user=other) == (other if one == default else one)
    assert merged(name, declared=one, operator=other) == other
    assert merged(name, user=one, operator=other) == other
    assert merged(name, declared=one, user=one, operator=other) == other
    assert [merged(name, declared=one), merged(name, user=one), merged(name, operator=one)] == [one, one, one]


@pytest.mark.spec("OPP-02", "OPP-08")
@pytest.mark.parametrize("name", OPTIONS)
def test_an_operator_policy_may_hold_any_option(name: str) -> None:
    given = value(name, 5) if name in LIMITS else RULES[name][0]

    assert merged(name, operator=given) == OPTIONS[name].read(name, given)


@pytest.mark.spec("POL-07", "POL-09", "W17")
def test_policies_are_merged_option_by_option() -> None:
    policies = (
        policy("first", "orders.*", priority=5, message_ttl="1m", max_length=9),
        policy("second", "orders.#", priority=1, message_ttl="1s", lease="5s"),
        policy("third", "#", message_ttl="2s", lease="2s", dead_letter="dead"),
    )

    assert in_force("orders.eu", *policies) == {
        "message_ttl": 60_000,
        "max_length": 9,
        "lease": 5_000,
        "dead_letter": "dead",
    }
    assert in_force("orders.eu.de", *policies) == {"message_ttl": 1_000, "lease": 5_000, "dead_letter": "dead"}
    assert in_force("events", *policies) == {"message_ttl": 2_000, "lease": 2_000, "dead_letter": "dead"}


@pytest.mark.spec("POL-08", "W18")
def test_of_equal_priorities_and_patterns_the_first_name_decides() -> None:
    policies = policy("b", "#", max_length=2), policy("a", "#", max_length=9), policy("c", "#", max_length=1)

    assert in_force("q", *policies) == in_force("q", *reversed(policies)) == {"max_length": 9}


@pytest.mark.spec("POL-10", "W20", "OPP-09")
def test_one_option_without_effect_switches_off_no_other() -> None:
    policies = policy("p", "#", redelivery_jitter=0.5, max_length=5, dead_letter="q")

    assert in_force("q", policies) == {"max_length": 5}


@pytest.mark.spec("A-079", "A-080")
def test_an_option_that_the_first_policy_lacks_comes_from_the_next() -> None:
    vague = policy("x", "foo.*", max_length=1)
    exact = policy("y", "foo.0.#", max_length=2, lease="9s")

    assert in_force("foo.0", vague, exact) == {"max_length": 1, "lease": 9_000}
    assert in_force("foo.0.1", vague, exact) == {"max_length": 2, "lease": 9_000}
    assert in_force("foo.x", vague, exact) == {"max_length": 1}


@pytest.mark.spec("A-081")
def test_a_default_that_is_written_stops_inheritance() -> None:
    parent = policy("p", "#", lease="5s", overflow="reject-publish", dead_letter_expired="exp", never_expire=True)
    child = policy("c", "a.#", lease="30s", overflow="drop-head", dead_letter_expired="", never_expire=False)

    assert in_force("a.b", parent, child) == {"dead_letter_expired": ""}
    assert in_force("b", parent, child) == {
        "lease": 5_000,
        "overflow": "reject-publish",
        "dead_letter_expired": "exp",
        "never_expire": True,
    }


@pytest.mark.spec("A-081")
@pytest.mark.parametrize("none", [None, "none"])
def test_none_stops_inheritance_of_one_option_within_one_kind(none: object) -> None:
    parent, child = policy("p", "#", max_length=5, lease="5s"), policy("c", "a.#", max_length=none)

    assert in_force("a", parent, child) == {"lease": 5_000}
    assert in_force("a", parent, child, max_length=9) == {"max_length": 9, "lease": 5_000}
    assert in_force("a", parent, child, policy("o", "#", True, max_length=7)) == {"max_length": 7, "lease": 5_000}
    assert in_force("a", parent, policy("o", "#", True, max_length=none)) == {"max_length": 5, "lease": 5_000}


def test_a_declared_value_that_equals_the_default_counts_as_not_declared() -> None:
    user = policy("p", "#", overflow="reject-publish", lease="1h")

    assert in_force("q", user, overflow="drop-head", lease="30s") == {
        "overflow": "reject-publish",
        "lease": 3_600_000,
    }


@pytest.mark.spec("OPP-07")
def test_without_policies_of_either_kind_the_declared_options_are_in_force() -> None:
    assert in_force("q") == {}
    assert in_force("q", policy("p", "other", lease="1s"), policy("o", "other.#", True, lease="1s"), max_length=5) == {
        "max_length": 5,
    }
