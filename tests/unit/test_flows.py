"""Flows, driven by hand: every step is seen, every answer is sent, and there is no Redis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rqttl import (
    ContractError,
    QueueOptions,
    flows,
)
from rqttl.flows.steps import GetConfig, HandleNotes, Read
from rqttl.protocol.commands import Command, Options, QueueConfig
from rqttl.protocol.keys import Keyspace
from tests.encoded import enqueue_encoded

KEYSPACE = Keyspace()
VERSION_CALL = ("HGET", "rqttl:policies", "version")
LISTED = Read([("SISMEMBER", KEYSPACE.registry, "orders"), VERSION_CALL])
PLACE = b"1700000000000-100000"
REFUSED, OK = b"refused", b"ok"


def known(version: bytes = b"v1", **options: object) -> QueueConfig:
    return Options.plain(QueueOptions.read_stored("orders", options)).config(KEYSPACE, version)


class Drive:
    """A flow in the hands of a test. `step` is its current step; after its end `result` is its return value."""

    def __init__(self, flow: flows.steps.Flow[Any]) -> None:
        self._flow = flow
        self.step: Any = next(flow)
        self.result: Any = None

    def answer(self, value: Any) -> Any:
        return self._go_on(self._flow.send, value)

    def throw(self, error: Exception) -> Any:
        return self._go_on(self._flow.throw, error)

    def _go_on(self, how: Callable[[Any], Any], value: Any) -> Any:
        try:
            self.step = how(value)
        except StopIteration as done:
            self.step, self.result = None, done.value
        return self.step

    @property
    def script(self) -> str:
        assert type(self.step) is Command
        return self.step.script.name


def stored(*results: bytes) -> list[Any]:
    return [OK, b"", list(results)]


def received(*messages: Any, more: int = 0, due: Any = b"", lost: Any = (), now: int = 1000) -> list[Any]:
    return [OK, b"", now, due, more, b"77" if messages else b"", list(lost), list(messages), [], []]


def test_a_message_takes_one_step_with_known_options_and_its_reply_is_treated_like_any_other() -> None:
    drive = Drive(flows.messages.enqueue_one("orders", b"x", known(b"v1")))
    assert drive.script == "enqueue"
    drive.answer(stored(PLACE))
    assert (drive.step, drive.result.id) == (None, PLACE.decode())

    drive = Drive(flows.messages.enqueue_one("orders", b"x", known(b"v1")))
    first = drive.step
    assert drive.answer([REFUSED, b"retry"]) == first
    assert drive.answer([REFUSED, b"stale"]) == GetConfig("orders", fresh=True)
    assert b"v2" in drive.answer(known(b"v2", message_ttl="1h")).words
    assert drive.answer([OK, [b"a note"], [PLACE]]) == HandleNotes([b"a note"])
    drive.answer(None)
    assert (drive.step, drive.result.expires_at is None) == (None, False)


def test_a_call_that_had_to_make_room_first_is_repeated_as_it_was() -> None:
    drive = Drive(flows.steps.with_config("orders", lambda known: enqueue_encoded(known, [(b"", b"x")])))

    first = drive.answer(known())
    second = drive.answer([REFUSED, b"retry"])
    assert second == first
    drive.answer(stored(PLACE))
    assert drive.result.results == [PLACE]


def test_a_refusal_that_nobody_expects_is_a_bug() -> None:
    drive = Drive(flows.reading.swept_stats("orders"))
    drive.answer(known())

    with pytest.raises(ContractError, match="script stats: unexpected refusal 'surprise'"):
        drive.answer([REFUSED, b"surprise"])
