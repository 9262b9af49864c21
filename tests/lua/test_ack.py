"""`ack` and `renew`: leases that hold, and leases that do not."""

from __future__ import annotations

import pytest

from rqttl.protocol import commands
from rqttl.protocol.commands import Command, Word
from tests.lua.states import NOW, Lab, changed, place, plain, token


def ack(lab: Lab, *deliveries: Word, now: int = NOW) -> Command:
    return commands.ack(lab.keyspace, "orders", deliveries, now=now)


def renew(lab: Lab, *deliveries: Word, now: int = NOW) -> Command:
    return commands.renew(lab.keyspace, "orders", deliveries, lease=1000, now=now)


def test_an_ack_forgets_the_message_wherever_it_is(lab: Lab) -> None:
    places = place(-3), place(-2)
    before = lab.seed(
        log=plain(places[0], place(-1)),
        detached=plain(places[1]),
        leases=dict.fromkeys(places, token(5)),
        failures={places[1]: 3},
    )

    assert lab.run(ack(lab, places[0], token(5), places[1], token(5))) == [b"ok", b"", b"", b""]
    gone = dict.fromkeys(places)
    assert lab.snapshot() == changed(
        before, meta={"acked": 2}, log={places[0]: None}, detached={places[1]: None}, leases=gone, failures=gone
    )


LOST = {
    "another token": (place(-1), token(5, 1)),
    "a lease of another consumer": (place(-2), token(4)),
    "no lease": (place(-3), token(5)),
    "no message": (place(-9), token(5)),
    "no number": (place(-1), "x"),
    "not a number": (place(-1), "nan"),
}


@pytest.mark.parametrize("why", LOST)
@pytest.mark.parametrize("build", [ack, renew])
def test_a_delivery_that_is_not_held_is_lost_and_nothing_changes(lab: Lab, build: object, why: str) -> None:
    before = lab.seed(log=plain(place(-3), place(-2), place(-1)), leases={place(-1): token(5), place(-2): token(5)})

    reply = lab.run(build(lab, *LOST[why]))  # type: ignore[operator]  # one of two functions

    assert reply[-1] == [LOST[why][0].encode()]
    assert lab.snapshot() == before


@pytest.mark.parametrize("build", [ack, renew])
def test_a_lease_ends_with_its_millisecond_whether_or_not_anybody_has_noticed(lab: Lab, build: object) -> None:
    before = lab.seed(log=plain(place(-1)), leases={place(-1): token(5, 999)})

    reply = lab.run(build(lab, place(-1), token(5, 999), now=NOW + 5))  # type: ignore[operator]  # one of two functions
    assert reply[-1] == [place(-1).encode()]
    assert lab.snapshot() == before

    reply = lab.run(build(lab, place(-1), token(5, 999), now=NOW + 4))  # type: ignore[operator]  # one of two functions
    assert not reply[-1]


def test_held_deliveries_are_acked_although_others_are_lost(lab: Lab) -> None:
    lab.seed(log=plain(place(-2), place(-1)), leases={place(-2): token(5), place(-1): token(6)})

    reply = lab.run(ack(lab, place(-2), token(4), place(-1), token(6)))

    state = lab.snapshot()["orders"]
    assert reply[-1] == [place(-2).encode()]
    assert (list(state["log"]), state["meta"]["acked"]) == ([place(-2)], 1)


def test_repeated_after_a_lost_reply_our_own_success_is_not_lost_to_us(lab: Lab) -> None:
    lab.seed(log=plain(place(-1)), leases={place(-1): token(5)})
    command = ack(lab, place(-1), token(5))

    assert lab.run(command)[-1] == b""
    after = lab.snapshot()
    assert lab.run(command.as_replay())[-1] == b""
    assert lab.snapshot() == after


def test_repeated_after_a_lost_reply_a_message_of_another_consumer_is_lost(lab: Lab) -> None:
    before = lab.seed(log=plain(place(-1)), leases={place(-1): token(9)})

    assert lab.run(ack(lab, place(-1), token(5)).as_replay())[-1] == [place(-1).encode()]
    assert lab.snapshot() == before


def test_an_ack_works_although_options_have_changed(lab: Lab) -> None:
    lab.seed(log=plain(place(-1)), leases={place(-1): token(9)}, meta={"version": "v2"})

    assert lab.run(ack(lab, place(-1), token(9)))[-1] == b""


@pytest.mark.parametrize("build", [ack, renew])
def test_a_queue_that_is_gone_is_refused(lab: Lab, build: object) -> None:
    lab.seed()
    lab.client.flushall()

    assert lab.refusal(build(lab, place(-1), token(9))) == [b"not_found"]  # type: ignore[operator]  # one of two


@pytest.mark.parametrize("build", [ack, renew])
@pytest.mark.parametrize("option", ["expires", "auto_delete_on_idle"])
def test_a_queue_whose_lifetime_is_over_is_refused_though_the_lease_holds(lab: Lab, build: object, option: str) -> None:
    lab.seed(options={option: 5}, log=plain(place(-1)), leases={place(-1): token(9)})

    command = build(lab, place(-1), token(9), now=NOW + 5)  # type: ignore[operator]  # one of two functions
    assert lab.refusal(command) == [b"queue_expired"]
    command = build(lab, place(-1), token(9), now=NOW + 4)  # type: ignore[operator]  # one of two functions
    assert not lab.run(command)[-1]


def test_a_renewed_lease_has_a_new_end_and_a_new_token(lab: Lab) -> None:
    before = lab.seed(
        log=plain(place(-2), place(-1)), leases={place(-2): token(5), place(-1): token(6)}, meta={"lease_grants": 7}
    )

    reply = lab.run(renew(lab, place(-2), token(5), place(-1), token(6)))

    assert reply == [b"ok", b"", b"%d" % token(1000, 8), []]
    assert lab.snapshot() == changed(
        before, meta={"lease_grants": 8}, leases=dict.fromkeys([place(-2), place(-1)], token(1000, 8))
    )


def test_a_renewal_may_shorten_a_lease_and_makes_the_queue_due_then(lab: Lab) -> None:
    lab.seed(log=plain(place(-1)), leases={place(-1): token(60_000)})

    lab.run(renew(lab, place(-1), token(60_000)))

    state = lab.snapshot()["orders"]
    assert state["leases"] == {place(-1): token(1000, 1)}
    assert state["meta"]["due_at"] <= NOW + 1000


def test_the_number_of_a_grant_goes_into_the_token_modulo_a_thousand(lab: Lab) -> None:
    lab.seed(log=plain(place(-1)), leases={place(-1): token(5)}, meta={"lease_grants": 1999})

    assert lab.run(renew(lab, place(-1), token(5)))[2] == b"%d" % token(1000, 0)
