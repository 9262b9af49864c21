"""`enqueue`: order, ids, deadlines, refusals."""

from __future__ import annotations

from typing import Any

import pytest

from rqttl import Message
from rqttl.protocol import commands
from rqttl.protocol.commands import Command
from tests.lua.states import NOW, Lab, at, changed, place, plain, token


def enqueue(lab: Lab, *messages: object, now: int = NOW) -> Command:
    known = lab.known()
    return commands.enqueue(known, [commands.pack(message) for message in messages], now=now)


def test_messages_are_stored_in_order_under_rising_ids(lab: Lab) -> None:
    before = lab.seed()

    reply = lab.run(enqueue(lab, b"a", b"bc"))

    assert reply == [b"ok", b"", [place().encode(), place(0, 1).encode()]]
    assert lab.snapshot() == changed(
        before,
        meta={"last_id": place(0, 1), "ready_bytes": 3, "enqueued": 2},
        log={place(): (b"", b"a"), place(0, 1): (b"", b"bc")},
    )


def test_ids_rise_although_the_clock_goes_back(lab: Lab) -> None:
    before = lab.seed(log=plain(place(5000, 7)))

    lab.run(enqueue(lab, b"a", b"b", now=NOW))

    assert lab.snapshot() == changed(
        before,
        meta={"last_id": place(5000, 9), "ready_bytes": 3, "enqueued": 2},
        log={place(5000, 8): (b"", b"a"), place(5000, 9): (b"", b"b")},
    )


def test_the_last_id_of_a_millisecond_is_followed_by_the_first_of_the_next(lab: Lab) -> None:
    lab.seed(meta={"last_id": f"{NOW}-999998"})

    reply = lab.run(enqueue(lab, b"a", b"b", b"c"))

    assert reply[2] == [f"{NOW}-999999".encode(), place(1).encode(), place(1, 1).encode()]


def test_an_own_deadline_is_stored_indexed_reported_and_due(lab: Lab) -> None:
    before = lab.seed()

    reply = lab.run(enqueue(lab, Message(b"a", ttl="5s"), b"b"))

    assert reply[2] == [f"{place()} {NOW + 5000}".encode(), place(0, 1).encode()]
    assert lab.snapshot() == changed(
        before,
        meta={"last_id": place(0, 1), "ready_bytes": 2, "enqueued": 2, "due_at": NOW + 5000},
        log={place(): (at(5000), b"a"), place(0, 1): (b"", b"b")},
        expiry={place(): NOW + 5000},
    )


def test_id_and_extras_are_stored_as_they_came(lab: Lab) -> None:
    before = lab.seed()

    lab.run(enqueue(lab, Message(b"a", ttl="7ms", id="é;1", headers={"x": b"\0;;"}), Message(b"b", id="me")))

    after = lab.snapshot()
    header = after["orders"]["log"][place()][0]
    assert header.startswith(b"%d;4;;%b\x92" % (NOW + 7, "é;1".encode()))
    assert after["orders"]["log"][place(0, 1)] == (b";2;;me", b"b")
    assert after["orders"]["expiry"] == {place(): NOW + 7}
    assert before["orders"].keys() < after["orders"].keys()


@pytest.mark.parametrize(
    "options,message,own",
    [
        ({}, Message(b"x"), None),
        ({}, Message(b"x", ttl="50ms"), 50),
        ({}, Message(b"x", expires_at=NOW + 50), 50),
        ({"never_expire": True, "max_ttl": 5, "default_ttl": 5}, Message(b"x", ttl="50ms"), None),
        ({"default_ttl": 30}, Message(b"x"), 30),
        ({"default_ttl": 30}, Message(b"x", ttl="50ms"), 50),
        ({"default_ttl": 30, "min_ttl": 100, "max_ttl": 200}, Message(b"x"), 30),
        ({"default_ttl": 30, "min_ttl": 100, "max_ttl": 200}, Message(b"x", ttl="5s"), 5000),
        ({"max_ttl": 200, "min_ttl": 100}, Message(b"x"), 200),
        ({"min_ttl": 100}, Message(b"x"), 100),
        ({"min_ttl": 100, "max_ttl": 200}, Message(b"x", ttl="50ms"), 100),
        ({"min_ttl": 100, "max_ttl": 200}, Message(b"x", ttl="500ms"), 200),
        ({"min_ttl": 100, "max_ttl": 200}, Message(b"x", ttl="150ms"), 150),
        ({"min_ttl": 100}, Message(b"x", expires_at=NOW - 10_000), 100),
        ({"min_ttl": 100}, Message(b"x", ttl=0), 100),
        ({"message_ttl": 10}, Message(b"x", ttl="50ms"), 50),
        ({"message_ttl": 10}, Message(b"x"), None),
        ({}, Message(b"x", expires_at=253_402_300_799_999), 253_402_300_799_999 - NOW),
    ],
)
def test_the_own_ttl_is_resolved_as_the_table_says(
    lab: Lab, options: dict[str, object], message: Message, own: int | None
) -> None:
    lab.seed(options=options)

    reply = lab.run(enqueue(lab, message))

    state = lab.snapshot()["orders"]
    assert reply[2][0].partition(b" ")[2] == (b"" if own is None else b"%d" % (NOW + own))
    assert state["log"] == {place(): (b"" if own is None else at(own), b"x")}
    assert state.get("expiry") == (None if own is None else {place(): NOW + own})


def test_retention_makes_the_queue_due_without_an_index(lab: Lab) -> None:
    before = lab.seed(options={"message_ttl": 100})

    lab.run(enqueue(lab, b"a"))

    assert lab.snapshot() == changed(
        before,
        meta={"last_id": place(), "ready_bytes": 1, "enqueued": 1, "due_at": NOW + 100},
        log={place(): (b"", b"a")},
    )


@pytest.mark.parametrize(
    "options,message,deadline",
    [
        ({}, Message(b"x", ttl=0), NOW),
        ({}, Message(b"x", expires_at=NOW - 5000), NOW - 5000),
        ({"max_ttl": 0}, Message(b"x"), NOW),
        ({"message_ttl": 0}, Message(b"x", ttl="50ms"), NOW),
        ({"message_ttl": 0}, Message(b"x"), NOW),
    ],
)
def test_a_message_whose_time_is_over_dies_on_arrival(
    lab: Lab, options: dict[str, object], message: Message, deadline: int
) -> None:
    lab.seed("dead")
    before = lab.seed(options={**options, "dead_letter": "dead"})

    lab.run(enqueue(lab, message))

    after = lab.snapshot()
    ((header, body),) = after["dead"]["log"].values()
    history = f"orders expired 1 {NOW} {NOW} {NOW} {deadline} 0 0 "
    assert header.decode() == f";{len(place())};{len(history)};{place()}{history}"
    assert body == b"x"
    meta = {"last_id": place(), "enqueued": 1, "deaths:expired": 1}
    letters = {"last_id": place(), "enqueued": 1, "ready_bytes": 1, "holds_dead_letters": 1, "letters": 1}
    letters["letter_bytes"] = len(header) + 1
    assert after == changed(changed(before, meta=meta), "dead", meta=letters, log={place(): (header, body)})


def test_without_a_target_a_message_that_dies_on_arrival_is_counted_as_dropped(lab: Lab) -> None:
    before = lab.seed()

    lab.run(enqueue(lab, Message(b"x", ttl=0)))

    meta = {"last_id": place(), "enqueued": 1, "deaths:expired": 1, "dropped:expired": 1}
    assert lab.snapshot() == changed(before, meta=meta)


def test_a_waiting_consumer_is_rung_once(lab: Lab) -> None:
    lab.seed(waiters={"c1": NOW + 1000, "c2": NOW + 1000})

    lab.run(enqueue(lab, b"a"))
    lab.run(enqueue(lab, b"b"))

    assert lab.snapshot()["orders"]["wakeup"] == [""]


def test_nobody_waits_so_nothing_is_rung(lab: Lab) -> None:
    lab.seed()

    lab.run(enqueue(lab, b"a"))

    assert "wakeup" not in lab.snapshot()["orders"]


def test_an_earlier_deadline_is_told_to_reapers_a_later_one_is_not(lab: Lab) -> None:
    lab.seed()
    with lab.client.pubsub() as listener:
        listener.subscribe("rqttl:due")
        assert listener.get_message(timeout=5)

        lab.run(enqueue(lab, Message(b"a", ttl="500ms")))
        lab.run(enqueue(lab, Message(b"b", ttl="900ms")))
        lab.run(enqueue(lab, Message(b"c", ttl="400ms")))

        told = [listener.get_message(timeout=5) for _ in range(2)]
        assert listener.get_message(timeout=0) is None
    assert [one["data"] for one in told if one] == [b"%d orders" % (NOW + 500), b"%d orders" % (NOW + 400)]


# Hand-off to consumers that wait


@pytest.mark.parametrize("options", [{}, {"message_ttl": 0}])
def test_ttl_zero_is_handed_to_a_consumer_that_waits_with_a_ticket(lab: Lab, options: dict[str, object]) -> None:
    before = lab.seed(options=options, waiters={"c1": NOW + 1})

    lab.run(enqueue(lab, Message(b"x", ttl=0)))

    assert lab.snapshot() == changed(
        before,
        meta={"last_id": place(), "cursor": place(), "enqueued": 1, "lease_grants": 1, "due_at": NOW + 5000},
        log={place(): (at(0), b"x")},
        leases={place(): token(5000)},
        wakeup=[f"{place()} {token(5000)}"],
        waiters={place(): -(NOW + 5000)},
    )


def test_only_as_many_are_handed_out_as_wait(lab: Lab) -> None:
    """A consumer that takes a hint and gets no ready message takes a ticket then."""
    lab.seed(waiters={"gone": NOW, "c1": NOW + 1, "c2": NOW + 1}, wakeup=[""])

    lab.run(enqueue(lab, *[Message(b"x", ttl=0)] * 3))

    state = lab.snapshot()["orders"]
    assert list(state["leases"]) == [place(), place(0, 1)]
    assert state["wakeup"] == ["", f"{place()} {token(5000)}", f"{place(0, 1)} {token(5000, 1)}"]
    assert state["meta"]["deaths:expired"] == 1


@pytest.mark.parametrize("wakeup", [{}, {"wakeup": [f"{place(-1)} {token(9)}"]}], ids=["taken", "in the list"])
def test_a_consumer_to_whom_a_ticket_is_under_way_waits_for_nothing_else(
    lab: Lab, wakeup: dict[str, list[str]]
) -> None:
    parts: Any = {"waiters": {"c1": NOW + 1, place(-1): -(NOW + 9)}, **wakeup}
    lab.seed(log=plain(place(-1)), leases={place(-1): token(9)}, **parts)

    lab.run(enqueue(lab, Message(b"x", ttl=0)))

    assert lab.snapshot()["orders"]["meta"]["deaths:expired"] == 1


def test_a_ticket_that_nobody_has_shown_in_time_is_under_way_no_more(lab: Lab) -> None:
    lab.seed(waiters={"c1": NOW + 1, place(-1): -NOW})

    lab.run(enqueue(lab, Message(b"x", ttl=0)))

    assert "deaths:expired" not in lab.snapshot()["orders"]["meta"]


def test_ttl_zero_is_not_handed_past_messages_that_are_ready(lab: Lab) -> None:
    lab.seed(log=plain(place(-1)), waiters={"c1": NOW + 1})

    lab.run(enqueue(lab, Message(b"x", ttl=0)))

    state = lab.snapshot()["orders"]
    assert "wakeup" not in state
    assert state["meta"]["deaths:expired"] == 1


def test_ttl_zero_is_not_handed_past_an_earlier_message_of_its_batch(lab: Lab) -> None:
    lab.seed(waiters={"c1": NOW + 1})

    lab.run(enqueue(lab, b"a", Message(b"x", ttl=0)))

    state = lab.snapshot()["orders"]
    assert state["log"] == {place(): (b"", b"a")}
    assert state["wakeup"] == [""]
    assert state["meta"]["deaths:expired"] == 1


@pytest.mark.parametrize("overflow", ["drop-head", "reject-publish"])
@pytest.mark.parametrize("limit", ["max_length", "max_length_bytes"])
def test_a_limit_of_zero_lets_pass_what_waiting_consumers_take(lab: Lab, overflow: str, limit: str) -> None:
    lab.seed(options={limit: 0, "overflow": overflow}, waiters={"c1": NOW + 1})

    reply = lab.run(enqueue(lab, b"a", b"b"))

    state = lab.snapshot()["orders"]
    assert state["log"] == {place(): (b"", b"a")}
    assert state["leases"] == {place(): token(5000)}
    assert state["meta"]["ready_bytes"] == 0
    if overflow == "drop-head":
        assert state["meta"]["deaths:maxlen"] == 1
    else:
        assert reply[2] == [place().encode(), f"!{limit}".encode()]
        assert state["meta"]["refused"] == 1


def test_nothing_is_handed_to_consumers_while_there_is_room(lab: Lab) -> None:
    lab.seed(options={"max_length": 5}, waiters={"c1": NOW + 1})

    lab.run(enqueue(lab, b"a"))

    assert "leases" not in lab.snapshot()["orders"]


def test_an_expired_message_ahead_does_not_keep_a_message_from_a_consumer(lab: Lab) -> None:
    lab.seed(
        options={"max_length": 1, "overflow": "reject-publish"},
        log={place(-9): (at(0), b"o")},
        expiry={place(-9): NOW},
        waiters={"c1": NOW + 1},
    )

    reply = lab.run(enqueue(lab, b"a", b"b"))

    state = lab.snapshot()["orders"]
    assert reply[2] == [place().encode(), place(0, 1).encode()]
    assert state["leases"] == {place(): token(5000)}
    assert list(state["log"]) == [place(), place(0, 1)]
    assert state["meta"]["ready_bytes"] == 1
    assert state["meta"]["deaths:expired"] == 1
