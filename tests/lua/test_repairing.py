"""`audit`, `repair` and `clear`: finding damage, repairing it, and leaving sound parts alone."""

from __future__ import annotations

from typing import Any

import pytest

from rqttl.protocol.commands import repair as calls
from tests.lua.states import NOW, Lab, State, at, changed, place, plain, token

INDEXES = ("leases", "delayed", "requeued", "expiry", "failures")
A, B, C, D = place(-9), place(-8), place(-7), place(-6)


def audit(lab: Lab, source: str = "log", after: bytes | str = "", limit: int = 10) -> dict[str, Any]:
    names = ("next", "record", "due", "cursor", "last", "seen", "ready", "bytes", "faults")
    return dict(zip(names, lab.run(calls.audit(lab.keyspace, "orders", source, after, limit))[2:], strict=True))


def faults(lab: Lab, source: str = "log") -> dict[str, str]:
    words = [word.decode() for word in audit(lab, source)["faults"]]
    return dict(zip(words[::2], words[1::2], strict=True))


def repair(lab: Lab, *ids: str, **more: Any) -> dict[str, int]:
    words = lab.run(calls.repair(lab.keyspace, "orders", ids, **more))[2]
    return dict(zip(map(bytes.decode, words[::2]), words[1::2], strict=True))


def mended(before: State, **parts: Any) -> State:
    """A repair makes its consequences due at once."""
    return changed(before, **{**parts, "meta": {"due_at": 0, **parts.get("meta", {})}})


SOUND: dict[str, Any] = {
    "log": {A: (b"", b"aa"), B: (b"", b"b"), C: (at(9), b"cccc"), D: (at(7), b"d")},
    "detached": {place(-10): (at(5), b"eeeee")},
    "leases": {A: token(50)},
    "delayed": {B: NOW + 5},
    "requeued": {place(-10): NOW - 10},
    "expiry": {C: NOW + 9, D: NOW + 7, place(-10): NOW + 5},
    "failures": {A: 2, place(-10): 1},
    "meta": {"cursor": B},
}


@pytest.mark.parametrize("source", ["log", "detached", *INDEXES])
def test_nothing_is_wrong_with_a_sound_queue(lab: Lab, source: str) -> None:
    before = lab.seed(options={"message_ttl": 60}, **SOUND)

    found = audit(lab, source)

    assert found["faults"] == []
    assert (found["cursor"], found["last"], found["due"]) == (B.encode(), D.encode(), b"%d" % (NOW + 5))
    assert lab.snapshot() == before


def test_ready_messages_and_their_bytes_are_counted(lab: Lab) -> None:
    lab.seed(**SOUND)

    log, detached = audit(lab, "log"), audit(lab, "detached")

    assert (log["seen"], log["ready"], log["bytes"]) == (4, 2, 5)
    assert (detached["seen"], detached["ready"], detached["bytes"]) == (1, 1, 5)


def test_pages_follow_each_other(lab: Lab) -> None:
    lab.seed(**SOUND)
    seen, after = [], b""

    while page := audit(lab, "log", after, 3):
        seen.append(page["seen"])
        after = page["next"]
        if not after:
            break

    assert seen == [3, 1]


@pytest.mark.parametrize(
    "source, parts, wrong",
    [
        ("leases", {"leases": {C: token(5)}}, {C: "orphan"}),
        ("delayed", {"delayed": {C: NOW + 5}}, {C: "orphan"}),
        ("requeued", {"requeued": {C: NOW - 7}}, {C: "orphan"}),
        ("expiry", {"expiry": {C: NOW + 5}}, {C: "orphan"}),
        ("failures", {"failures": {C: 2}}, {C: "orphan"}),
        ("leases", {"leases": {"?": 1}}, {"?": "orphan"}),
        ("log", {"meta": {"cursor": A}}, {A: "unreachable"}),
        ("log", {"requeued": {A: NOW - 8}, "meta": {"cursor": A}}, {A: "unreachable"}),
        ("detached", {"detached": plain(C)}, {C: "unreachable"}),
        ("log", {"leases": {A: token(5)}, "delayed": {A: NOW + 5}}, {A: "duplicate"}),
        ("log", {"leases": {A: token(5)}, "requeued": {A: NOW - 9}}, {A: "duplicate"}),
        ("log", {"leases": {A: token(5)}, "meta": {"cursor": "0-0"}}, {A: "duplicate"}),
        ("log", {"log": {A: (at(5), b"a")}}, {A: "deadline"}),
        ("log", {"log": {A: (at(5), b"a")}, "expiry": {A: NOW + 6}}, {A: "deadline"}),
        ("log", {"expiry": {A: NOW + 6}}, {A: "deadline"}),
        ("log", {"log": {A: (at(5), b"a")}, "leases": {A: token(5)}, "expiry": {A: NOW + 5}}, {A: "deadline"}),
        ("log", {"log": plain(A, "1700000000000-5")}, {"1700000000000-5": "foreign"}),
    ],
)
def test_damage_is_found_where_it_is(lab: Lab, source: str, parts: dict[str, Any], wrong: dict[str, str]) -> None:
    before = lab.seed(**{"log": plain(A), **parts})

    assert faults(lab, source) == wrong
    assert lab.snapshot() == before


@pytest.mark.parametrize(
    "parts, after",
    [
        (
            {"leases": {C: token(5)}, "delayed": {C: NOW}, "requeued": {C: NOW}, "expiry": {C: 1}, "failures": {C: 2}},
            {part: {C: None} for part in INDEXES},
        ),
        ({"log": plain(A, C), "meta": {"cursor": C}, "leases": {A: token(5)}}, {"requeued": {C: NOW - 7}}),
        (
            {"detached": {C: (at(5), b"c")}, "meta": {"cursor": "0-0"}},
            {"requeued": {C: NOW - 7}, "expiry": {C: NOW + 5}},
        ),
        (
            {"log": plain(C), "leases": {C: token(5)}, "delayed": {C: NOW}, "requeued": {C: NOW - 7}},
            {"delayed": {C: None}, "requeued": {C: None}},
        ),
        ({"log": plain(C), "delayed": {C: NOW}, "requeued": {C: NOW - 7}}, {"requeued": {C: None}}),
        ({"log": plain(C), "leases": {C: token(5)}, "meta": {"cursor": "0-0"}}, {"leases": {C: None}}),
        ({"log": {C: (at(5), b"c")}, "expiry": {C: NOW + 6}, "meta": {"cursor": "0-0"}}, {"expiry": {C: NOW + 5}}),
        ({"log": plain(C), "expiry": {C: NOW + 6}, "meta": {"cursor": "0-0"}}, {"expiry": {C: None}}),
        ({"log": {C: (at(5), b"c")}, "leases": {C: token(5)}, "expiry": {C: NOW + 5}}, {"expiry": {C: None}}),
    ],
)
def test_a_repair_leaves_a_message_in_one_place_and_changes_nothing_else(
    lab: Lab, parts: dict[str, Any], after: dict[str, Any]
) -> None:
    before = lab.seed(**{"log": plain(A), "meta": {"cursor": C, "last_id": C}, **parts})

    assert sum(repair(lab, C).values()) == 1

    # A may be torn too, and was not named
    assert lab.snapshot() == mended(before, **after)
    assert C not in {**faults(lab, "log"), **faults(lab, "detached"), **faults(lab, "leases"), **faults(lab, "expiry")}


def test_a_repair_leaves_alone_what_is_right_by_now(lab: Lab) -> None:
    before = lab.seed(**SOUND)

    assert repair(lab, A, B, C, D, place(-10), place(-1)) == {}
    assert lab.snapshot() == mended(before)


@pytest.mark.parametrize(
    "meta, cursor, last",
    [
        ({"last_id": A}, B, D),
        ({"last_id": "0-0", "cursor": place(-1)}, D, D),
        ({"cursor": place(-1)}, D, D),
        ({"cursor": "rubbish"}, D, D),
        ({"last_id": ""}, B, D),
    ],
)
def test_the_ends_are_put_right(lab: Lab, meta: dict[str, Any], cursor: str, last: str) -> None:
    before = lab.seed(**{**SOUND, "meta": {"cursor": B, **meta}})
    found = audit(lab)

    done = repair(lab)

    assert (found["cursor"], found["last"]) == (cursor.encode(), last.encode())
    assert done.keys() == {
        end
        for end, field, value in (("cursor", "cursor", cursor), ("last", "last_id", last))
        if value != {"cursor": B, "last_id": D, **meta}[field]
    }
    assert lab.snapshot() == mended(before, meta={"cursor": cursor, "last_id": last})


def test_the_last_id_is_not_below_what_the_log_once_held(lab: Lab) -> None:
    lab.seed(log=plain(A, B), meta={"last_id": A})
    lab.client.xdel(lab.keyspace.key("orders", "log"), B)

    assert audit(lab)["last"] == B.encode()


def test_bytes_are_set_only_while_the_record_is_what_was_seen(lab: Lab) -> None:
    before = lab.seed(**{**SOUND, "meta": {"cursor": B, "ready_bytes": 99}})
    seen = audit(lab)["record"]

    assert repair(lab, record=seen, size=10) == {"bytes": 1}
    assert lab.snapshot() == mended(before, meta={"ready_bytes": 10})

    assert repair(lab, record=seen, size=11) == {}
    assert lab.snapshot() == mended(before, meta={"ready_bytes": 10})


@pytest.mark.parametrize(
    "part, change",
    [
        ("log", lambda c, key: c.xadd(key, {"": "x"}, id=place(5))),
        ("detached", lambda c, key: c.hdel(key, place(-10))),
        ("leases", lambda c, key: c.zrem(key, A)),
        ("requeued", lambda c, key: c.zrem(key, place(-10))),
        ("delayed", lambda c, key: c.zrem(key, B)),
        ("expiry", lambda c, key: c.zrem(key, C)),
        ("failures", lambda c, key: c.hdel(key, A)),
        ("meta", lambda c, key: c.hincrby(key, "acked", 1)),
    ],
)
def test_the_text_of_a_record_differs_after_any_change(lab: Lab, part: str, change: Any) -> None:
    lab.seed(**SOUND)
    before = audit(lab)["record"]

    change(lab.client, lab.keyspace.key("orders", part))

    assert audit(lab)["record"] != before


def test_a_queue_that_is_not_there_is_not_found(lab: Lab) -> None:
    assert lab.refusal(calls.audit(lab.keyspace, "orders", "log", "", 5)) == [b"not_found"]
    assert lab.refusal(calls.repair(lab.keyspace, "orders", [A])) == [b"not_found"]


def test_leftover_keys_are_cleared_and_a_queue_is_not(lab: Lab) -> None:
    before = lab.seed(**SOUND, wakeup=[""], waiters={"w": NOW}, consumers={"w": NOW})
    assert lab.run(calls.clear(lab.keyspace, "orders"))[2] == 0
    assert lab.snapshot() == before

    lab.client.hdel(lab.keyspace.key("orders", "meta"), "version")
    assert lab.run(calls.clear(lab.keyspace, "orders"))[2] == 1
    assert lab.snapshot() == {}


@pytest.mark.parametrize("header", [b"x", b"9" * 16, b";9;;short", b";;4;dead"])
def test_a_damaged_header_is_found_and_left_as_it_is(lab: Lab, header: bytes) -> None:
    before = lab.seed(log={A: (header, b"a"), B: (b"", b"b")}, meta={"due_at": 0})

    assert faults(lab) == {A: "header"}
    assert repair(lab, A, B) == {}
    assert lab.snapshot() == before
