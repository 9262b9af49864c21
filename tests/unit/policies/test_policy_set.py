"""A set of policies: its fields in Redis, its versions, the merge of each option, targets, and the explanation."""

import pytest

from rqttl import Contender, DataDamaged, Explained, Policy, QueueOptions
from rqttl.options import DECLARED_ONLY, OPTIONS
from rqttl.policies import PolicySet
from rqttl.policies.explanation import explain
from rqttl.policies.policy import origin_of
from tests.unit.policies.sets import policy

SHORT = policy("short", "orders.#", lease="1s")
LONG = policy("long", "#", lease="1m")
LIMIT = policy("short", "#", operator=True, max_length=5)


def fields(*policies: Policy, version: bytes = b"7") -> dict[bytes, bytes]:
    kinds = {False: "policy", True: "operator"}
    return {b"version": version} | {f"{kinds[p.operator]} {p.name}".encode(): p.as_json().encode() for p in policies}


def test_no_fields_are_the_first_version_without_policies() -> None:
    assert PolicySet.from_fields({}) == PolicySet(0, ())


@pytest.mark.parametrize(
    "name,text",
    [
        (b"version", b""),
        (b"version", b"x"),
        (b"version", b"1" * 17),
        (b"version", "٣".encode()),
        (b"policy short", b"{"),
        (b"operator short", b"\xff"),
        (b"policy a b", b"{}"),
        (b"policy", SHORT.as_json().encode()),
        (b"policy a b", SHORT.as_json().encode()),
        (b"policy \xff", SHORT.as_json().encode()),
        (b"policy short", SHORT.as_json().replace("orders.#", "#.orders").encode()),
        (b"policy short", SHORT.as_json().replace('"priority":0', '"priority":"0"').encode()),
    ],
)
def test_a_damaged_field_is_named(name: bytes, text: bytes) -> None:
    with pytest.raises(DataDamaged) as caught:
        PolicySet.from_fields({**fields(LONG), name: text})

    field = name.decode("utf-8", "backslashreplace")
    assert str(caught.value).startswith(f"the field {field!r} of the stored policies cannot be read: ")
    assert caught.value.queue is None


def test_policies_without_a_version_are_damaged() -> None:
    with pytest.raises(DataDamaged, match="'version' of the stored policies cannot be read: expected a whole number"):
        PolicySet.from_fields({b"policy short": SHORT.as_json().encode()})


def test_a_changed_set_is_a_new_version_and_the_old_one_stays() -> None:
    first = PolicySet(7, (SHORT, LIMIT))
    newer = policy("short", "#", max_length=9)

    assert first.changed([LONG]) == PolicySet(8, (LONG, SHORT, LIMIT))
    assert first.changed([newer]) == PolicySet(8, (newer, LIMIT))
    assert first.changed([], [SHORT]) == PolicySet(8, (LIMIT,))
    assert first.changed([], [LIMIT]) == PolicySet(8, (SHORT,))
    assert first.changed([SHORT], [LONG]) is first
    assert first == PolicySet(7, (LIMIT, SHORT))


def test_a_queue_without_a_policy_keeps_the_object_of_its_declared_options() -> None:
    declared = QueueOptions.read("events", {"lease": "5s"})

    assert PolicySet().resolve(declared).options is declared
    assert PolicySet(1, (SHORT,)).resolve(declared).options is declared
    assert PolicySet(1, (policy("p", "#", lease="9s"),)).resolve(declared).options is declared


LIMITS = [name for name, option in OPTIONS.items() if option.kind in ("duration", "count", "size", "rate")]
RULES = {
    "never_expire": (True, False),
    "paused": (True, False),
    "overflow": ("reject-publish", "reject-publish-dlx"),
    "durability": ("replica", "disk"),
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
RATE = {"rate": "1/1s"}


def with_delay(name: str, value: object) -> dict[str, object]:
    return {**(DELAY if name.startswith("redelivery") else RATE if name == "burst" else {}), name: value}


def value(name: str, number: int) -> object:
    kind = OPTIONS[name].kind
    return f"{number}ms" if kind == "duration" else f"{number}/1s" if kind == "rate" else number


def expected(name: str, number: int) -> object:
    return f"{number}/1000" if OPTIONS[name].kind == "rate" else number


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
    assert sorted([*LIMITS, *RULES, *DECLARED_ONLY]) == sorted(OPTIONS)


@pytest.mark.spec("POL-14", "OPP-02", "OPP-03", "OPP-04", "OPP-06", "OPP-08")
@pytest.mark.parametrize("name", LIMITS)
def test_of_limits_and_durations_the_smallest_counts(name: str) -> None:
    low, middle, high = (value(name, number) for number in (2, 3, 4))

    for declared, user, operator in [(low, middle, high), (high, low, middle), (middle, high, low)]:
        assert merged(name, declared=declared, user=user, operator=operator) == expected(name, 2)
    for kinds in (
        {"declared": low, "user": high},
        {"user": low, "operator": high},
        {"declared": high, "operator": low},
    ):
        assert merged(name, **kinds) == expected(name, 2)
    for kind in ("declared", "user", "operator"):
        assert merged(name, **{kind: high}) == expected(name, 4)


@pytest.mark.spec("POL-14", "OPP-02", "OPP-05", "OPP-06", "OPP-08")
@pytest.mark.parametrize("name", RULES)
def test_of_other_options_the_operator_beats_the_declaration_and_that_beats_the_policy(name: str) -> None:
    one, other = RULES[name]
    default = OPTIONS[name].default

    assert merged(name, declared=one, user=other) == (other if one == default else one)
    assert merged(name, declared=one, operator=other) == other
    assert merged(name, user=one, operator=other) == other
    assert merged(name, declared=one, user=one, operator=other) == other
    assert [merged(name, declared=one), merged(name, user=one), merged(name, operator=one)] == [one, one, one]


@pytest.mark.parametrize(
    "queue,template,made",
    [
        ("EXP.orders", "EXP.{queue}", True),
        ("EXP.", "EXP.{queue}", False),
        ("EXP.-a", "EXP.{queue}", False),
        ("a.dead", "{queue}.dead", True),
        ("a.aa", "{queue}.{queue}", False),
        ("x.y.x.y", "{queue}.{queue}", True),
        ("aXaXa", "{queue}X{queue}X{queue}", True),
        ("aba", "a{queue}a", True),
        ("aa", "a{queue}a", False),
    ],
)
def test_a_template_made_a_name_if_some_queue_name_gives_it(queue: str, template: str, made: bool) -> None:
    assert bool(origin_of(queue, template)) is made


def explained(queue: str, *policies: Policy, **declared: object) -> dict[str, Explained]:
    """The explanation of the options that a policy or a declaration names."""
    found = explain(PolicySet(1, policies).resolve(QueueOptions.read(queue, declared)))
    assert list(found) == list(OPTIONS)
    return {name: one for name, one in found.items() if one != Explained(OPTIONS[name].default, "default")}


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
        )
    }


def test_a_floor_that_the_ceiling_cut_is_noted() -> None:
    reason = "10s is more than max_ttl, 5s (operator policy o): the smaller limit counts"

    assert explained("q", policy("p", "#", min_ttl="10s"), policy("o", "#", True, max_ttl="5s")) == {
        "min_ttl": Explained(
            5_000, "operator policy o", (Contender(10_000, "policy p", reason),), f"policy p: {reason}"
        ),
        "max_ttl": Explained(5_000, "operator policy o"),
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
        ("{t}.a", "EXP.{queue}", "'EXP.{t}.a' is not a valid queue name"),
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
