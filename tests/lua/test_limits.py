"""`enqueue` at the limits of a queue: what is dropped, refused or dead-lettered, and in what order."""

import pytest

from rqttl.protocol.commands import Reply
from tests.lua.states import NOW, Lab, at, changed, enqueue, place, plain

DROP, REFUSE, DLX = "drop-head", "reject-publish", "reject-publish-dlx"


@pytest.mark.parametrize("overflow", [REFUSE, DLX])
def test_messages_that_do_not_fit_are_refused_one_by_one(lab: Lab, overflow: str) -> None:
    before = lab.seed(options={"max_length": 3, "max_length_bytes": 6, "overflow": overflow}, log=plain(place(-1)))

    reply = lab.run(enqueue(lab, b"12345", b"123456", b"", b"x"))

    assert reply[2] == [place().encode(), b"!max_length_bytes", place(0, 2).encode(), b"!max_length"]
    after = lab.snapshot()
    assert after == changed(
        before,
        meta={"last_id": after["orders"]["meta"]["last_id"], "ready_bytes": 6, "enqueued": 2, "refused": 2},
        log={place(): (b"", b"12345"), place(0, 2): (b"", b"")},
    )


def test_room_in_bytes_is_made_behind_the_expired_in_the_same_call(lab: Lab) -> None:
    expired = {place(-9, i): (at(0), b"dead") for i in range(9)}
    log = {**expired, place(-2): (b"", b"old"), place(-1): (b"", b"live")}
    before = lab.seed(options={"max_length_bytes": 8}, log=log, expiry=dict.fromkeys(expired, NOW))

    assert lab.run(enqueue(lab, b"new"))[0] == b"ok"

    after, gone = lab.snapshot()["orders"], dict.fromkeys([*expired, place(-2)])
    assert after["log"] == changed(before, log={**gone, place(): (b"", b"new")})["orders"]["log"]
    meta = after["meta"]
    assert (meta["deaths:expired"], meta["deaths:maxlen"], meta["ready_bytes"]) == (9, 1, 7)


@pytest.mark.parametrize("overflow", [DROP, REFUSE])
def test_more_than_a_budget_of_expired_is_buried_step_by_step_before_anything_is_stored(
    lab: Lab, overflow: str
) -> None:
    places = [place(-1000, i) for i in range(600)]
    before = lab.seed(
        options={"max_length": 1, "overflow": overflow},
        log={one: (at(-1), b"x") for one in places},
        expiry=dict.fromkeys(places, NOW - 1),
    )

    replies: list[Reply] = []
    while not replies or replies[-1][0] == b"refused":
        replies.append(lab.run(enqueue(lab, b"a")))

    assert [reply[1] for reply in replies] == [b"retry", b"retry", b""]
    after = lab.snapshot()
    assert after["orders"]["log"] == {place(): (b"", b"a")}
    assert after["orders"]["meta"]["deaths:expired"] == 600
    assert after["orders"]["meta"]["enqueued"] == 1
    assert before["orders"]["meta"]["last_id"] < after["orders"]["meta"]["last_id"]


def test_more_than_a_budget_of_victims_goes_step_by_step(lab: Lab) -> None:
    lab.seed(options={"max_length": 10}, log=plain(*[place(-1000, i) for i in range(600)]))

    replies = [lab.run(enqueue(lab, b"a")) for _ in range(3)]

    assert [reply[1] for reply in replies] == [b"retry", b"retry", b""]
    state = lab.snapshot()["orders"]
    assert list(state["log"]) == [*[place(-1000, i) for i in range(591, 600)], place()]
    assert state["meta"]["deaths:maxlen"] == 591
    assert state["meta"]["enqueued"] == 1


def test_own_deadlines_within_retention_do_not_hide_that_more_has_expired(lab: Lab) -> None:
    places = [place(-1000, i) for i in range(300)]
    lab.seed(
        options={"max_length": 1, "message_ttl": 5},
        log={one: (at(-900), b"x") for one in places},
        expiry=dict.fromkeys(places[:10], NOW - 900),
    )

    while lab.run(enqueue(lab, b"a"))[0] == b"refused":
        pass

    meta = lab.snapshot()["orders"]["meta"]
    assert meta["deaths:expired"] == 300
    assert "deaths:maxlen" not in meta


def test_large_bodies_are_trimmed_a_few_at_a_time(lab: Lab) -> None:
    body = b"x" * 2**21
    lab.seed(options={"max_length": 3}, log={place(-9, i): (b"", body) for i in range(8)})

    replies: list[Reply] = []
    while not replies or replies[-1][0] == b"refused":
        replies.append(lab.run(enqueue(lab, b"a")))

    assert len(replies) > 2
    state = lab.snapshot()["orders"]
    assert list(state["log"]) == [place(-9, 6), place(-9, 7), place()]
    assert state["meta"]["ready_bytes"] == 2**22 + 1


# The target's side


def test_a_target_that_does_not_exist_is_made_and_named_in_the_reply(lab: Lab) -> None:
    before = lab.seed(options={"max_length": 1, "dead_letter": "DEAD.{queue}"}, log=plain(place(-1)))

    reply = lab.run(enqueue(lab, b"a"))

    after = lab.snapshot()
    assert reply[1] == [b"created", b"DEAD.orders"]
    meta, log = after["DEAD.orders"]["meta"], after["DEAD.orders"]["log"]
    assert {name: value for name, value in meta.items() if name != "about"} == {
        "version": f"auto-{NOW}",
        "explicit": 0,
        "declared": "{}",
        "options": "{}",
        "policies": 0,
        "overflow": "drop-head",
        "cursor": "0-0",
        "due_at": "",
        "last_id": place(),
        "ready_bytes": 1,
        "lease_grants": 0,
        "holds_dead_letters": 1,
        "enqueued": 1,
        "delivered": 0,
        "option_set": "default",
        "has_waiters": 0,
        "created_at": NOW,
        "trimmed_upto": "0-0",
        "letters": 1,
        "letter_bytes": sum(len(header) + len(body) for header, body in log.values()),
    }
    assert list(log) == [place()]
    assert before.keys() < after.keys()
