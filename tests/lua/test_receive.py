"""`receive`: order, leases, expiry, finishing on the way, and consumers that wait."""

from typing import Any

import pytest

from rqttl.protocol import commands
from rqttl.protocol.commands import Command, Presence
from tests.encoded import enqueue_encoded
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


def test_a_receive_that_met_only_expired_messages_announces_more(lab: Lab) -> None:
    places = [place(-1000, i) for i in range(600)]
    lab.seed(log={one: (at(-1), b"x") for one in places}, expiry=dict.fromkeys(places, NOW - 1), meta={"due_at": ""})

    replies = [lab.run(receive(lab, 250)) for _ in range(4)]

    assert [(bodies(reply), reply[4]) for reply in replies] == [([], 1), ([], 1), ([], 0), ([], 0)]
    assert lab.snapshot()["orders"]["meta"]["deaths:expired"] == 600


# Finishing on the way


def test_a_count_of_zero_finishes_without_taking(lab: Lab) -> None:
    before = lab.seed(log=plain(place(-3), place(-2, 1)), leases={place(-3): token(9)})

    reply = lab.run(receive(lab, 0, finished=[place(-3), token(9)]))

    assert (reply[4], bodies(reply)) == (0, [])
    assert lab.snapshot() == changed(before, meta={"acked": 1}, log={place(-3): None}, leases={place(-3): None})


def look(lab: Lab, presence: Presence, count: int = 1, **words: Any) -> Command:
    return commands.receive(lab.known(), count, 1000, presence=presence, now=NOW, **words)


def ticket(end: int, grant: int = 0) -> bytes:
    return f"{place(-1)} {token(end, grant)}".encode()


def test_a_consumer_without_messages_is_noted_as_waiting_and_as_a_consumer(lab: Lab) -> None:
    before = lab.seed()

    lab.run(look(lab, Presence("me", 300, 60_000)))

    assert lab.snapshot() == changed(
        before, meta={"has_waiters": 1}, waiters={"me": NOW + 5_300}, consumers={"me": NOW + 60_000}
    )


def test_a_consumer_that_stops_waiting_is_forgotten(lab: Lab) -> None:
    before = lab.seed(waiters={"me": NOW + 5, "other": NOW + 5}, consumers={"me": NOW + 5, "other": NOW + 5})

    lab.run(look(lab, Presence("me", 0, 0)))

    assert lab.snapshot() == changed(before, waiters={"me": None}, consumers={"me": None})


@pytest.mark.parametrize("noted, then", [(0, 60_000), (241_000, 241_000)])
def test_a_sign_of_life_leaves_open_whether_a_consumer_waits_and_never_shortens_the_time_for_which_it_counts(
    lab: Lab, noted: int, then: int
) -> None:
    before = lab.seed(waiters={"me": NOW + 5}, log=plain(place(-1)), consumers={"me": NOW + noted})

    lab.run(look(lab, Presence("me", -1, 60_000), 0))

    assert lab.snapshot() == changed(before, consumers={"me": NOW + then})


def test_a_consumer_that_waits_is_rung_once_and_the_queue_is_due_five_seconds_after_that(lab: Lab) -> None:
    before = lab.seed(waiters={"one": NOW + 240_000, "other": NOW + 240_000})

    for _ in range(2):
        lab.run(enqueue_encoded(lab.known(), [(b"", b"x")], now=NOW))

    state = lab.snapshot()["orders"]
    assert state["wakeup"] == [""]
    assert state["meta"]["due_at"] == NOW + 5_000
    assert state["waiters"] == before["orders"]["waiters"]


def test_a_sweep_adds_a_wakeup_while_messages_are_ready_and_a_consumer_waits(lab: Lab) -> None:
    lab.seed(log=plain(place(-1)), waiters={"other": NOW + 240_000}, meta={"due_at": NOW})

    reply = lab.run(commands.sweep(lab.known(), now=NOW))

    assert lab.snapshot()["orders"]["wakeup"] == [""]
    assert reply[3] == NOW + 5_000


def test_a_sweep_adds_no_wakeup_if_no_message_is_ready_or_the_last_wakeup_was_not_taken(lab: Lab) -> None:
    lab.seed(waiters={"other": NOW + 240_000}, meta={"due_at": NOW})
    assert lab.run(commands.sweep(lab.known(), now=NOW))[3] == b""
    lab.seed(log=plain(place(-1)), waiters={"other": NOW + 240_000}, wakeup=[""], meta={"due_at": NOW})
    assert lab.run(commands.sweep(lab.known(), now=NOW))[3] == b""


@pytest.mark.parametrize("count", [1, 2])
def test_a_consumer_that_leaves_messages_behind_wakes_the_next(lab: Lab, count: int) -> None:
    lab.seed(log=plain(place(-2), place(-1)), waiters={"other": NOW + 5})

    lab.run(look(lab, Presence("me", 300), count))

    assert ("wakeup" in lab.snapshot()["orders"]) == (count == 1)


def test_a_consumer_that_ends_its_wait_while_messages_are_ready_wakes_the_next(lab: Lab) -> None:
    before = lab.seed(log=plain(place(-1)), waiters={"me": NOW + 5, "other": NOW + 5})

    lab.run(look(lab, Presence("me", 0, 60_000), 0))

    assert lab.snapshot() == changed(
        before, waiters={"me": None}, consumers={"me": NOW + 60_000}, wakeup=[""], meta={"due_at": NOW + 5_000}
    )


@pytest.mark.parametrize("others", [0, 1, 2, 3])
@pytest.mark.parametrize("shown", [False, True])
def test_a_consumer_that_leaves_gives_back_uncounted_what_no_other_one_comes_for(
    lab: Lab, others: int, shown: bool
) -> None:
    """It leaves for good (a `count` of 0). Two messages are handed over: the newest go back."""
    places, waiters = [place(-2), place(-1)], {f"c{i}": NOW + 9 for i in range(others)}
    tickets = [f"{one} {token(4999)}" for one in places]
    before = lab.seed(
        options={"max_deliveries": 1},
        log=plain(*places),
        leases=dict.fromkeys(places, token(4999)),
        waiters={"me": NOW + 9, **waiters, **dict.fromkeys(places, -(NOW + 4999))},
        wakeup=tickets[shown:],
    )

    assert bodies(lab.run(look(lab, Presence("me", 0, 0, tickets[0].encode() if shown else b""), 0))) == []

    stay = places[int(shown) :][:others]
    back = [one for one in places if one not in stay]
    state = lab.snapshot()["orders"]
    assert sorted(state.get("requeued", {})) == back
    assert sorted(state.get("leases", {})) == stay
    assert state.get("wakeup", []) == [f"{one} {token(4999)}" for one in stay]
    assert sorted(state.get("waiters", {})) == sorted([*stay, *waiters])
    assert (state["meta"]["ready_bytes"], state["meta"]["cursor"]) == (len(back), before["orders"]["meta"]["cursor"])
    assert state["meta"].get("deaths:delivery_limit", 0) == state["meta"].get("delivered", 0) == 0
    assert "failures" not in state


@pytest.mark.parametrize("late", [ticket(4999, 1), ticket(0), b"nonsense", b"", ticket(4999).replace(b" ", b"  ")])
def test_a_ticket_that_holds_no_longer_gives_nothing(lab: Lab, late: bytes) -> None:
    lab.seed(log={place(-1): (b"", b"x")}, leases={place(-1): token(4999)})

    assert bodies(lab.run(look(lab, Presence("me", 300, 0, late)))) == []


def test_a_consumer_that_still_waits_leaves_tickets_in_the_wakeup_list(lab: Lab) -> None:
    lab.seed(log={place(-1): (at(-1), b"x")}, leases={place(-1): token(4999)}, wakeup=[ticket(4999).decode()])

    assert bodies(lab.run(look(lab, Presence("me", 300)))) == []
    assert lab.snapshot()["orders"]["wakeup"] == [ticket(4999).decode()]
