"""Work that a script asks for: the flow does it, and decides about its errors."""

from __future__ import annotations

import logging

import pytest
from redis.exceptions import ConnectionError, ResponseError

from rqttl import QueueNotFound, ScriptsForgotten, flows
from rqttl.flows import GetConfig, Register, Unregister
from tests.unit.test_flows import OK, Drive, known

NOTES = [b"created", b"dead", b"deleted", b"old", b"sweep", b"full"]


def test_each_note_is_one_piece_of_work() -> None:
    drive = Drive(flows.follow(NOTES))

    assert drive.step == Register("dead")
    assert drive.answer(1) == Unregister("old")
    assert drive.answer(1) == GetConfig("full")
    assert drive.answer(known()).script.name == "sweep"
    assert drive.answer([OK, b"", 1000, b"", 0, 0, 0, 0, 0, 0, b""]) is None


@pytest.mark.parametrize("error", [ResponseError("OOM"), ConnectionError("gone"), ScriptsForgotten("sweep")])
def test_an_error_of_redis_is_logged_and_the_other_notes_are_followed(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    flow = flows.follow(NOTES)
    assert next(flow) == Register("dead")

    with caplog.at_level(logging.WARNING, "rqttl"):
        assert flow.throw(error) == Unregister("old")

    assert caplog.messages == [f"queue dead: created was not followed up, a reaper will: {error}"]


def test_a_queue_that_was_deleted_meanwhile_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    flow = flows.follow([b"sweep", b"full", b"created", b"dead"])
    next(flow)

    assert flow.throw(QueueNotFound("full")) == Register("dead")
    assert caplog.messages == []


def test_an_error_of_the_code_is_not_hidden() -> None:
    flow = flows.follow(NOTES)
    next(flow)

    with pytest.raises(TypeError):
        flow.throw(TypeError())
