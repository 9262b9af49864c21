"""The flow of a consumer that waits: when it looks, for how long it listens, and how the wait ends."""

from __future__ import annotations

from typing import Any

import pytest

from rqttl import PoolExhausted, flows
from rqttl.flows.receive import ENDED
from rqttl.flows.steps import GetConfig, Now, WaitForWakeup
from rqttl.protocol.commands import Command
from rqttl.units import MAX_DURATION
from tests.unit.test_flows import Drive, known, received


def wait_loop(wait: int) -> Drive:
    drive = Drive(flows.receive.receive("orders", 1, None, wait, auto_ack=False, consumer="me"))
    assert drive.step == Now()
    drive.answer(100)
    assert drive.step == GetConfig("orders")
    drive.answer(known())
    return drive


def blocks(step: Any) -> int:
    """The ms for which a wait for a message in `orders` blocks."""
    assert isinstance(step, WaitForWakeup)
    assert step.queue == "orders"
    return step.ms


def again(drive: Drive, clock: int) -> None:
    """The next look takes the options of the look before, without a step."""
    assert drive.step == Now()
    assert isinstance(drive.answer(clock), Command)


def test_a_wait_listens_looks_again_and_ends_when_its_time_is_over() -> None:
    drive = wait_loop(700)

    assert "700" in drive.step.words
    assert blocks(drive.answer(received())) == 700
    drive.answer(None)
    again(drive, 500)
    assert "300" in drive.step.words
    assert blocks(drive.answer(received())) == 300
    drive.answer(None)
    again(drive, 801)
    assert drive.answer(received()) is None
    assert drive.result.entries == []


def test_a_long_wait_looks_at_the_queue_once_in_a_period() -> None:
    drive = wait_loop(3_600_000)

    assert blocks(drive.answer(received())) == flows.receive.period("me")


def test_a_wait_without_an_end_asks_no_clock_when_it_is_woken() -> None:
    drive = wait_loop(MAX_DURATION)
    block = str(flows.receive.period("me"))

    for _ in range(3):
        assert block in drive.step.words
        step = drive.answer(received())
        assert isinstance(step, WaitForWakeup)
        assert step.left == MAX_DURATION
        assert isinstance(drive.answer(b"ticket"), Command)
    drive.answer(received())
    assert drive.answer(None) == Now()
    drive.answer(150)
    step = drive.answer(received())
    assert isinstance(step, WaitForWakeup)
    assert step.left == MAX_DURATION - 50
    assert drive.answer(ENDED) == Now()
    drive.answer(150)
    assert drive.step.words[-4:] == ("me", "0", "0", b""), "it waits no longer"
    assert drive.answer(received()) is None
    assert drive.result.entries == []


def test_a_look_that_is_refused_as_outdated_reads_the_options_again() -> None:
    drive = wait_loop(MAX_DURATION)
    drive.answer(received())
    drive.answer(b"ticket")

    assert drive.answer([b"refused", b"stale"]) == GetConfig("orders", fresh=True)
    assert isinstance(drive.answer(known()), Command)
    assert drive.answer(received(b"1", b"", b"x")) is None
    assert len(drive.result.entries) == 1


def test_consumers_have_periods_of_their_own_between_half_and_all_of_the_longest() -> None:
    periods = {flows.receive.period(f"{i:016x}") for i in range(1_000)}

    assert len(periods) > 900
    assert min(periods) > flows.receive.PERIOD // 2
    assert max(periods) <= flows.receive.PERIOD


@pytest.mark.parametrize("there", [0, 1])
def test_a_wait_without_a_connection_looks_once_more_and_fails_only_without_a_message(there: int) -> None:
    drive = wait_loop(3_600_000)
    drive.answer(received())
    exhausted = PoolExhausted(3, 2)

    assert drive.answer(exhausted) == Now()
    drive.answer(200)
    assert drive.step.words[-4:] == ("me", "0", "0", b""), "it waits no longer"
    if there:
        assert drive.answer(received(b"1", b"", b"x")) is None
        assert len(drive.result.entries) == 1
    else:
        with pytest.raises(PoolExhausted, match="max_connections=3"):
            drive.answer(received())


@pytest.mark.parametrize("due,block", [(1250, 250), (1000, 1), (900, 1), (99_000, 700)])
def test_a_wait_ends_early_for_what_is_due_next(due: int, block: int) -> None:
    drive = wait_loop(700)

    assert blocks(drive.answer(received(due=b"%d" % due))) == block


@pytest.mark.parametrize("due", [None, 60_000])
def test_a_wait_says_how_long_it_would_go_on_and_what_becomes_due(due: int | None) -> None:
    drive = wait_loop(3_600_000)

    step = drive.answer(received() if due is None else received(due=b"%d" % (1_000 + due)))

    assert isinstance(step, WaitForWakeup)
    assert (step.ms, step.left, step.due) == (
        min(flows.receive.period("me"), due or flows.receive.PERIOD),
        3_600_000,
        due,
    )


def test_a_ticket_from_the_wakeup_list_goes_into_the_next_look() -> None:
    drive = wait_loop(700)
    drive.answer(received())

    drive.answer(b"a ticket")
    again(drive, 200)
    assert b"a ticket" in drive.step.words
