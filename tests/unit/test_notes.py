"""Work that a script asks for: the flow does it, and decides about its errors."""

from __future__ import annotations

import logging

import pytest
from redis.exceptions import ConnectionError, ResponseError

from rqttl import QueueNotFound, ScriptsForgotten, flows
from rqttl.flows.steps import GetConfig, GetPolicies, Read, Register, Unregister
from rqttl.policies import PolicySet
from rqttl.policies.policy_set import UNKNOWN
from tests.unit.test_flows import KEYSPACE, OK, Drive, known

NOTES = [b"created", b"dead", b"deleted", b"old", b"sweep", b"full"]


def _record(queue: str) -> tuple[str, ...]:
    return ("HMGET", KEYSPACE.key(queue, "meta"), "version", "options", "declared", "policies")


def test_each_note_is_one_piece_of_work() -> None:
    drive = Drive(flows.queues.follow(KEYSPACE, NOTES))

    assert drive.step == Register("dead")
    assert drive.answer(1) == Read([_record("dead"), ("HGET", KEYSPACE.policies, "version")])
    assert drive.answer([[b"v", b"{}", b"{}", b"0"], b"0"]) == GetPolicies(0)
    assert drive.answer(PolicySet()) == Unregister("old")
    assert drive.answer(1) == GetConfig("full", for_sweep=True)
    assert drive.answer(known()).script.name == "sweep"
    assert drive.answer([OK, b"", 1000, b"", 0, 0, 0, 0, 0, 0, b""]) is None


@pytest.mark.parametrize("error", [ResponseError("OOM"), ConnectionError("gone"), ScriptsForgotten("sweep")])
def test_an_error_of_redis_is_logged_and_the_other_notes_are_followed(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    flow = flows.queues.follow(KEYSPACE, NOTES)
    assert next(flow) == Register("dead")

    with caplog.at_level(logging.WARNING, "rqttl"):
        assert flow.throw(error) == Unregister("old")

    assert caplog.messages == [f"queue dead: created was not followed up, a reaper will: {error}"]


def test_a_queue_that_was_deleted_meanwhile_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    flow = flows.queues.follow(KEYSPACE, [b"sweep", b"full", b"created", b"dead"])
    next(flow)

    assert flow.throw(QueueNotFound("full")) == Register("dead")
    assert caplog.messages == []


def test_an_error_of_the_code_is_not_hidden() -> None:
    flow = flows.queues.follow(KEYSPACE, NOTES)
    next(flow)

    with pytest.raises(TypeError):
        flow.throw(TypeError())


def test_damaged_policies_change_no_queue_of_a_dead_letter_and_the_other_notes_are_followed() -> None:
    drive = Drive(flows.queues.follow(KEYSPACE, NOTES))
    drive.answer(1)

    assert drive.answer([[b"v", b"{}", b"{}", b"0"], b"many"]) == GetPolicies(UNKNOWN)
    assert drive.answer(PolicySet.from_fields({b"version": b"many"})) == Unregister("old")
