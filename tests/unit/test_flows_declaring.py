"""The flow of a declaration, step by step, without Redis."""

from __future__ import annotations

import pytest
from redis.exceptions import ResponseError

from rqttl import DataDamaged, QueueOptions, flows
from rqttl.flows.steps import ForgetConfig, GetConfig, GetPolicies, Register
from rqttl.policies import PolicySet
from rqttl.protocol.commands import Options
from tests.unit.test_flows import KEYSPACE, LISTED, NO_POLICIES, OK, REFUSED, VERSION_CALL, Drive


def test_a_queue_is_entered_before_it_is_declared_and_once_more_when_it_was_made() -> None:
    drive = Drive(flows.queues.declare(KEYSPACE, QueueOptions.read("orders", {})))

    assert drive.step == LISTED
    assert drive.answer([0, None]) == Register("orders")
    assert drive.answer(1) == GetPolicies(0)
    drive.answer(NO_POLICIES)
    assert drive.script == "declare"
    assert drive.answer([OK, b"", 1, b"v1", b"0", b""]) == LISTED
    assert drive.answer([0, None]) == Register("orders")
    assert drive.answer(1) == GetPolicies(0)
    assert drive.answer(NO_POLICIES) == GetConfig(
        "orders", newest=Options.plain(QueueOptions("orders", {})).config(KEYSPACE, b"v1")
    )


@pytest.mark.parametrize("made", [0, 1, 2])
def test_a_queue_that_is_listed_is_not_entered_again(made: int) -> None:
    drive = Drive(flows.queues.declare(KEYSPACE, QueueOptions.read("orders", {})))

    assert drive.answer([1, None]) == GetPolicies(0)
    drive.answer(NO_POLICIES)
    assert drive.script == "declare"
    then = drive.answer([OK, b"", made, b"v1", b"0", b""])
    if made:
        assert then == LISTED
        assert drive.answer([1, None]) == GetPolicies(0)
        then = drive.answer(NO_POLICIES)
    assert then == GetConfig("orders", newest=Options.plain(QueueOptions("orders", {})).config(KEYSPACE, b"v1"))


@pytest.mark.parametrize("made", [0, 1])
def test_a_declaration_that_met_other_policies_is_brought_up_to_date(made: int) -> None:
    drive = Drive(flows.queues.declare(KEYSPACE, QueueOptions.read("orders", {})))
    drive.answer([1, b"3"])
    drive.answer(PolicySet(3))
    then = drive.answer([OK, b"", made, b"v1", b"3" if made else b"2", b"" if made else b'{"max_length":9}'])
    if made:  # somebody has changed the policies meanwhile
        assert then == LISTED
        assert drive.answer([1, b"4"]) == GetPolicies(4)
        then = drive.answer(PolicySet(4))

    assert then == ForgetConfig("orders")
    assert drive.answer(None).calls[-1] == VERSION_CALL


def test_an_existing_queue_that_was_not_listed_is_compared_with_the_policies_once_more() -> None:
    drive = Drive(flows.queues.declare(KEYSPACE, QueueOptions.read("orders", {})))
    assert drive.answer([0, b"3"]) == Register("orders")
    drive.answer(1)
    drive.answer(PolicySet(3))

    assert drive.answer([OK, b"", 0, b"v1", b"3", b""]) == LISTED
    drive.answer([1, b"4"])
    assert drive.answer(PolicySet(4)) == ForgetConfig("orders")


def test_an_adoption_of_a_damaged_queue_that_names_newer_policies_ends() -> None:
    drive = Drive(flows.queues.declare(KEYSPACE, QueueOptions.read("orders", {})))
    drive.answer([1, None])
    drive.answer(NO_POLICIES)

    assert drive.answer([REFUSED, b"stale"]).calls[-1] == VERSION_CALL
    drive.answer([[b"v1", b"damage", b"{}", b"7"], None])
    with pytest.raises(DataDamaged):
        drive.answer(NO_POLICIES)


def test_options_in_force_that_differ_from_the_computed_ones_are_remembered_as_redis_has_them() -> None:
    drive = Drive(flows.queues.declare(KEYSPACE, QueueOptions.read("orders", {})))
    drive.answer([1, None])
    drive.answer(NO_POLICIES)

    step = drive.answer([OK, b"", 0, b"v1", b"0", b'{"max_length":9}'])

    assert (step.newest.options.max_length, step.newest.declared.max_length) == (9, None)


def test_a_registry_of_another_type_is_named_before_anything_is_declared() -> None:
    drive = Drive(flows.queues.declare(KEYSPACE, QueueOptions.read("orders", {})))

    with pytest.raises(DataDamaged, match="the key rqttl:queues has another type"):
        drive.answer([ResponseError("WRONGTYPE"), None])
