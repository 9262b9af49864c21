"""Any set of policies gives each queue the options that the plain reference gives it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rqttl import Policy, QueueOptions
from rqttl.options import OPTIONS
from rqttl.policies import PolicySet, Resolution
from rqttl.policies.explanation import explain
from tests.unit.policies import reference, sets


def values(options: QueueOptions) -> dict[str, object]:
    return {name: value for name, value in options.items() if value != OPTIONS[name].default}


def check(found: Resolution, declared: QueueOptions, policies: list[Policy]) -> None:
    expected = reference.in_force(declared.queue, values(declared), policies)  # type: ignore[arg-type]  # no value is None

    assert values(found.options) == expected
    assert {name: one.value for name, one in explain(found).items()} == {**found.options}
    assert found.options.as_json() == QueueOptions(declared.queue, expected).as_json()


@pytest.mark.spec("A-079", "A-080", "A-081", "A-082", "POL-10", "OPP-07", "OPP-09", "W20")
@settings(max_examples=500)
@given(sets.cases(max_size=8))
def test_the_options_in_force_are_those_of_the_reference(case: tuple[QueueOptions, list[Policy]]) -> None:
    declared, policies = case
    unique = list({(policy.name, policy.operator): policy for policy in policies}.values())
    before = [policy.as_json() for policy in unique]
    found = PolicySet(1, tuple(unique))

    check(found.resolve(declared), declared, unique)
    check(found.resolve(declared), declared, unique)  # a look changes nothing

    assert [policy.as_json() for policy in unique] == before


@settings(max_examples=50)
@given(sets.cases(max_size=12), st.lists(st.booleans(), min_size=12, max_size=12))
def test_the_order_of_changes_leaves_no_trace(case: tuple[QueueOptions, list[Policy]], sets_it: list[bool]) -> None:
    declared, policies = case
    found, left = PolicySet(), dict[tuple[str, bool], Policy]()
    for is_set, policy in zip(sets_it, policies, strict=False):
        key = (policy.name, policy.operator)
        if is_set:
            found, left[key] = found.changed([policy]), policy
        else:
            found = found.changed([], [policy])
            left.pop(key, None)

    assert found.policies == PolicySet(0, tuple(left.values())).policies
    check(found.resolve(declared), declared, list(left.values()))


@pytest.mark.spec("POL-07", "POL-08", "OPP-01", "A-076")
@settings(max_examples=150)
@given(st.lists(sets.policies(), min_size=2, max_size=8), sets.queues)
def test_each_kind_comes_in_the_order_of_the_reference(policies: list[Policy], queue: str) -> None:
    found = PolicySet(1, tuple(policies))

    for operator in (False, True):
        kind = [policy for policy in found.policies if policy.operator == operator and reference.matches(policy, queue)]
        places = {policy.name: sum(reference.order(other, policy) < 0 for other in kind) for policy in kind}
        assert [places[policy.name] for policy in found.matching(queue, operator)] == list(range(len(kind)))


@given(sets.policies())
def test_a_policy_survives_storage_and_people(policy: Policy) -> None:
    assert Policy.from_json(policy.name, policy.operator, policy.as_json()) == policy
    assert Policy.read(policy.name, **policy.as_arguments(), operator=policy.operator) == policy
