"""A pass of the reaper over the registry, step by step, without Redis: what it reads and writes, and in which order."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from redis.exceptions import ConnectionError, NoPermissionError, ResponseError

from rqttl.flows import GetConfig, Read, Register, Write
from rqttl.reaper.registry import FIELDS, STALE, Record, Registry
from tests.unit.test_flows import KEYSPACE, Drive, known

THERE = [b"v1", b"7", b"", b"", b"", b""]
GONE: list[bytes | None] = [None] * len(FIELDS)


def questions(*names: str, fields: tuple[str, ...] = FIELDS) -> Read:
    return Read([("HMGET", KEYSPACE.key(name, "meta"), *fields) for name in names], keep_errors=True)


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
    drive.answer(list(records))
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


def test_targets_that_exist_and_are_not_listed_are_registered_in_order() -> None:
    drive = Drive(Registry(KEYSPACE).enter_targets(["orders", "b"]))

    assert drive.step == GetConfig("b")
    assert drive.answer(known(dead_letter="b")) == GetConfig("orders")
    assert drive.answer(known(dead_letter="x", dead_letter_expired="y")) == questions("x", "y", fields=("version",))
    assert drive.answer([[b"v1"], [None]]) == Register("x")
    drive.answer(1)
    assert drive.result == ["x"]


def test_a_refusal_is_logged_and_the_pass_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    flow = Registry(KEYSPACE).enter_targets(["a", "b"])
    assert next(flow) == GetConfig("a")

    with caplog.at_level(logging.WARNING, "rqttl.reaper"):
        assert flow.throw(NoPermissionError("NOPERM")) == GetConfig("b")

    assert "options of queues cannot be read" in caplog.messages[0]


def test_an_outage_ends_the_pass() -> None:
    flow = Registry(KEYSPACE).enter_targets(["a", "b"])
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
