"""Messages that are ready go to consumers that wait, the oldest first, before a TTL of 0 or a limit acts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from rqttl import Message
from rqttl.protocol import commands
from rqttl.protocol.commands import Reply
from tests.lua.states import NOW, Lab, at, changed, place, plain, token

PICKUP = 5000


def enqueue(lab: Lab, *messages: Message | bytes) -> Reply:
    return lab.run(commands.enqueue(lab.known(), [commands.pack(one) for one in messages], now=NOW))


def waiting(count: int) -> dict[str, int]:
    return {f"c{i}": NOW + 1 for i in range(count)}


def ticket(one: str, grant: int = 0) -> str:
    return f"{one} {token(PICKUP, grant)}"


def test_ready_messages_are_handed_over_before_a_message_with_ttl_zero(lab: Lab) -> None:
    before = lab.seed(
        log={place(-3): (b"", b"back"), place(-2): (at(70), b"own"), place(-1): (b"", b"ahead")},
        requeued={place(-3): NOW - 3},
        expiry={place(-2): NOW + 70},
        waiters=waiting(4),
        wakeup=[""],
        meta={"cursor": place(-3)},
    )

    enqueue(lab, Message(b"x", ttl=0))

    old = [place(-3), place(-2), place(-1)]
    assert lab.snapshot() == changed(
        before,
        meta={"ready_bytes": 0, "cursor": place(), "last_id": place(), "enqueued": 1, "lease_grants": 2},
        log={place(): (at(0), b"x")},
        requeued={place(-3): None},
        expiry={place(-2): None},
        leases={**dict.fromkeys(old, token(PICKUP)), place(): token(PICKUP, 1)},
        wakeup=["", *map(ticket, old), ticket(place(), 1)],
        waiters=dict.fromkeys([*old, place()], -(NOW + PICKUP)),
    )


@pytest.mark.parametrize("overflow", ["drop-head", "reject-publish"])
@pytest.mark.parametrize("limit", [{"max_length": 1}, {"max_length_bytes": 1}], ids=str)
def test_a_limit_acts_on_what_is_left_after_those_that_wait_have_taken_theirs(
    lab: Lab, overflow: str, limit: Mapping[str, int]
) -> None:
    lab.seed(options={**limit, "overflow": overflow}, log=plain(place(-1)), waiters=waiting(2), wakeup=[""])

    reply = enqueue(lab, b"b", b"c")

    state = lab.snapshot()["orders"]
    assert state["wakeup"] == ["", ticket(place(-1)), ticket(place(), 1)]
    assert reply[2] == [place().encode(), place(0, 1).encode()]
    assert (list(state["log"]), state["meta"]["ready_bytes"]) == ([place(-1), place(), place(0, 1)], 1)
    assert not {"deaths:maxlen", "refused"} & state["meta"].keys()


def test_fewer_that_wait_than_are_ready_take_the_oldest_before_a_limit_acts(lab: Lab) -> None:
    lab.seed(options={"max_length": 3}, log=plain(*[place(-i) for i in range(3, 0, -1)]), waiters=waiting(2))

    enqueue(lab, b"a", b"b", b"c")

    state = lab.snapshot()["orders"]
    assert list(state["leases"]) == [place(-3), place(-2)]
    assert state["meta"]["deaths:maxlen"] == 1
    assert list(state["log"]) == [place(-3), place(-2), place(), place(0, 1), place(0, 2)]


def test_messages_over_a_lowered_limit_go_to_no_consumer(lab: Lab) -> None:
    lab.seed(options={"max_length": 1}, log=plain(*[place(-i) for i in range(3, 0, -1)]), waiters=waiting(1))

    assert enqueue(lab, b"x") == [b"refused", b"retry"]
    enqueue(lab, b"x")

    state = lab.snapshot()["orders"]
    assert (state["meta"]["deaths:maxlen"], list(state["leases"])) == (2, [place(-1)])


def test_overdue_messages_go_to_no_consumer_and_make_room_first(lab: Lab) -> None:
    lab.seed(
        options={"max_length": 2},
        log={place(-2): (at(0), b"x"), place(-1): (b"", b"y")},
        expiry={place(-2): NOW},
        waiters=waiting(1),
    )

    assert enqueue(lab, b"a", b"b") == [b"refused", b"retry"]
    enqueue(lab, b"a", b"b")

    state = lab.snapshot()["orders"]
    assert state["meta"]["deaths:expired"] == 1
    assert list(state["leases"]) == [place(-1)]


def test_one_call_hands_over_a_bounded_number(lab: Lab) -> None:
    places = [place(-i) for i in range(600, 0, -1)]
    lab.seed(log=plain(*places), waiters=waiting(601))

    steps = [enqueue(lab, Message(b"x", ttl=0)) for _ in range(3)]

    assert [reply[0] for reply in steps] == [b"refused", b"refused", b"ok"]
    wakeup = lab.snapshot()["orders"]["wakeup"]
    assert [one.split()[0] for one in wakeup] == [*places, place()]


@pytest.mark.parametrize("ready", [1, 2])
def test_nothing_is_handed_past_a_ready_message_that_cannot_be_found(lab: Lab, ready: int) -> None:
    """Somebody has meddled: `returned` names a message that is in no log."""
    lab.seed(
        options={"max_length": ready},
        log=plain(*[place(-1 - i) for i in range(ready)]),
        requeued={place(-9): NOW - 9},
        waiters=waiting(9),
        meta={"cursor": place(-8)},
    )

    reply = enqueue(lab, b"x")
    if reply == [b"refused", b"retry"]:  # the id has gone, and that was all that this call did
        reply = enqueue(lab, b"x")

    state = lab.snapshot()["orders"]
    leased = state.get("leases", {})
    assert (reply[0], state.get("requeued")) == (b"ok", None)
    assert place() not in leased or all(place(-1 - i) in leased for i in range(ready))


@pytest.mark.parametrize("left", [0, 1])
def test_a_ticket_that_was_shown_or_whose_time_is_over_is_under_way_no_more(lab: Lab, left: int) -> None:
    shown = ticket(place(-1)).encode()
    lab.seed(log=plain(place(-1)), leases={place(-1): token(PICKUP)}, waiters={place(-1): -(NOW + left), "c": NOW + 9})

    if left:
        lab.run(commands.receive(lab.known(), 1, 9, presence=commands.Presence("c", 0, 0, shown), now=NOW))
        assert "waiters" not in lab.snapshot()["orders"]
    else:
        lab.run(commands.sweep(lab.known(), now=NOW))
        assert lab.snapshot()["orders"]["waiters"] == {"c": NOW + 9}


@pytest.mark.parametrize("count, noted", [(1, True), (2, True), (3, False)])
def test_a_consumer_that_gets_fewer_messages_than_it_has_room_for_goes_on_waiting(
    lab: Lab, count: int, noted: bool
) -> None:
    lab.seed(log=plain(*[place(-1 - i) for i in range(count)]))
    presence: Any = commands.Presence("me", 300, room=3)

    lab.run(commands.receive(lab.known(), 10, 9, presence=presence, now=NOW))

    assert ("waiters" in lab.snapshot()["orders"]) == noted


def test_a_consumer_that_stops_waiting_takes_a_ticket_behind_a_hint_and_behind_ended_tickets(lab: Lab) -> None:
    wakeup = ["", ticket(place(-5)), ticket(place(-1)), ticket(place())]
    lab.seed(
        log=plain(place(-1), place()),
        leases=dict.fromkeys([place(-1), place()], token(PICKUP)),
        wakeup=wakeup,
        waiters={"other": NOW + 9},
    )

    reply = lab.run(commands.receive(lab.known(), 9, 9, presence=commands.Presence("me", 0), now=NOW))

    assert reply[7][::3] == [place(-1).encode()]
    assert lab.snapshot()["orders"]["wakeup"] == wakeup[3:]


def test_a_message_that_failed_before_says_so_to_the_consumer_that_shows_its_ticket(lab: Lab) -> None:
    leases = dict.fromkeys([place(-1), place()], token(PICKUP))
    lab.seed(log=plain(place(-1), place()), leases=leases, failures={place(-1): "2 no good"}, waiters={"me": NOW + 9})
    presence = commands.Presence("me", 0, ticket=ticket(place(-1)).encode())

    reply = lab.run(commands.receive(lab.known(), 9, 9, presence=presence, now=NOW))

    assert reply[7][::3] == [place(-1).encode()]
    assert reply[8] == [place(-1).encode(), 2]
    assert lab.snapshot()["orders"]["meta"]["redelivered"] == 1
