"""The pause that a queue makes after a failed delivery: how long, for which failures, and what goes before it."""

from __future__ import annotations

from typing import Any

import pytest

from rqttl.protocol import commands
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


@pytest.mark.parametrize("failed,pause", [(0, 5_000), (1, 10_000), (2, 15_000), (3, 15_000)])
def test_a_pause_grows_with_each_failure_up_to_the_longest(lab: Lab, failed: int, pause: int) -> None:
    held(lab, GROWING, failed=failed)

    nack(lab)

    assert ready_at(lab) == pause


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


@pytest.mark.parametrize("delay,pause", [(0, None), (30, 30), (60_000, 60_000)])
def test_a_delay_that_the_caller_gives_goes_before_the_pause(lab: Lab, delay: int, pause: int | None) -> None:
    held(lab, GROWING)

    nack(lab, delay=delay)

    assert ready_at(lab) == pause


def test_an_uncounted_return_makes_no_pause(lab: Lab) -> None:
    held(lab, GROWING)

    nack(lab, counted=False)

    assert ready_at(lab) is None
    assert "failures" not in lab.snapshot()["orders"]


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


@pytest.mark.parametrize("ends", [500, -1])
def test_the_deadline_holds_and_ends_a_pause(lab: Lab, ends: int) -> None:
    held(lab, GROWING, ends=ends, log={PLACE: (at(20), b"x")})

    if ends > 0:
        nack(lab)
    else:
        lab.run(commands.sweep(lab.known(), now=NOW))
    assert ready_at(lab) == 20

    lab.run(commands.sweep(lab.known(), now=NOW + 20))
    state = lab.snapshot()["orders"]
    assert state.keys() == {"meta"}
    assert state["meta"]["deaths:expired"] == 1


@pytest.mark.parametrize(
    "options,header,reason",
    [
        ({"max_deliveries": 2}, b"", "delivery_limit"),
        ({}, at(0), "expired"),
        ({"message_ttl": 1}, b"", "expired"),
    ],
)
def test_no_pause_keeps_a_message_alive_that_has_to_die(
    lab: Lab, options: dict[str, Any], header: bytes, reason: str
) -> None:
    held(lab, {**GROWING, **options}, failed=1, log={PLACE: (header, b"x")})

    nack(lab)

    state = lab.snapshot()["orders"]
    assert state.keys() == {"meta"}
    assert state["meta"][f"deaths:{reason}"] == 1


@pytest.mark.parametrize("jitter", [0.25, 1])
def test_chance_takes_off_a_part_that_the_protocol_names(lab: Lab, jitter: float) -> None:
    held(lab, {**GROWING, "redelivery_jitter": jitter}, failed=1)

    nack(lab)

    pause = ready_at(lab)
    assert pause == max(1, int(10_000 * (1 - jitter * share(2, NOW))))
    assert 10_000 * (1 - jitter) <= pause <= 10_000


def test_chance_differs_from_message_to_message_and_from_failure_to_failure(lab: Lab) -> None:
    places = [f"1699999999999-{100_000 + i}" for i in range(100)]
    options = {"redelivery_delay": "100s", "redelivery_jitter": 1}
    lab.seed(options=options, log=plain(*places), leases=dict.fromkeys(places, token(500)))

    lab.run(commands.nack(lab.known(), [word for one in places for word in (one, token(500))], now=NOW))
    first = lab.snapshot()["orders"]["delayed"]
    later = NOW + 200_000
    taken = lab.run(commands.receive(lab.known(), 100, 1000, now=later))
    lab.run(commands.nack(lab.known(), [word for one in places for word in (one, taken[5])], now=later))
    second = lab.snapshot()["orders"]["delayed"]

    assert len(taken[7][::3]) == 100
    for found, since in ((first, NOW), (second, later)):
        pauses = [found[one] - since for one in places]
        assert 0 < min(pauses) < 20_000
        assert 80_000 < max(pauses) <= 100_000
        assert len(set(pauses)) > 95
    assert [first[one] - NOW for one in places] != [second[one] - later for one in places]


def test_a_pause_lasts_a_millisecond_at_least(lab: Lab) -> None:
    held(lab, {"redelivery_delay": "1ms", "redelivery_jitter": 1})

    nack(lab)

    assert ready_at(lab) == 1


def test_one_batch_has_one_rule_and_each_message_its_own_pause(lab: Lab) -> None:
    other = "1699999999999-100001"
    lab.seed(
        options=GROWING,
        log=plain(PLACE, other),
        leases={PLACE: token(500), other: token(500)},
        failures={other: "2 why"},
    )

    lab.run(commands.nack(lab.known(), [PLACE, token(500), other, token(500)], now=NOW))

    assert lab.snapshot()["orders"]["delayed"] == {PLACE: NOW + 5_000, other: NOW + 15_000}
