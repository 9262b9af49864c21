"""Exchanges without a server: batches of messages of a user who may make no transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from redis.exceptions import NoPermissionError, NoScriptError, ReadOnlyError

from rqttl.errors import OutcomeUnknown
from rqttl.events import Events
from rqttl.protocol import commands
from rqttl.protocol.codec import Envelope
from rqttl.protocol.commands import Command
from rqttl.protocol.keys import Keyspace
from rqttl.store.exchanges import Exchanges, NotSent
from tests.unit.test_commands import known

DENIED, READONLY = NoPermissionError("this user has no permissions to run multi"), ReadOnlyError("a replica")
STORED: Any = [b"ok", b""]


def messages(window: int = 0) -> list[Command]:
    packed = [(Envelope(id=b"a"), b"x")] if window else [(Envelope(), b"x")]
    return [commands.enqueue(known(), packed, window=window) for _ in range(3)]


def carry_out(batch: Sequence[Command], *replies: Any) -> list[Any]:
    """Run a batch whose MULTI is refused, so that each command has a reply of its own."""
    exchange = Exchanges(Keyspace(), Events(), lambda: None, lambda: 0.0)._ordered(batch)
    calls: Any = next(exchange)
    loads = sum(call[0] == "SCRIPT" for call in calls)
    try:
        exchange.send([b"sha"] * loads + [DENIED, *replies, DENIED])
    except StopIteration as done:
        result: list[Any] = done.value
        return result
    raise AssertionError("a second round trip")


def test_a_batch_of_which_a_part_is_stored_has_an_unknown_outcome() -> None:
    with pytest.raises(OutcomeUnknown) as caught:
        carry_out(messages(), STORED, READONLY, READONLY)

    assert (caught.value.queue, caught.value.action) == (known().name, "enqueue")
    assert caught.value.__cause__ is READONLY


def test_a_batch_of_which_nothing_is_stored_is_refused() -> None:
    with pytest.raises(NotSent):
        carry_out(messages(), READONLY, READONLY, READONLY)


def test_a_batch_that_may_be_repeated_has_the_refusal_as_a_reply() -> None:
    assert carry_out(messages(window=5), STORED, READONLY, READONLY) == [STORED, READONLY, READONLY]


def test_a_forgotten_script_is_no_refusal() -> None:
    forgotten = NoScriptError("no matching script")

    assert carry_out(messages(), STORED, forgotten, STORED) == [STORED, forgotten, STORED]
