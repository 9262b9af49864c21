"""`schedule`, `cancel`, `reschedule` and the sweep that lets messages arrive: what changes, and what is refused."""

from typing import Any

import pytest
from hypothesis import example, given

from rqttl import Message
from rqttl.protocol import codec, commands, scripts
from rqttl.protocol.commands import Command, Reply
from tests.lua.states import NOW, Lab, at, changed, place, plain
from tests.lua.test_malformed import DAMAGED, GOOD, anything, examples, take_all
from tests.lua.test_sweep import sweep

#: Three scheduled messages: `b` has no id, and `a` and `c` have one in common.
PARTS: dict[str, Any] = {
    "scheduled": {place(-3): NOW + 7, place(-2): NOW + 5, place(-1): NOW + 9},
    "upcoming": {place(-3): (b"+90;2;;id", b"a"), place(-2): (b"", b"b"), place(-1): (b";2;;id", b"c")},
    "scheduled_ids": {"id": f"{place(-3)} {place(-1)}"},
}


def schedule(lab: Lab, *messages: Message, window: int = 0) -> Command:
    """The call of a client that has seen the seeded options."""
    packed = [(codec.due_of(one.delay, one.deliver_at), *commands.pack(one)) for one in messages]
    return commands.schedule(lab.known(), packed, window=window, now=NOW)


def schedule_words(lab: Lab, *words: bytes) -> Command:
    """The call of a user without the client."""
    known, script = lab.known(), scripts.load("schedule")
    return Command(script, "orders", (*known.keys_for(script), NOW, "", *words))


def cancel(lab: Lab, *ids: str, now: int = NOW) -> Any:
    return lab.run(commands.cancel(lab.keyspace, "orders", ids, now=now))


def reschedule(lab: Lab, id: str, due: bytes, now: int = NOW) -> Reply:
    return lab.run(commands.reschedule(lab.keyspace, "orders", id, due, now=now))


# Scheduling


def test_messages_wait_outside_of_the_log_as_they_were_sent(lab: Lab) -> None:
    before = lab.seed(options={"max_ttl": 40}, log=plain(place(-1)), waiters={"w": NOW + 9})

    batch = [Message(b"a", id="id", ttl="1s", delay="7ms"), Message(b";1;;b", deliver_at=NOW + 5)]
    reply = lab.run(schedule(lab, *batch, Message(b"c", id="id", expires_at=NOW + 30, delay="9ms")))

    told = [
        f"{place()} {NOW + 7} {NOW + 47}",
        f"{place(0, 1)} {NOW + 5} {NOW + 45}",
        f"{place(0, 2)} {NOW + 9} {NOW + 30}",
    ]
    assert reply == [b"ok", b"", [one.encode() for one in told]]
    assert lab.snapshot() == changed(
        before,
        meta={"last_id": place(0, 2), "arrival_at": NOW + 5, "due_at": NOW + 5, "enqueued": 0},
        scheduled={place(0, 1): NOW + 5, place(): NOW + 7, place(0, 2): NOW + 9},
        upcoming={
            place(): (b"+1000;2;;id", b"a"),
            place(0, 1): (b"", b";1;;b"),
            place(0, 2): (at(30).join([b"@", b";2;;id"]), b"c"),
        },
        scheduled_ids={"id": f"{place()} {place(0, 2)}"},
        wakeup=[""],
    )


@pytest.mark.parametrize(
    "due, arrival, swept, rung", [(4, 4, b"", True), (6, 5, b"", False), (0, 0, [b"sweep", b"orders"], False)]
)
def test_a_waiting_consumer_is_rung_for_the_next_thing_to_happen(
    lab: Lab, due: int, arrival: int, swept: object, rung: bool
) -> None:
    before = lab.seed(**PARTS, waiters={"w": NOW + 99})

    reply = lab.run(schedule(lab, Message(b"x", deliver_at=NOW + due)))

    assert reply[:2] == [b"ok", swept]
    assert lab.snapshot() == changed(
        before,
        meta={"last_id": place(), "arrival_at": NOW + arrival, "due_at": NOW + arrival},
        scheduled={place(): NOW + due},
        upcoming={place(): (b"", b"x")},
        wakeup=[""] if rung else [],
    )


def test_ids_are_remembered_from_the_schedule_on_by_the_queue_and_by_the_call(lab: Lab) -> None:
    before = lab.seed(options={"duplicate_window": 9}, dedup={";3;;old": NOW - 8})
    batch = [
        Message(b"1", id="old", delay="1ms"),
        Message(b"2", id="new", delay="1ms"),
        Message(b"3", id="new", delay="1ms"),
    ]

    assert lab.run(schedule(lab, *batch, window=50))[2] == [b"=", f"{place()} {NOW + 1}".encode(), b"="]
    assert lab.snapshot() == changed(
        before,
        meta={"last_id": place(), "arrival_at": NOW + 1, "due_at": NOW + 1},
        scheduled={place(): NOW + 1},
        upcoming={place(): (b";3;;new", b"2")},
        scheduled_ids={"new": place()},
        dedup={";3;;new": NOW},
        dedup_ids=[";3;;new"],
        dedup_windows={";3;;new": NOW + 50},
    )


DUE = [
    b"",
    b"5",
    b"+",
    b"@",
    b"-5",
    b"+5x",
    b"+-5",
    b"+ 5",
    b"++5",
    b"+1.5",
    b"+1e3",
    b"@0x5",
    b"+" + b"9" * 16,
    b"\xff\0",
]


@pytest.mark.parametrize("word", DUE)
def test_a_due_time_that_is_none_is_refused_and_nothing_is_stored(lab: Lab, word: bytes) -> None:
    lab.seed(options={"duplicate_window": 9}, **PARTS)

    assert lab.refusal(schedule_words(lab, b"+5", b";1;;x", b"a", word, b"", b"b")) == [b"malformed", 2]
    assert lab.refusal(schedule_words(lab, word, b"", b"b")) == [b"malformed", 1]


@pytest.mark.parametrize("words", [[b"+5"], [b"+5", b""], [b"+5", b"", b"a", b"+5"], [b"+5", b"", b"a", b"+5", b""]])
def test_a_batch_with_a_part_of_a_message_is_refused(lab: Lab, words: list[bytes]) -> None:
    lab.seed(**PARTS)

    assert lab.refusal(schedule_words(lab, *words)) == [b"malformed", 1 + len(words) // 3]


@pytest.mark.parametrize("options", [{}, {"default_ttl": 900}, {"duplicate_window": 9, "max_length": 9}], ids=str)
@examples
@given(envelope=anything)
@example(b"+9999999999999999")
@example(b";1;70;x" + b"orders rejected 1 1 1 1 - 1 0 ")
def test_any_envelope_is_refused_or_arrives(lab: Lab, options: dict[str, object], envelope: bytes) -> None:
    lab.client.flushall()
    lab.seed(options=options)
    before = lab.dump()

    words = [word for one in (*GOOD, envelope) for word in (b"+5", one, b"body")]
    reply = lab.run(schedule_words(lab, *words))

    if reply[0] == b"refused":
        assert (reply[1:], lab.dump()) == ([b"malformed", len(GOOD) + 1], before)
        return
    stored = [one for one in reply[2] if one != b"="]
    assert len(lab.snapshot_of("orders", "upcoming")) == len(stored)
    assert sweep(lab, NOW + 5)["activated"] == len(stored)
    state = lab.snapshot()["orders"]
    assert not {"scheduled", "upcoming", "scheduled_ids"} & state.keys()
    assert all(codec.unpack_header(header).id for header, _ in state["log"].values())
    take_all(lab)


@pytest.mark.parametrize("code", [b"not_found", b"stale", b"queue_expired"])
@pytest.mark.parametrize("call", ["schedule", "cancel", "reschedule"])
def test_the_queue_is_fenced_as_for_any_message(lab: Lab, call: str, code: bytes) -> None:
    options = {"expires": 5} if code == b"queue_expired" else {}
    lab.seed(options=options, **PARTS, meta={"last_used_at": NOW - 5, "last_active_at": NOW} if options else {})
    known = lab.known(version="v0" if code == b"stale" else "v1")
    if code == b"not_found":
        lab.client.delete("rqttl:{orders}:meta")
    command = {
        "schedule": commands.schedule(known, [(b"+5", codec.NO_ENVELOPE, b"x")], now=NOW),
        "cancel": commands.cancel(lab.keyspace, "orders", ["id"], now=NOW),
        "reschedule": commands.reschedule(lab.keyspace, "orders", "id", b"+5", now=NOW),
    }[call]

    if code == b"stale" and call != "schedule":
        assert lab.run(command)[0] == b"ok"
    else:
        assert lab.refusal(command) == [code]


# Cancelling and rescheduling


def test_a_cancel_takes_all_messages_of_an_id_or_the_one_of_a_sequence(lab: Lab) -> None:
    before = lab.seed(options={"duplicate_window": 9}, **PARTS, dedup={";2;;id": NOW, ";2;;ie": NOW})

    assert cancel(lab, "unknown", place(-3), place(-2), place(-2)) == [b"ok", b"", [0, 1, 1, 0]]
    after = changed(
        before,
        meta={"cancelled": 2},
        scheduled={place(-3): None, place(-2): None},
        upcoming={place(-3): None, place(-2): None},
        scheduled_ids={"id": place(-1)},
        dedup={";2;;id": None},
    )
    assert lab.snapshot() == after
    assert cancel(lab, "id")[2] == [1]
    left = {"scheduled", "upcoming", "scheduled_ids"}
    assert lab.snapshot() == {
        "orders": {
            **{k: v for k, v in after["orders"].items() if k not in left},
            "meta": {**after["orders"]["meta"], "cancelled": 3},
        }
    }


def test_a_reschedule_moves_all_messages_of_an_id_and_rings_if_they_are_next(lab: Lab) -> None:
    before = lab.seed(**PARTS, waiters={"w": NOW + 99})

    assert reschedule(lab, "unknown", b"+1") == [b"ok", b"", 0]
    assert lab.snapshot() == before
    assert reschedule(lab, place(-2), b"@%d" % (NOW + 80)) == [b"ok", b"", 1]
    after = changed(before, scheduled={place(-2): NOW + 80})
    assert lab.snapshot() == after
    assert reschedule(lab, "id", b"+2") == [b"ok", b"", 2]
    moved = {place(-3): NOW + 2, place(-1): NOW + 2}
    assert lab.snapshot() == changed(
        after, meta={"arrival_at": NOW + 2, "due_at": NOW + 2}, scheduled=moved, wakeup=[""]
    )
    assert reschedule(lab, place(-2), b"+0")[1] == [b"sweep", b"orders"]


# Arriving


def test_due_messages_arrive_under_new_sequences_with_their_ids_and_deadlines(lab: Lab) -> None:
    before = lab.seed(**PARTS, log=plain(place(-9)), meta={"last_id": place(-1)})

    done = sweep(lab, NOW + 7)

    assert (done["activated"], done["more"], done["due"]) == (2, 0, NOW + 9)
    assert lab.snapshot() == changed(
        before,
        meta={
            "last_id": place(7, 1),
            "ready_bytes": 3,
            "arrival_at": NOW + 9,
            "due_at": NOW + 9,
            "enqueued": 2,
            "activated": 2,
        },
        log={
            place(7): (f";{len(place())};;{place(-2)}".encode(), b"b"),
            place(7, 1): (at(97) + b";2;;id", b"a"),
        },
        expiry={place(7, 1): NOW + 97},
        scheduled={place(-3): None, place(-2): None},
        upcoming={place(-3): None, place(-2): None},
        scheduled_ids={"id": place(-1)},
    )
    assert sweep(lab, NOW + 9)["due"] == NOW + 97
    assert lab.snapshot()["orders"]["meta"]["arrival_at"] == ""


def test_messages_without_room_stay_and_are_tried_after_a_second(lab: Lab) -> None:
    options = {"max_length": 1, "overflow": "reject-publish", "message_ttl": 5_000}
    before = lab.seed(options=options, **PARTS, meta={"retention_scan": "done"})

    done = sweep(lab, NOW + 20)

    assert (done["activated"], done["more"], done["due"]) == (1, 0, NOW + 1_020)
    assert lab.snapshot() == changed(
        before,
        meta={
            "last_id": place(20),
            "ready_bytes": 1,
            "arrival_at": NOW + 1_020,
            "due_at": NOW + 1_020,
            "enqueued": 1,
            "activated": 1,
        },
        log={place(20): (at(5_005) + f";{len(place())};;{place(-2)}".encode(), b"b")},
        expiry={place(20): NOW + 5_005},
        scheduled={place(-2): None},
        upcoming={place(-2): None},
    )


def test_who_may_not_let_messages_arrive_asks_for_a_sweep(lab: Lab) -> None:
    before = lab.seed(**PARTS)

    received = lab.run(commands.receive(lab.known(), 1, 1000, now=NOW + 5))
    counted = lab.run(commands.stats(lab.known(), now=NOW + 2_000))

    assert (received[1], received[4], counted[1], counted[2]) == ([b"sweep", b"orders"], 1, [b"sweep", b"orders"], 1)
    assert lab.snapshot() == changed(before, meta={"due_at": NOW + 3_000})


def test_half_a_message_is_no_work_for_ever(lab: Lab) -> None:
    before = lab.seed(scheduled=PARTS["scheduled"])

    assert (sweep(lab, NOW + 7)["activated"], sweep(lab, NOW + 7)["more"]) == (0, 0)
    after = changed(
        before, meta={"arrival_at": NOW + 9, "due_at": NOW + 9}, scheduled={place(-3): None, place(-2): None}
    )
    assert lab.snapshot() == after


@pytest.mark.parametrize("envelope", DAMAGED)
def test_a_message_that_another_program_damaged_arrives_nevertheless(lab: Lab, envelope: bytes) -> None:
    parts: dict[str, Any] = {
        "scheduled": {place(-2): NOW, place(-1): NOW},
        "upcoming": {place(-2): (envelope, b"x"), place(-1): (b";2;;id", b"c")},
    }
    lab.seed(options={}, **parts)

    assert sweep(lab)["activated"] == 2

    assert [body for _, body in lab.snapshot()["orders"]["log"].values()] == [b"x", b"c"]
    take_all(lab)
