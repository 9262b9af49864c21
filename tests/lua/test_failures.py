"""Failed deliveries: the pause that a queue makes after one, and the description of it that a message keeps."""

from __future__ import annotations

from typing import Any

import pytest

from rqttl.protocol import codec, commands
from rqttl.protocol.commands import Command
from rqttl.units import MAX_DURATION
from tests.lua.states import NOW, Lab, at, plain, token

PLACE = "1699999999999-100000"
GROWING = {"redelivery_delay": "5s", "redelivery_multiplier": 2, "redelivery_max_delay": "15s"}


def held(lab: Lab, options: dict[str, Any], *, failed: int = 0, ends: int = 500, **parts: Any) -> None:
    """One message out, which has failed before so many times."""
    if failed:
        parts["failures"] = {PLACE: failed}
    lab.seed(options=options, **{"log": plain(PLACE), **parts}, leases={PLACE: token(ends)})


def nack(lab: Lab, **words: Any) -> None:
    lab.run(commands.nack(lab.known(), [PLACE, token(500)], now=NOW, **words))


def ready_at(lab: Lab) -> int | None:
    """Return the ms from the `now` of the test until the message is ready; `None` if it is ready."""
    state = lab.snapshot()["orders"]
    if "delayed" not in state:
        assert PLACE in state["requeued"]
        return None
    assert "requeued" not in state
    assert state["meta"]["due_at"] <= state["delayed"][PLACE]
    return int(state["delayed"][PLACE] - NOW)


def share(n: int, failed_at: int) -> float:
    """The part of the jitter that chance gives to a failure, as the protocol says it."""
    mixed = 1
    for word in (*map(int, PLACE.split("-")), n, failed_at, 0):
        mixed = (mixed + word) * 48_271 % (2**31 - 1)
    return mixed / (2**31 - 1)


def test_without_a_multiplier_every_pause_is_the_same_and_fractions_multiply(lab: Lab) -> None:
    for options, failed, pause in (({}, 7, 5_000), ({"redelivery_multiplier": 1.5}, 2, 11_250)):
        lab.client.flushdb()
        held(lab, {"redelivery_delay": "5s", **options}, failed=failed)
        nack(lab)
        assert ready_at(lab) == pause


@pytest.mark.parametrize("failed", [100, 10_000, 10**15])
@pytest.mark.parametrize("options,pause", [({}, MAX_DURATION), ({"redelivery_max_delay": "1h"}, 3_600_000)])
def test_however_often_it_failed_a_pause_is_bounded(lab: Lab, options: dict[str, Any], pause: int, failed: int) -> None:
    held(lab, {"redelivery_delay": "1s", "redelivery_multiplier": 10**6, **options}, failed=failed)

    nack(lab)

    assert ready_at(lab) == pause


@pytest.mark.parametrize("who", ["sweep", "receive", "stats"])
def test_a_lease_that_ended_is_a_failure_in_each_command_that_notices_it(lab: Lab, who: str) -> None:
    held(lab, GROWING, failed=1, ends=0)
    known = lab.known()

    lab.run(
        {
            "sweep": commands.sweep(known, now=NOW),
            "stats": commands.stats(known, now=NOW),
            "receive": commands.receive(known, 1, 1000, now=NOW),
        }[who]
    )

    assert ready_at(lab) == 10_000
    assert lab.snapshot()["orders"]["failures"] == {PLACE: 2}


@pytest.mark.parametrize("ago,pause", [(1, 4_999), (4_999, 1), (5_000, None), (3_600_000, None)])
def test_a_pause_begins_where_the_lease_ended_however_late_that_is_noticed(
    lab: Lab, ago: int, pause: int | None
) -> None:
    held(lab, GROWING, ends=-ago)

    lab.run(commands.sweep(lab.known(), now=NOW))

    assert ready_at(lab) == pause


def test_after_a_pause_that_is_over_the_message_is_handed_out_by_the_call_that_notices(lab: Lab) -> None:
    held(lab, GROWING, ends=-5_000)

    reply = lab.run(commands.receive(lab.known(), 1, 1000, now=NOW))

    assert reply[7][::3] == [PLACE.encode()]
    assert reply[8] == [PLACE.encode(), 1]


@pytest.mark.parametrize("jitter", [0.25, 1])
def test_chance_takes_off_a_part_that_the_protocol_names(lab: Lab, jitter: float) -> None:
    held(lab, {**GROWING, "redelivery_jitter": jitter}, failed=1)

    nack(lab)

    pause = ready_at(lab)
    assert pause == max(1, int(10_000 * (1 - jitter * share(2, NOW))))
    assert 10_000 * (1 - jitter) <= pause <= 10_000


def test_a_pause_lasts_a_millisecond_at_least(lab: Lab) -> None:
    held(lab, {"redelivery_delay": "1ms", "redelivery_jitter": 1})

    nack(lab)

    assert ready_at(lab) == 1


WHY = b"ValueError: no such item"
ODD = [b" ", b"5", b" 7 ", b"\n", b"a\x00b 1", "é😀".encode(), b"x" * 4096]


def seed_failed(lab: Lab, redelivered: object = None, *, ends: int = 500, **options: Any) -> None:
    """Seed one leased message, with its value in `failures`."""
    parts: dict[str, Any] = {} if redelivered is None else {"failures": {PLACE: redelivered}}
    lab.seed("dead")
    lab.seed(
        options={"dead_letter": "dead", **options}, log={PLACE: (at(900), b"x")}, leases={PLACE: token(ends)}, **parts
    )


def failed_with(lab: Lab, **words: Any) -> Command:
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
    seed_failed(lab)

    lab.run(failed_with(lab, description=why))

    assert kept(lab) == b"1 " + why


@pytest.mark.parametrize("how", ["nack_command", "lease", "delay"])
@pytest.mark.parametrize("why", [WHY, *ODD])
def test_a_failure_without_a_description_keeps_the_one_before(lab: Lab, how: str, why: bytes) -> None:
    seed_failed(lab, b"4 " + why, ends=0 if how == "lease" else 500)

    lab.run(
        commands.sweep(lab.known(), now=NOW)
        if how == "lease"
        else failed_with(lab, delay=9 if how == "delay" else None)
    )

    assert kept(lab) == b"5 " + why


@pytest.mark.parametrize("how", ["nack_command", "lease"])
@pytest.mark.parametrize("why", [WHY, *ODD])
def test_a_death_has_the_error_before_if_the_last_failure_had_no_description(lab: Lab, how: str, why: bytes) -> None:
    seed_failed(lab, b"2 " + why, ends=0 if how == "lease" else 500, max_deliveries=3)

    lab.run(commands.sweep(lab.known(), now=NOW) if how == "lease" else failed_with(lab))

    died = death(lab)
    assert (died.reason, died.delivery_count, died.description) == ("delivery_limit", 3, why.decode())
    assert kept(lab) is None


@pytest.mark.parametrize("how", ["reject", "expired"])
def test_a_death_of_another_reason_does_not_say_it(lab: Lab, how: str) -> None:
    seed_failed(lab, b"1 " + WHY, message_ttl="1s" if how == "reject" else "1ms")

    lab.run(commands.reject(lab.known(), [PLACE, token(500)], now=NOW) if how == "reject" else failed_with(lab))

    assert (death(lab).delivery_count, death(lab).description) == (2, None)
    assert kept(lab) is None


def test_a_receive_tells_the_number_alone(lab: Lab) -> None:
    seed_failed(lab)
    lab.run(failed_with(lab, description=WHY))

    assert lab.run(commands.receive(lab.known(), 1, 1000, now=NOW))[8] == [PLACE.encode(), 1]
