"""Descriptions of failed deliveries: which one a message keeps, and where it goes when the message dies."""

from __future__ import annotations

from typing import Any

import pytest

from rqttl.protocol import codec, commands
from rqttl.protocol.commands import Command
from tests.lua.states import NOW, Lab, at, plain, token

PLACE = "1699999999999-100000"
WHY = b"ValueError: no such item"
ODD = [b" ", b"5", b" 7 ", b"\n", b"a\x00b 1", "é😀".encode(), b"x" * 4096]


def held(lab: Lab, redelivered: object = None, *, ends: int = 500, **options: Any) -> None:
    """Seed one leased message, with its value in `failures`."""
    parts: dict[str, Any] = {} if redelivered is None else {"failures": {PLACE: redelivered}}
    lab.seed("dead")
    lab.seed(
        options={"dead_letter": "dead", **options}, log={PLACE: (at(900), b"x")}, leases={PLACE: token(ends)}, **parts
    )


def nack(lab: Lab, **words: Any) -> Command:
    return commands.nack(lab.known(), [PLACE, token(500)], now=NOW, **words)


def kept(lab: Lab) -> bytes | None:
    value: Any = lab.client.hget(lab.keyspace.key("orders", "failures"), PLACE)
    return None if value is None else bytes(value)


def death(lab: Lab) -> Any:
    ((header, _),) = lab.snapshot()["dead"]["log"].values()
    (only,) = codec.unpack_header(header).deaths
    return only


@pytest.mark.parametrize("why", [WHY, *ODD])
def test_a_failed_delivery_may_be_described(lab: Lab, why: bytes) -> None:
    held(lab)

    lab.run(nack(lab, description=why))

    assert kept(lab) == b"1 " + why


@pytest.mark.parametrize("before", [1, "1 before", "1  "])
def test_the_newest_description_replaces_the_one_before(lab: Lab, before: object) -> None:
    held(lab, before)

    lab.run(nack(lab, description=WHY))

    assert kept(lab) == b"2 " + WHY


@pytest.mark.parametrize("how", ["nack", "lease", "delay"])
@pytest.mark.parametrize("why", [WHY, *ODD])
def test_a_failure_without_a_description_keeps_the_one_before(lab: Lab, how: str, why: bytes) -> None:
    held(lab, b"4 " + why, ends=0 if how == "lease" else 500)

    lab.run(commands.sweep(lab.known(), now=NOW) if how == "lease" else nack(lab, delay=9 if how == "delay" else None))

    assert kept(lab) == b"5 " + why


def test_without_any_description_only_a_number_is_kept(lab: Lab) -> None:
    held(lab)

    lab.run(nack(lab))

    assert kept(lab) == b"1"


def test_the_end_of_a_delay_keeps_the_description(lab: Lab) -> None:
    held(lab)
    lab.run(nack(lab, description=WHY, delay=5))

    lab.run(commands.sweep(lab.known(), now=NOW + 5))

    assert PLACE in lab.snapshot()["orders"]["requeued"]
    assert kept(lab) == b"1 " + WHY


def test_given_back_uncounted_a_message_keeps_its_number_and_its_description(lab: Lab) -> None:
    held(lab, b"2 " + WHY)

    lab.run(nack(lab, counted=False))

    assert kept(lab) == b"2 " + WHY


@pytest.mark.parametrize("before", [None, "1 before"])
def test_a_message_that_failed_too_often_says_its_last_error(lab: Lab, before: object) -> None:
    held(lab, before, max_deliveries=1 if before is None else 2)

    lab.run(nack(lab, description=WHY))

    assert (death(lab).reason, death(lab).description) == ("delivery_limit", WHY.decode())
    assert kept(lab) is None


@pytest.mark.parametrize("how", ["nack", "lease"])
@pytest.mark.parametrize("why", [WHY, *ODD])
def test_a_death_has_the_error_before_if_the_last_failure_had_no_description(lab: Lab, how: str, why: bytes) -> None:
    held(lab, b"2 " + why, ends=0 if how == "lease" else 500, max_deliveries=3)

    lab.run(commands.sweep(lab.known(), now=NOW) if how == "lease" else nack(lab))

    died = death(lab)
    assert (died.reason, died.delivery_count, died.description) == ("delivery_limit", 3, why.decode())
    assert kept(lab) is None


def test_each_message_of_a_batch_dies_with_its_own_error(lab: Lab) -> None:
    places = [f"1699999999999-{100_000 + i}" for i in range(3)]
    lab.seed("dead")
    lab.seed(
        options={"dead_letter": "dead", "max_deliveries": 2},
        log=plain(*places),
        leases=dict.fromkeys(places, token(500)),
        failures={places[0]: "1 first", places[1]: 1, places[2]: "1 third"},
    )

    lab.run(commands.nack(lab.known(), [word for one in places for word in (one, token(500))], now=NOW))

    headers = [codec.unpack_header(header) for header, _ in lab.snapshot()["dead"]["log"].values()]
    assert [(one.id, one.deaths[0].description) for one in headers] == [
        (places[0], "first"),
        (places[1], None),
        (places[2], "third"),
    ]


@pytest.mark.parametrize("how", ["reject", "expired"])
def test_a_death_of_another_reason_does_not_say_it(lab: Lab, how: str) -> None:
    held(lab, b"1 " + WHY, message_ttl="1s" if how == "reject" else "1ms")

    lab.run(commands.reject(lab.known(), [PLACE, token(500)], now=NOW) if how == "reject" else nack(lab))

    assert (death(lab).delivery_count, death(lab).description) == (2, None)
    assert kept(lab) is None


@pytest.mark.parametrize("how", ["ack", "receive", "purge"])
def test_it_is_forgotten_with_the_message(lab: Lab, how: str) -> None:
    held(lab, b"1 " + WHY)
    if how == "purge":
        lab.run(nack(lab))
        lab.run(commands.purge(lab.keyspace, "orders", ""))
    elif how == "ack":
        lab.run(commands.ack(lab.keyspace, "orders", [PLACE, token(500)], now=NOW))
    else:
        lab.run(commands.receive(lab.known(), 1, 1000, finished=[PLACE, token(500)], now=NOW))

    assert kept(lab) is None


def test_a_receive_tells_the_number_alone(lab: Lab) -> None:
    held(lab)
    lab.run(nack(lab, description=WHY))

    assert lab.run(commands.receive(lab.known(), 1, 1000, now=NOW))[8] == [PLACE.encode(), 1]


@pytest.mark.parametrize("why", [WHY, *ODD])
def test_a_look_shows_it_and_changes_nothing(lab: Lab, why: bytes) -> None:
    held(lab, b"3 " + why)
    before = lab.dump()

    (shown,) = lab.broker.queue("orders").peek()

    assert (shown.delivery_count, shown.description) == (4, why.decode())
    assert lab.dump() == before


def test_repeated_after_a_lost_reply_a_described_failure_counts_once(lab: Lab) -> None:
    held(lab)
    command = nack(lab, description=WHY)

    assert lab.run(command)[-1] == lab.run(command.as_replay())[-1] == []
    assert kept(lab) == b"1 " + WHY
