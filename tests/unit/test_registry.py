"""A pass of the reaper over the registry, step by step, without Redis: what it reads and writes, and in which order."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from redis.exceptions import ConnectionError, NoPermissionError, ResponseError

from rqttl import Policy
from rqttl.flows.steps import GetConfig, GetPolicies, Read, Register, Write
from rqttl.policies import PolicySet
from rqttl.policies.policy_set import UNKNOWN
from rqttl.reaper.registry import FIELDS, STALE, Record, Registry
from tests.unit.test_flows import KEYSPACE, OK, Drive, known

THERE = [b"v1", b"7", b"", b"", b"", b"", b"0"]
VERSION = Read([("HGET", KEYSPACE.policies, "version")])
DAMAGED = PolicySet.from_fields({b"version": b"many"})
GONE: list[bytes | None] = [None] * len(FIELDS)


def questions(*names: str, fields: tuple[str, ...] = FIELDS) -> Read:
    return Read([("HMGET", KEYSPACE.key(name, "meta"), *fields) for name in names], keep_errors=True)


def record(name: str) -> tuple[str, ...]:
    return ("HMGET", KEYSPACE.key(name, "meta"), "version", "options", "declared", "policies")


def begin(registry: Registry, *members: bytes) -> list[str]:
    """Begin a pass over a registry with these members. Returns the names to look at."""
    drive = Drive(registry.names())
    assert drive.step == Read([("SSCAN", KEYSPACE.registry, 0, "COUNT", 1000)])
    drive.answer([[b"0", list(members)]])
    names: list[str] = drive.result
    return names


def look(registry: Registry, names: list[str], *records: Any) -> dict[str, Record]:
    drive = Drive(registry.look(names))
    assert drive.step == questions(*names)
    if drive.answer(list(records)) is not None:
        assert drive.step == VERSION
        assert drive.answer([None]) == GetPolicies(0)
        drive.answer(PolicySet())
    found: dict[str, Record] = drive.result
    return found


def test_a_pass_reads_the_names_and_then_the_records() -> None:
    registry = Registry(KEYSPACE)

    names = begin(registry, b"b", b"a")

    assert names == ["a", "b"]
    assert look(registry, names, THERE, GONE) == {"a": Record(7, tuple(THERE))}


def test_a_member_that_is_no_name_is_taken_out_before_anything_is_read() -> None:
    drive = Drive(Registry(KEYSPACE).names())

    assert drive.answer([[b"0", [b"a", b"no name"]]]) == Write(
        [("SREM", KEYSPACE.registry, b"no name")], keep_errors=True
    )
    drive.answer([1])
    assert drive.result == ["a"]


def test_a_name_without_a_queue_is_looked_at_again_and_then_taken_out() -> None:
    clock = [0.0]
    registry = Registry(KEYSPACE, lambda: clock[0])
    for moment in (0.0, STALE - 1):
        clock[0] = moment
        look(registry, begin(registry, b"ghost"), GONE)
        assert list(registry.tidy()) == []

    clock[0] = STALE
    look(registry, begin(registry, b"ghost"), GONE)
    drive = Drive(registry.tidy())

    assert drive.step == questions("ghost", fields=("version",))
    assert drive.answer([[None]]) == Write([("SREM", KEYSPACE.registry, "ghost")])
    assert drive.answer([1]) is None


def test_a_queue_that_was_made_after_its_name_was_taken_out_is_registered_again() -> None:
    clock = [0.0]
    registry = Registry(KEYSPACE, lambda: clock[0])
    look(registry, begin(registry, b"late"), GONE)
    assert list(registry.tidy()) == []
    clock[0] = STALE
    look(registry, begin(registry, b"late"), GONE)
    drive = Drive(registry.tidy())
    drive.answer([[None]])
    drive.answer([1])

    names = begin(registry)
    look(registry, names, THERE)

    assert names == ["late"]
    assert Drive(registry.tidy()).step == Register("late")


def test_a_queue_that_was_created_while_another_client_took_out_its_name_is_registered_again() -> None:
    registry = Registry(KEYSPACE)
    look(registry, begin(registry, b"brief"), THERE)
    assert list(registry.tidy()) == []

    names = begin(registry)
    look(registry, names, THERE)

    assert names == ["brief"]
    assert Drive(registry.tidy()).step == Register("brief")


def test_targets_that_exist_and_are_not_listed_are_registered_in_order() -> None:
    drive = Drive(Registry(KEYSPACE).register_targets(["orders", "b"]))

    assert drive.step == GetConfig("b")
    assert drive.answer(known(dead_letter="b")) == GetConfig("orders")
    assert drive.answer(known(dead_letter="x", dead_letter_expired="y")) == questions("x", "y", fields=("version",))
    assert drive.answer([[b"v1"], [None]]) == Register("x")
    assert drive.answer(1) == Read([record("x"), *VERSION.calls])
    assert drive.answer([[b"v1", b"{}", b"{}", b"0"], None]) == GetPolicies(0)
    drive.answer(PolicySet())
    assert drive.result == ["x"]


def test_a_look_reconciles_the_queues_of_another_version_of_the_policies(caplog: pytest.LogCaptureFixture) -> None:
    drive = Drive(Registry(KEYSPACE).look(["a", "b"]))
    drive.answer([[*THERE[:-1], b"4"], [*THERE[:-1], b"5"]])
    assert drive.step == VERSION

    policies = PolicySet(5, (Policy.read("p", "#", {"max_deliveries": 3}),))
    assert drive.answer([b"5"]) == GetPolicies(5)
    assert drive.answer(policies) == Read([record("a"), *VERSION.calls])
    assert drive.answer([[b"v1", b"{}", b"{}", b"4"], b"5"]) == GetPolicies(5)
    command = drive.answer(policies).commands[0]
    assert (command.script.name, command.word("was"), command.word("policies")) == ("update", 4, 5)
    with caplog.at_level(logging.INFO, "rqttl.reaper"):
        while drive.step is not None:
            drive.answer([[OK, b"", 1]])

    assert list(drive.result) == ["a", "b"]
    assert caplog.messages == ["queue a: its policies give it other options: max_deliveries"]


def test_damaged_policies_are_logged_and_the_look_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    drive = Drive(Registry(KEYSPACE).look(["a"]))
    drive.answer([THERE])

    assert drive.answer([b"many"]) == GetPolicies(UNKNOWN)
    assert drive.answer(DAMAGED) == Read([record("a"), *VERSION.calls])
    assert drive.answer([[b"v1", b"{}", b"{}", b"0"], b"many"]) == GetPolicies(UNKNOWN)

    with caplog.at_level(logging.WARNING, "rqttl.reaper"):
        assert drive.answer(DAMAGED) is None

    assert list(drive.result) == ["a"]
    assert caplog.messages[0].startswith("options in force do not follow the policies: ")


def test_a_refusal_is_logged_and_the_pass_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    flow = Registry(KEYSPACE).register_targets(["a", "b"])
    assert next(flow) == GetConfig("a")

    with caplog.at_level(logging.WARNING, "rqttl.reaper"):
        assert flow.throw(NoPermissionError("NOPERM")) == GetConfig("b")

    assert "options of queues cannot be read" in caplog.messages[0]


def test_an_outage_ends_the_pass() -> None:
    flow = Registry(KEYSPACE).register_targets(["a", "b"])
    next(flow)

    with pytest.raises(ConnectionError):
        flow.throw(ConnectionError("gone"))


@pytest.mark.parametrize("error, raised", [(ResponseError("WRONGTYPE"), False), (ConnectionError("gone"), True)])
def test_a_record_that_cannot_be_read_is_a_queue_and_an_outage_is_none(error: Exception, raised: bool) -> None:
    drive = Drive(Registry(KEYSPACE).records(["a"]))

    if raised:
        with pytest.raises(ConnectionError):
            drive.answer([error])
    else:
        drive.answer([error])
        assert list(drive.result) == ["a"]
