"""`schedule`, `cancel`, `reschedule` and the sweep that lets messages arrive: what changes, and what is refused."""

from typing import Any

import pytest

from rqttl import Message
from rqttl.protocol import codec, commands, scripts
from rqttl.protocol.commands import Command
from tests.lua.states import NOW, Lab, at, changed, place, plain
from tests.lua.test_malformed import DAMAGED, take_all
from tests.lua.test_sweep import sweep

#: Three scheduled messages: `b` has no id, and `a` and `c` have one in common.
PARTS: dict[str, Any] = {
    "scheduled": {place(-3): NOW + 7, place(-2): NOW + 5, place(-1): NOW + 9},
    "upcoming": {place(-3): (b"+90;2;;id", b"a"), place(-2): (b"", b"b"), place(-1): (b";2;;id", b"c")},
    "scheduled_ids": {"id": f"{place(-3)} {place(-1)}"},
}


def schedule(lab: Lab, *messages: Message) -> Command:
    """The call of a client that has seen the seeded options."""
    packed = [(codec.due_of(one.delay, one.deliver_at), *commands.pack(one)) for one in messages]
    return commands.schedule(lab.known(), packed, now=NOW)


# Scheduling


def test_messages_wait_outside_of_the_log_as_they_were_sent(lab: Lab) -> None:
    before = lab.seed(options={"max_ttl": 40}, log=plain(place(-1)), waiters={"w": NOW + 9})

    batch = [Message(b"a", id="id", ttl="1s", delay="7ms"), Message(b";1;;b", deliver_at=NOW + 5)]
    reply = lab.run(schedule(lab, *batch, Message(b"c", id="id", expires_at=NOW + 30, delay="9ms")))

    told = [(place(), 7, 47), (place(0, 1), 5, 45), (place(0, 2), 9, 30)]
    assert reply == [b"ok", b"", [f"{one} {NOW + due} {NOW + end}".encode() for one, due, end in told]]
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


@pytest.mark.parametrize("due, arrival, rung", [(4, 4, True), (6, 5, False)])
def test_a_waiting_consumer_is_rung_for_the_next_thing_to_happen(lab: Lab, due: int, arrival: int, rung: bool) -> None:
    lab.seed(**PARTS, waiters={"w": NOW + 99})

    assert lab.run(schedule(lab, Message(b"x", deliver_at=NOW + due)))[:2] == [b"ok", b""]
    meta = lab.snapshot_of("orders", "meta")
    assert (meta["arrival_at"], meta["due_at"]) == (NOW + arrival, NOW + arrival)
    assert lab.snapshot_of("orders", "wakeup") == [""] * rung


DUE = [b"", b"+ 5", b"+" + b"9" * 16, *b"5 + @ -5 +5x +-5 ++5 +1.5 +1e3 @0x5 \xff".split()]


@pytest.mark.parametrize(
    "words", [*[[due, b"", b"body"] for due in DUE], [b"+5"], [b"+5", b""], [b"+5", b"", b"a", b"+5"]], ids=repr
)
def test_a_message_in_a_wrong_form_is_refused_with_its_batch(lab: Lab, words: list[bytes]) -> None:
    lab.seed(options={"duplicate_window": 9}, **PARTS)
    known, script = lab.known(), scripts.load("schedule")
    start = (*known.keys_for(script), NOW, "", b"+5", b";1;;x", b"a")  # one that is good
    wrong = 2 + len(words) // 4  # only the last case has another whole message

    assert lab.refusal(Command(script, "orders", (*start, *words))) == [b"malformed", wrong]


def test_a_cancel_of_several_ids_counts_each_message_once(lab: Lab) -> None:
    lab.seed(**PARTS)
    ids = ["unknown", place(-3), place(-2), place(-2)]

    assert lab.run(commands.cancel(lab.keyspace, "orders", ids, now=NOW))[2] == [0, 1, 1, 0]
    assert lab.snapshot_of("orders", "scheduled_ids") == {"id": place(-1)}


# Arriving


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
        before,
        meta={"arrival_at": NOW + 9, "due_at": NOW + 9, "held_back": 0},
        scheduled={place(-3): None, place(-2): None},
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


def test_a_line_that_another_program_wrote_arrives_as_a_body(lab: Lab) -> None:
    lab.seed(options={}, scheduled={place(-2): NOW, place(-1): NOW}, upcoming={place(-1): (b"", b"c")})
    lab.client.hset("rqttl:{orders}:upcoming", place(-2), b"nonsense")

    assert sweep(lab)["activated"] == 2

    assert [body for _, body in lab.snapshot()["orders"]["log"].values()] == [b"nonsense", b"c"]
