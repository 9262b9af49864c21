"""`receive`: order, leases, expiry, and finishing deliveries on the way."""

from __future__ import annotations

from typing import Any

import pytest

from rqttl.protocol import commands
from rqttl.protocol.commands import Command
from tests.lua.states import NOW, Lab, at, changed, place, plain, token


def receive(lab: Lab, count: int = 10, lease: int = 1000, **words: Any) -> Command:
    return commands.receive(lab.known(), count, lease, **{"now": NOW, **words})


def bodies(reply: Any) -> list[bytes]:
    return list(reply[7][2::3])


def test_messages_come_in_order_under_one_lease(lab: Lab) -> None:
    before = lab.seed(log=plain(place(-3), place(-2, 1), place(-1, 2)))

    reply = lab.run(receive(lab, 2))

    entries = [place(-3).encode(), b"", b"0", place(-2, 1).encode(), b"", b"1"]
    assert reply == [b"ok", b"", NOW, NOW + 1000, 0, b"%d" % token(1000), b"", entries, b"", b""]
    assert lab.snapshot() == changed(
        before,
        meta={"cursor": place(-2, 1), "ready_bytes": 1, "lease_grants": 1, "due_at": NOW + 1000, "delivered": 2},
        leases={place(-3): token(1000), place(-2, 1): token(1000)},
    )


def test_an_empty_queue_is_left_untouched(lab: Lab) -> None:
    before = lab.seed()

    reply = lab.run(receive(lab))

    assert reply == [b"ok", b"", NOW, b"", 0, b"", b"", [], b"", b""]
    assert lab.snapshot() == before


def test_two_leases_that_end_together_have_different_tokens(lab: Lab) -> None:
    lab.seed(log=plain(place(-2), place(-1)))

    first, second = lab.run(receive(lab, 1)), lab.run(receive(lab, 1))

    assert (int(first[5]), int(second[5])) == (token(1000), token(1000, 1))


def test_returned_messages_come_before_what_lies_ahead_in_their_old_order(lab: Lab) -> None:
    before = lab.seed(
        log=plain(place(-4), place(-3, 1), place(-2, 3)),
        detached=plain(place(-3, 2)),
        leases={place(-4): token(500)},
        requeued={place(-3, 1): NOW - 3, place(-3, 2): NOW - 3},
        failures={place(-3, 1): 2},
    )

    reply = lab.run(receive(lab))

    assert bodies(reply) == [b"1", b"2", b"3"]
    assert reply[8] == [place(-3, 1).encode(), 2]
    leases = dict.fromkeys([place(-3, 1), place(-3, 2), place(-2, 3)], token(1000))
    assert lab.snapshot() == changed(
        before,
        meta={"cursor": place(-2, 3), "ready_bytes": 0, "lease_grants": 1, "delivered": 3, "redelivered": 1},
        leases=leases,
        requeued={place(-3, 1): None, place(-3, 2): None},
    )


def test_a_message_leaves_the_index_of_deadlines_while_it_is_leased(lab: Lab) -> None:
    lab.seed(log={place(-1): (at(50), b"x")}, expiry={place(-1): NOW + 50})

    lab.run(receive(lab))

    state = lab.snapshot()["orders"]
    assert "expiry" not in state
    assert state["meta"]["due_at"] == NOW + 50


def test_auto_ack_removes_what_it_hands_out(lab: Lab) -> None:
    before = lab.seed(log={place(-2): (at(9), b"a"), place(-1): (b"", b"b")}, expiry={place(-2): NOW + 9})

    reply = lab.run(receive(lab, auto_ack=True))

    assert (reply[5], bodies(reply)) == (b"", [b"a", b"b"])
    assert lab.snapshot() == changed(
        before,
        meta={"cursor": place(-1), "ready_bytes": 0, "delivered": 2, "acked": 2},
        log={place(-2): None, place(-1): None},
        expiry={place(-2): None},
    )


@pytest.mark.parametrize("due", [NOW, ""])
def test_an_expired_message_is_never_handed_out_swept_or_not(lab: Lab, due: object) -> None:
    before = lab.seed(
        log={place(-2): (at(0), b"old"), place(-1): (at(1), b"new")},
        expiry={place(-2): NOW, place(-1): NOW + 1},
        meta={"due_at": due},
    )

    reply = lab.run(receive(lab))

    assert bodies(reply) == [b"new"]
    after = lab.snapshot()
    assert after["orders"]["meta"]["deaths:expired"] == 1
    assert after["orders"]["log"] == changed(before, log={place(-2): None})["orders"]["log"]
    assert after["orders"]["meta"]["ready_bytes"] == 0


def test_retention_ends_where_it_says(lab: Lab) -> None:
    lab.seed(options={"message_ttl": 10}, log=plain(place(-11, 1), place(-10, 2), place(-9, 3)), meta={"due_at": ""})

    assert bodies(lab.run(receive(lab))) == [b"3"]


def test_a_lease_that_has_ended_is_reclaimed_before_messages_are_taken(lab: Lab) -> None:
    before = lab.seed(log=plain(place(-2), place(-1, 1)), leases={place(-2): token(0, 999)})

    reply = lab.run(receive(lab, 1))

    assert bodies(reply) == [b"0"]
    assert reply[8] == [place(-2).encode(), 1]
    assert lab.snapshot() == changed(
        before,
        meta={"lease_grants": 1, "delivered": 1, "redelivered": 1, "due_at": NOW + 1000},
        leases={place(-2): token(1000)},
        failures={place(-2): 1},
    )


def test_a_receive_that_met_only_expired_messages_announces_more(lab: Lab) -> None:
    places = [place(-1000, i) for i in range(600)]
    lab.seed(log={one: (at(-1), b"x") for one in places}, expiry=dict.fromkeys(places, NOW - 1), meta={"due_at": ""})

    replies = [lab.run(receive(lab, 250)) for _ in range(4)]

    assert [(bodies(reply), reply[4]) for reply in replies] == [([], 1), ([], 1), ([], 0), ([], 0)]
    assert lab.snapshot()["orders"]["meta"]["deaths:expired"] == 600


def test_one_answer_holds_about_four_megabytes(lab: Lab) -> None:
    lab.seed(log={place(-1, i): (b"", b"x" * 1_500_000) for i in range(5)})

    taken = [len(bodies(lab.run(receive(lab)))) for _ in range(5)]

    assert sum(taken) == 5
    assert max(taken) * 1_500_000 <= 4_194_304 + 1_500_000
    assert taken[-1] == 0


def test_one_body_larger_than_an_answer_is_handed_out_all_the_same(lab: Lab) -> None:
    lab.seed(log={place(-1, i): (b"", b"x" * 5_000_000) for i in range(2)})

    assert [len(bodies(lab.run(receive(lab)))) for _ in range(3)] == [1, 1, 0]


# Finishing on the way


def test_finish_and_claim_in_one_step(lab: Lab) -> None:
    before = lab.seed(
        log=plain(place(-3), place(-2, 1), place(-1, 2)),
        leases={place(-3): token(9), place(-2, 1): token(8)},
        failures={place(-3): 1},
    )

    reply = lab.run(receive(lab, finished=[place(-3), token(9), place(-2, 1), token(7)]))

    assert (bodies(reply), reply[6]) == ([b"2"], [place(-2, 1).encode()])
    assert lab.snapshot() == changed(
        before,
        meta={
            "acked": 1,
            "delivered": 1,
            "ready_bytes": 0,
            "lease_grants": 1,
            "cursor": place(-1, 2),
            "due_at": NOW + 8,
        },
        log={place(-3): None},
        leases={place(-3): None, place(-1, 2): token(1000)},
        failures={place(-3): None},
    )


def test_a_count_of_zero_finishes_without_taking(lab: Lab) -> None:
    before = lab.seed(log=plain(place(-3), place(-2, 1)), leases={place(-3): token(9)})

    reply = lab.run(receive(lab, 0, finished=[place(-3), token(9)]))

    assert (reply[4], bodies(reply)) == (0, [])
    assert lab.snapshot() == changed(before, meta={"acked": 1}, log={place(-3): None}, leases={place(-3): None})


def test_repeated_after_a_lost_reply_what_is_gone_is_not_lost(lab: Lab) -> None:
    lab.seed(log=plain(place(-1)), leases={place(-1): token(5)})
    finished = [place(-1), token(4), place(-9), token(9)]

    first = lab.run(receive(lab, 0, finished=finished))
    again = lab.run(receive(lab, 0, finished=finished).as_replay())

    assert first[6] == [place(-1).encode(), place(-9).encode()]
    assert again[6] == [place(-1).encode()]


@pytest.mark.parametrize("delay", [0, 1])
def test_expired_messages_are_dead_lettered_in_the_order_of_their_deadlines(lab: Lab, delay: int) -> None:
    lab.seed(
        options={"dead_letter": "dead", "message_ttl": 100},
        log={place(-99, 1): (at(-2), b"second"), place(-98, 2): (at(-3), b"first"), place(-100): (b"", b"third")},
        expiry={place(-99, 1): NOW - 2, place(-98, 2): NOW - 3},
    )

    lab.run(receive(lab, now=NOW + delay))

    assert [body for _, body in lab.snapshot()["dead"]["log"].values()] == [b"first", b"second", b"third"]
