"""A set of policies: its fields in Redis, its versions, and the order of its policies."""

from __future__ import annotations

import pytest

from rqttl import DataDamaged, Policy, QueueOptions
from rqttl.policies import PolicySet
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

    assert first.with_policy(LONG) == PolicySet(8, (LONG, SHORT, LIMIT))
    assert first.with_policy(newer) == PolicySet(8, (newer, LIMIT))
    assert first.without("short") == PolicySet(8, (LIMIT,))
    assert first.without("short", operator=True) == PolicySet(8, (SHORT,))
    assert first.without("long") is first
    assert first == PolicySet(7, (LIMIT, SHORT))


@pytest.mark.spec("POL-07", "POL-08", "OPP-01")
def test_matching_policies_come_by_priority_then_pattern_then_name() -> None:
    low = policy("a", "orders.eu", priority=-1, lease="1s")
    regex = Policy.read("c", "orders", {"lease": "1s"}, syntax="regex")
    longer = Policy.read("z", "^orders", {"lease": "1s"}, syntax="regex")
    twins = [policy(name, "orders.*", lease="1s") for name in ("y", "b", "x")]
    high = policy("zz", "#", priority=1, lease="1s")
    other = policy("d", "events.#", priority=9, lease="1s")
    found = PolicySet(1, (low, regex, longer, *twins, high, other, LIMIT, policy("a", "orders.eu", True, lease="1s")))

    assert [one.name for one in found.matching("orders.eu")] == ["zz", "b", "x", "y", "z", "c", "a"]
    assert [one.name for one in found.matching("orders.eu", operator=True)] == ["a", "short"]


def test_a_queue_without_a_policy_keeps_the_object_of_its_declared_options() -> None:
    declared = QueueOptions.read("events", {"lease": "5s"})

    assert PolicySet().resolve(declared).options is declared
    assert PolicySet(1, (SHORT,)).resolve(declared).options is declared
    assert PolicySet(1, (policy("p", "#", lease="9s"),)).resolve(declared).options is declared
