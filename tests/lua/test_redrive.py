"""`redrive`: letters leave the queue that holds them and arrive in another, in one script; and all that follows.

And `move` into full queues where consumers wait.
"""

from typing import Any

import pytest

from rqttl.protocol import commands
from rqttl.protocol.codec import unpack_header
from tests.lua.states import NOW, Entry, Lab, place, plain, token

HISTORY = f"orders rejected 1 {NOW - 50} {NOW - 50} {NOW - 90} - 1 0 "


def letter(id: str = "me", body: bytes = b"x", history: str = HISTORY, extras: bytes = b"") -> Entry:
    """A dead letter."""
    return b";%d;%d;" % (len(id), len(history)) + f"{id}{history}".encode() + extras, body


def redriven(at: int, id: str = "me", history: str = HISTORY, *, own: str = "", times: int = 1) -> bytes:
    """Its header once it is back; it had come to the queue `dead` `at` ms after NOW."""
    deaths = f"dead redriven {times} {NOW} {NOW} {NOW + at} - 0 0 {history}"
    return f"{own};{len(id)};{len(deaths)};{id}{deaths}".encode()


def redrive(lab: Lab, *sequences: str, again: bool = False, source: str = "dead") -> Any:
    command = commands.redrive(lab.known(), source, sequences, now=NOW)
    return lab.run(command.as_replay() if again else command)


def test_a_second_time_is_counted_in_the_record_of_the_first(lab: Lab) -> None:
    older = f"dead redriven 3 {NOW - 99} {NOW - 70} {NOW - 80} - 0 0 "
    lab.seed("dead", log={place(-9): letter(history=HISTORY + older)})
    lab.seed()

    redrive(lab, place(-9))

    (header, _) = lab.snapshot()["orders"]["log"][place()]
    deaths = f"dead redriven 4 {NOW - 99} {NOW} {NOW - 9} - 0 0 {HISTORY}"
    assert header == f";2;{len(deaths)};me{deaths}".encode()
    assert [death.reason for death in unpack_header(header).deaths] == ["rejected"]


def test_extras_of_the_sender_go_along_unchanged(lab: Lab) -> None:
    extras = b"\x92\x01\x81\xa1n\x05"
    lab.seed("dead", log={place(-9): letter(extras=extras)})
    lab.seed(options={"max_ttl": 70})

    assert redrive(lab, place(-9))[2] == [f"{place()} {NOW + 70}".encode()]

    state = lab.snapshot()["orders"]
    assert state["log"][place()][0] == redriven(-9, own=str(NOW + 70)) + extras
    assert state["expiry"] == {place(): NOW + 70}
    assert state["meta"]["due_at"] == NOW + 70


def test_after_a_lost_reply_what_is_gone_has_gone_back_and_what_is_out_has_not(lab: Lab) -> None:
    lab.seed(
        "dead",
        log={place(-9): letter(), place(-8): letter("b"), place(-7): letter("c")},
        leases={place(-8): token(9)},
        meta={"cursor": "0-0"},
    )
    lab.seed()
    redrive(lab, place(-9))
    before = lab.snapshot()

    assert redrive(lab, place(-9), place(-8), again=True)[2] == [b"=", b"-"]
    assert lab.snapshot() == before
    assert redrive(lab, place(-9), place(-7), again=True)[2] == [b"=", place(0, 1).encode()]


def test_after_a_lost_reply_the_queue_that_held_them_may_be_gone(lab: Lab) -> None:
    before = lab.seed()

    assert redrive(lab, place(-9), source="nobody", again=True)[2] == [b"="]
    assert redrive(lab, place(-9), source="nobody")[2] == [b"-"]
    assert lab.snapshot() == before


def test_messages_that_must_go_first_go_step_by_step_and_no_letter_before_them(lab: Lab) -> None:
    lab.seed("dead", log={place(-9): letter()})
    lab.seed(options={"max_length": 1}, log=plain(*[place(-1000, i) for i in range(600)]))

    replies = [redrive(lab, place(-9)) for _ in range(3)]

    assert [reply[1] for reply in replies] == [b"retry", b"retry", b""]
    state = lab.snapshot()
    assert list(state["orders"]["log"]) == [place()]
    assert state["orders"]["meta"]["deaths:maxlen"] == 600
    assert "log" not in state["dead"]


def move(lab: Lab, *sequences: str) -> Any:
    return lab.run(commands.move(lab.known(), "dead", sequences, now=NOW))


@pytest.mark.parametrize(
    "waiting, moved, leased", [(0, 1, 0), (1, 1, 1), (2, 1, 2), (1, 2, 0), (2, 2, 2), (3, 2, 3), (4, 2, 3)]
)
def test_a_move_to_a_full_queue_loses_nothing_and_gives_the_oldest_to_the_consumers_that_wait(
    lab: Lab, waiting: int, moved: int, leased: int
) -> None:
    lab.seed("dead", log=plain(place(-9), place(-8)))
    waiters: Any = {"waiters": {f"c{i}": NOW + 9 for i in range(waiting)}} if waiting else {}
    there = plain(place(-7))
    options: dict[str, Any] = {"max_length": 1, "overflow": "reject-publish"}
    before = lab.seed(options=options, log=there, **waiters)
    has_room = 1 + moved - waiting <= 1

    told = move(lab, *[place(-9), place(-8)][:moved])

    assert told[2:] == [moved if has_room else 0, moved, b"", b"", b"" if has_room else b"max_length"]
    state = lab.snapshot()
    if not has_room:
        assert state == before
        return
    places = [place(-7), *[place(0, i) for i in range(moved)]]
    assert list(state["orders"]["log"]) == places
    assert [ticket.split()[0] for ticket in state["orders"]["wakeup"] if ticket] == places[:leased]
    assert sorted(state["orders"]["leases"]) == places[:leased]
    assert list(state["dead"].get("log", {})) == [place(-9), place(-8)][moved:]


def test_a_move_of_what_dies_on_arrival_gives_a_ready_message_to_the_consumer_that_waits(lab: Lab) -> None:
    """Only the first one: the limit was lowered, and both are over it."""
    lab.seed("dead", log={place(-6): letter()})
    lab.seed(
        options={"max_length_bytes": 5, "default_ttl": 0, "overflow": "reject-publish"},
        log={place(-9): (b";1;;x", b"1..."), place(-8): letter("y", b"3.........")},
        waiters={"c": NOW + 9},
    )

    assert move(lab, place(-6))[2:] == [1, 1, b"", b"", b""]

    state = lab.snapshot()["orders"]
    assert list(state["log"]) == [place(-9), place(-8)]
    assert list(state["leases"]) == [place(-9)]
    assert (state["meta"]["cursor"], state["meta"]["ready_bytes"]) == (place(-9), 10)
