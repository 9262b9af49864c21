"""`nack`: what is given back, when it is ready again, and when it is dead."""

from __future__ import annotations

from typing import Any

import pytest

from rqttl.protocol import commands
from rqttl.protocol.commands import Command, Word
from tests.lua.states import NOW, Lab, at, changed, place, plain, token


def nack(lab: Lab, *deliveries: Word, **words: Any) -> Command:
    return commands.nack(lab.known(), deliveries, now=NOW, **words)


def test_a_message_is_ready_again_at_its_old_place_as_a_failed_delivery(lab: Lab) -> None:
    before = lab.seed(log=plain(place(-2, 7), place(-1)), leases={place(-2, 7): token(5)})

    assert lab.run(nack(lab, place(-2, 7), token(5))) == [b"ok", b"", [], []]
    assert lab.snapshot() == changed(
        before,
        meta={"ready_bytes": 2},
        leases={place(-2, 7): None},
        requeued={place(-2, 7): NOW - 2},
        failures={place(-2, 7): 1},
    )


def test_an_uncounted_return_is_no_failed_delivery(lab: Lab) -> None:
    before = lab.seed(options={"max_deliveries": 1}, log=plain(place(-1)), leases={place(-1): token(5)})

    lab.run(nack(lab, place(-1), token(5), counted=False))

    back = {place(-1): NOW - 1}
    assert lab.snapshot() == changed(before, meta={"ready_bytes": 1}, leases={place(-1): None}, requeued=back)


def test_a_message_keeps_its_deadline(lab: Lab) -> None:
    lab.seed(log={place(-1): (at(50), b"x")}, leases={place(-1): token(100)})

    lab.run(nack(lab, place(-1), token(100)))

    state = lab.snapshot()["orders"]
    assert state["expiry"] == {place(-1): NOW + 50}
    assert state["meta"]["due_at"] == NOW + 50


def test_a_delay_sets_a_message_aside(lab: Lab) -> None:
    before = lab.seed(log=plain(place(-1)), leases={place(-1): token(500)})

    lab.run(nack(lab, place(-1), token(500), delay=30))

    assert lab.snapshot() == changed(
        before,
        meta={"due_at": NOW + 30},
        leases={place(-1): None},
        delayed={place(-1): NOW + 30},
        failures={place(-1): 1},
    )


@pytest.mark.parametrize("options,header", [({}, at(20)), ({"message_ttl": 21}, b""), ({"message_ttl": 21}, at(99))])
def test_a_delay_ends_at_the_deadline_at_the_latest(lab: Lab, options: dict[str, object], header: bytes) -> None:
    lab.seed(options=options, log={place(-1): (header, b"x")}, leases={place(-1): token(500)})

    lab.run(nack(lab, place(-1), token(500), delay=30))

    state = lab.snapshot()["orders"]
    assert state["delayed"] == {place(-1): NOW + 20}
    assert "expiry" not in state


@pytest.mark.parametrize("delay", [0, 30])
@pytest.mark.parametrize("options,header", [({}, at(0)), ({"message_ttl": 1}, b""), ({}, at(-1))])
def test_after_its_deadline_a_message_expires_then_and_there(
    lab: Lab, options: dict[str, object], header: bytes, delay: int
) -> None:
    lab.seed("dead")
    lab.seed(options={**options, "dead_letter": "dead"}, log={place(-1): (header, b"x")}, leases={place(-1): token(5)})

    lab.run(nack(lab, place(-1), token(5), delay=delay))

    after = lab.snapshot()
    assert after["orders"].keys() == {"meta"}
    assert after["orders"]["meta"]["deaths:expired"] == 1
    ((header, _),) = after["dead"]["log"].values()
    assert header.decode().endswith(f"orders expired 1 {NOW} {NOW} {NOW - 1} {max(int(header.split()[6]), 0)} 1 0 ")


def test_the_last_allowed_delivery_that_fails_is_a_death(lab: Lab) -> None:
    lab.seed("dead")
    before = lab.seed(
        options={"max_deliveries": 3, "dead_letter": "dead"},
        log=plain(place(-2), place(-1)),
        leases={place(-2): token(5), place(-1): token(5)},
        failures={place(-2): 2, place(-1): 1},
    )

    lab.run(nack(lab, place(-2), token(5), place(-1), token(5)))

    after = lab.snapshot()
    assert (
        after["orders"]
        == changed(
            before,
            meta={"ready_bytes": 1, "deaths:delivery_limit": 1},
            log={place(-2): None},
            leases={place(-2): None, place(-1): None},
            requeued={place(-1): NOW - 1},
            failures={place(-2): None, place(-1): 2},
        )["orders"]
    )
    ((header, _),) = after["dead"]["log"].values()
    assert header.decode().endswith(f"orders delivery_limit 1 {NOW} {NOW} {NOW - 2} - 3 0 ")


def test_dead_by_count_and_by_time_it_is_dead_by_count(lab: Lab) -> None:
    lab.seed(options={"max_deliveries": 1}, log={place(-1): (at(0), b"x")}, leases={place(-1): token(5)})

    lab.run(nack(lab, place(-1), token(5)))

    assert lab.snapshot()["orders"]["meta"]["deaths:delivery_limit"] == 1


def test_a_returned_message_may_push_the_oldest_out_of_a_full_queue(lab: Lab) -> None:
    lab.seed(options={"max_length": 1}, log=plain(place(-2, 2), place(-1, 1)), leases={place(-2, 2): token(5)})

    lab.run(nack(lab, place(-2, 2), token(5)))

    state = lab.snapshot()["orders"]
    assert list(state["log"]) == [place(-1, 1)]
    assert state["meta"]["deaths:maxlen"] == 1
    assert state["meta"]["ready_bytes"] == 1


def test_a_returned_message_may_exceed_the_limit_of_a_queue_that_refuses(lab: Lab) -> None:
    lab.seed(
        options={"max_length": 1, "overflow": "reject-publish"},
        log=plain(place(-2), place(-1)),
        leases={place(-2): token(5)},
    )

    lab.run(nack(lab, place(-2), token(5)))

    assert list(lab.snapshot()["orders"]["log"]) == [place(-2), place(-1)]


def test_a_waiting_consumer_is_rung(lab: Lab) -> None:
    lab.seed(log=plain(place(-1)), leases={place(-1): token(5)}, waiters={"c": NOW + 9})

    lab.run(nack(lab, place(-1), token(5)))

    assert lab.snapshot()["orders"]["wakeup"] == [""]


@pytest.mark.parametrize("delivery", [(place(-1), token(4)), (place(-3), token(5)), (place(-9), token(5))])
def test_a_delivery_that_is_not_held_is_lost_and_nothing_changes(lab: Lab, delivery: tuple[str, int]) -> None:
    before = lab.seed(log=plain(place(-3), place(-1)), leases={place(-1): token(5)})

    assert lab.run(nack(lab, *delivery))[-1] == [delivery[0].encode()]
    assert lab.snapshot() == before


@pytest.mark.parametrize("delay", [0, 30])
def test_repeated_after_a_lost_reply_our_own_success_is_not_lost_and_counts_once(lab: Lab, delay: int) -> None:
    lab.seed(log=plain(place(-1)), leases={place(-1): token(5)})
    command = nack(lab, place(-1), token(5), delay=delay)

    assert lab.run(command)[-1] == []
    after = lab.snapshot()
    assert lab.run(command.as_replay())[-1] == []
    assert lab.snapshot() == after


def test_repeated_after_a_lost_reply_a_message_of_another_consumer_is_lost(lab: Lab) -> None:
    before = lab.seed(log=plain(place(-1)), leases={place(-1): token(9)})

    assert lab.run(nack(lab, place(-1), token(5)).as_replay())[-1] == [place(-1).encode()]
    assert lab.snapshot() == before
