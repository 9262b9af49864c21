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


def test_a_cancel_counts_each_message_once(lab: Lab) -> None:
    lab.seed(**PARTS)
    ids = ["unknown", place(-3), place(-2), place(-2)]

    assert [cancel(lab, id) for id in ids] == [[0, 0], [1, 0], [1, 0], [0, 0]]
    assert lab.snapshot_of("orders", "scheduled_ids") == {"id": place(-1)}


# Many messages with one id

#: An id that begins like others, and their members of `scheduled_more`.
ID, OTHERS = "a", {f";{len(id)};;{id}{place(-999)}": 0 for id in ("", "a1", ":", "aa")}
BODIES = {"small": b"x", "large": b"x" * 1_500_000}


def cancel(lab: Lab, id: str) -> list[Any]:
    return list(lab.run(commands.cancel(lab.keyspace, "orders", id, now=NOW))[2:])


def reschedule(lab: Lab, id: str, after: bytes) -> list[Any]:
    return list(lab.run(commands.reschedule(lab.keyspace, "orders", id, b"+9", after, now=NOW))[2:])


def many(lab: Lab, count: int, *, listed: int, size: str = "small") -> list[str]:
    """Let so many messages with `ID` wait. A list has the first ones, however many. Returns the sequences."""
    seqs = [place(-1_000 + i) for i in range(count)]
    lab.seed(
        options={"duplicate_window": 9_999},
        meta={"large_scheduled": int(size == "large")},
        scheduled=dict.fromkeys(seqs, NOW + 5),
        upcoming=dict.fromkeys(seqs, (b";1;;a", BODIES[size])),
        scheduled_ids={ID: " ".join(seqs[:listed]), "b": place(-1)},
        scheduled_more={**OTHERS, **{f";1;;{ID}{seq}": 0 for seq in seqs[listed:]}},
        dedup={f";1;;{ID}": NOW - 1_000 + count - 1, ";1;;b": NOW},
    )
    return seqs


@pytest.mark.parametrize("count, listed, size", [(600, 24, "small"), (1_200, 1_200, "small"), (7, 2, "large")])
@pytest.mark.parametrize("how", ["cancel", "reschedule"])
def test_many_messages_with_one_id_are_handled_in_bounded_steps(
    lab: Lab, how: str, count: int, listed: int, size: str
) -> None:
    seqs, steps, after, more = many(lab, count, listed=listed, size=size), [], b"", 1
    while more:
        done, more, *rest = cancel(lab, ID) if how == "cancel" else reschedule(lab, ID, after)
        after = rest[0] if rest else b""
        steps.append(done)

    assert (sum(steps), max(steps)) == (count, 250 if size == "small" else 3 if how == "cancel" else 7)
    left = {} if how == "cancel" else dict.fromkeys(seqs, NOW + 9)
    assert lab.snapshot_of("orders", "scheduled") == left
    assert lab.snapshot_of("orders", "upcoming").keys() == left.keys()
    ids, more = lab.snapshot_of("orders", "scheduled_ids"), lab.snapshot_of("orders", "scheduled_more")
    assert (ids.pop("b"), len(ids.get(ID, "")) <= 503, more.items() >= OTHERS.items()) == (place(-1), True, True)
    assert len([*str(ids.get(ID, "")).split(), *(more.keys() - OTHERS.keys())]) == len(left)
    assert (";1;;a" in lab.snapshot_of("orders", "dedup"), ";1;;b" in lab.snapshot_of("orders", "dedup")) == (
        how != "cancel",
        True,
    )


def test_a_list_of_first_sequences_stays_short(lab: Lab) -> None:
    lab.seed()
    for _ in range(2):
        lab.run(schedule(lab, *[Message(b"x", id="a;1;;b:", delay="5ms")] * 20, Message(b"x", id="b", delay="5ms")))

    lists = lab.snapshot_of("orders", "scheduled_ids")
    assert {id: len(seqs.split()) for id, seqs in lists.items()} == {"a;1;;b:": 24, "b": 2}
    assert lab.snapshot_of("orders", "scheduled_more") == {f";7;;a;1;;b:{place(0, 21 + i)}": 0 for i in range(4, 20)}
    assert sweep(lab, NOW + 5)["activated"] == 42
    assert not {"scheduled_ids", "scheduled_more"} & lab.snapshot()["orders"].keys()


def test_a_sequence_whose_message_an_earlier_version_let_arrive_is_no_message(lab: Lab) -> None:
    seqs = many(lab, 300, listed=0)
    lab.client.zrem("rqttl:{orders}:scheduled", *seqs[:299])
    lab.client.hdel("rqttl:{orders}:upcoming", *seqs[:299])

    assert reschedule(lab, ID, b"")[:2] == [0, 1]
    assert [cancel(lab, ID), cancel(lab, ID)] == [[1, 0], [0, 0]]
    assert lab.snapshot_of("orders", "scheduled_more") == OTHERS


@pytest.mark.parametrize("at, freed", [(-3, True), (-2, False), (-4, False)])
@pytest.mark.parametrize("by", ["id", place(-3)])
def test_a_cancel_frees_an_id_only_if_it_is_its_own(lab: Lab, by: str, at: int, freed: bool) -> None:
    """Another message may have stored it since, or before a message came here by `move`."""
    parts: dict[str, Any] = {name: {**part} for name, part in PARTS.items()}
    del parts["scheduled"][place(-1)], parts["upcoming"][place(-1)]
    lab.seed(
        options={"duplicate_window": 99}, **{**parts, "scheduled_ids": {"id": place(-3)}}, dedup={";2;;id": NOW + at}
    )

    assert cancel(lab, by) == [1, 0]
    assert lab.snapshot_of("orders", "dedup") == ({} if freed else {";2;;id": NOW + at})


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
