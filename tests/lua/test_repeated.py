"""Settles that are repeated after a lost reply: what an earlier try did, did not do, and what nobody knows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rqttl.protocol import commands
from rqttl.protocol.commands import Command
from tests.lua.states import NOW, Lab, place, plain, token

ME = place(-1)
LATER = 9
Settle = Callable[[Lab, int], Command]


def receive(lab: Lab, now: int) -> Command:
    return commands.receive(lab.known(), 0, 1, finished=[ME, token(5)], now=now)


SETTLES: dict[str, Settle] = {
    "ack": lambda lab, now: commands.ack(lab.keyspace, "orders", [ME, token(5)], now=now),
    "nack": lambda lab, now: commands.nack(lab.known(), [ME, token(5)], now=now),
    "reject": lambda lab, now: commands.reject(lab.known(), [ME, token(5)], now=now),
    "receive": receive,
}


def outcome(lab: Lab, how: str, now: int) -> str:
    """Repeat a settle. Returns its outcome; the repeat changed nothing."""
    before = lab.snapshot()
    reply = lab.run(SETTLES[how](lab, now).as_replay())
    assert lab.snapshot() == before
    unknown, lost = (reply[9], reply[6]) if how == "receive" else reply[2:]
    assert not (unknown and lost)
    return "unknown" if unknown else "lost" if lost else "done"


@pytest.mark.parametrize("how", SETTLES)
def test_a_message_that_is_gone_while_the_lease_would_hold_was_settled_by_the_earlier_try(lab: Lab, how: str) -> None:
    lab.seed()

    assert outcome(lab, how, NOW + 4) == "done"


@pytest.mark.parametrize("how", SETTLES)
def test_of_a_message_that_is_gone_after_the_lease_nobody_knows_the_end(lab: Lab, how: str) -> None:
    """It may have expired, or another consumer has handled it."""
    lab.seed()

    assert outcome(lab, how, NOW + 5) == "unknown"


@pytest.mark.parametrize("how", SETTLES)
@pytest.mark.parametrize("now", [NOW + 4, NOW + LATER])
def test_a_message_of_another_consumer_is_lost(lab: Lab, how: str, now: int) -> None:
    lab.seed(log=plain(ME), leases={ME: token(99)})

    assert outcome(lab, how, now) == "lost"


@pytest.mark.parametrize("how, told", [("ack", "lost"), ("nack", "unknown"), ("reject", "lost"), ("receive", "lost")])
@pytest.mark.parametrize("away", [{}, {"delayed": {ME: NOW + 99}}])
def test_a_message_that_is_back_after_the_lease_was_not_settled_but_perhaps_given_back(
    lab: Lab, how: str, told: str, away: dict[str, Any]
) -> None:
    lab.seed(log=plain(ME), **(away or {"requeued": {ME: NOW - 1}}))

    assert outcome(lab, how, NOW + LATER) == told


@pytest.mark.parametrize("how", ["ack", "reject", "receive"])
def test_a_message_whose_lease_has_just_ended_was_not_settled(lab: Lab, how: str) -> None:
    lab.seed(log=plain(ME), leases={ME: token(5)}, meta={"due_at": ""})

    assert outcome(lab, how, NOW + 5) == "lost"
