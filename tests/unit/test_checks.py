"""Checks of the doctor are flows: whoever answers their steps performs them, with Redis or without."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from redis.exceptions import ConnectionError, NoPermissionError, ResponseError

from rqttl import flows
from rqttl.doctor import checkup, rights, server
from rqttl.flows.steps import Flow, Read, Rehearse, Step, Write
from rqttl.protocol import scripts
from rqttl.protocol.commands import Command
from tests.unit.test_flows import KEYSPACE

T = TypeVar("T")
DENIED = NoPermissionError("this user has no permissions")


def perform(flow: Flow[T], answer: Callable[[Step], Any]) -> T:
    """Perform a flow with these answers. An answer that is an error is thrown into the flow."""
    try:
        step = next(flow)
        while True:
            reply = answer(step)
            step = flow.throw(reply) if isinstance(reply, Exception) else flow.send(reply)
    except StopIteration as done:
        result: T = done.value
        return result


@pytest.mark.parametrize("error, level", [(DENIED, "warning"), (ResponseError("ERR broken"), "problem")])
def test_a_check_that_redis_refuses_is_a_finding(error: Exception, level: str) -> None:
    findings = perform(checkup.guarded("clock", server.clock()), lambda _: error)

    assert [(one.check, one.level, one.result) for one in findings] == [("clock", level, f"cannot be checked: {error}")]


def test_an_outage_is_no_finding() -> None:
    with pytest.raises(ConnectionError):
        perform(checkup.guarded("clock", server.clock()), lambda _: ConnectionError("gone"))


def facts(step: Step) -> Any:
    """Answers of a server that shows no setting but `save`."""
    assert isinstance(step, Read | Write)
    answers: dict[Any, Any] = {"INFO": b"role:master\r\n", "TIME": [b"7", b"500000"]}
    return [answers.get(call[0]) or ([b"save", b"900 1"] if call[2] == "save" else DENIED) for call in step.calls]


def test_the_server_is_asked_once_and_hidden_settings_are_told_when_they_are_needed() -> None:
    info = perform(server.read(), facts)

    assert (info.text("role"), info.now, info.setting("save"), info.hidden) == ("master", 7.5, "900 1", [])
    assert info.setting("timeout") is None
    assert (info.hidden, info.why_hidden) == (["timeout"], str(DENIED))


def may(*denied: str) -> Callable[[Step], Any]:
    """Answers for a user who may do all but these commands."""

    def answer(step: Step) -> Any:
        if isinstance(step, Rehearse):
            return [DENIED if call[0] in denied else None for call in step.calls]
        assert isinstance(step, Write)
        return [b"me" if call[0] == "ACL" else 0 for call in step.calls]

    return answer


def test_rights_are_asked_for_in_one_rehearsal() -> None:
    (finding,) = perform(rights.rights(KEYSPACE, "orders"), may())

    assert (finding.level, finding.result) == ("ok", "me has all rights that rqttl needs")


def test_a_channel_that_is_denied_is_a_part_of_the_rehearsal() -> None:
    (finding,) = perform(rights.rights(KEYSPACE, "orders"), may("SUBSCRIBE"))

    assert "may not listen" in finding.result


def test_scripts_are_loaded_one_after_the_other_and_one_is_run() -> None:
    ran = list[str]()

    def answer(step: Step) -> Any:
        if isinstance(step, Command):
            ran.append(step.script.name)
            return [b"ok", b""]
        assert isinstance(step, flows.steps.Write)
        if step.calls[0][0] != "SCRIPT":
            return [0 for _ in step.calls]
        by_text = {scripts.load(name).text: scripts.load(name).sha for name in scripts.names()}
        return [by_text[str(step.calls[0][2])].encode()]

    (finding,) = perform(rights.scripts(KEYSPACE, "orders"), answer)

    assert (finding.level, ran) == ("ok", ["lookup"])
