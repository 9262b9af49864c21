"""`sweep`: the due work in bounded steps, and the next due time."""

from typing import Any

import pytest

from rqttl.protocol import commands
from tests.lua.states import NOW, Lab, at, changed, place, plain, token


def sweep(lab: Lab, now: int = NOW) -> dict[str, Any]:
    names = ("now", "due", "more", "reclaimed", "promoted", "expired", "trimmed", "compacted", "activated", "retired")
    return dict(zip(names, lab.run(commands.sweep(lab.known(), now=now))[2:], strict=True))


def test_a_queue_in_which_nothing_is_due_is_left_untouched(lab: Lab) -> None:
    before = lab.seed(
        options={"message_ttl": 50},
        log=plain(place(-3), place(-2), place(-1)),
        leases={place(-3): token(1)},
        delayed={place(-2): NOW + 5},
        waiters={"c": NOW + 5},
        consumers={"c": NOW + 5},
        wakeup=[""],
        meta={"retention_scan": "done"},
    )

    done = sweep(lab)

    assert done == {
        "now": NOW,
        "due": NOW + 1,
        "more": 0,
        "reclaimed": 0,
        "promoted": 0,
        "expired": 0,
        "trimmed": 0,
        "compacted": 0,
        "activated": 0,
        "retired": b"",
    }
    assert lab.snapshot() == before


@pytest.mark.parametrize(
    "options,parts,due",
    [
        ({}, {}, b""),
        ({}, {"log": plain(place(-1))}, b""),
        ({"message_ttl": 30}, {"log": plain(place(-5), place(-1))}, NOW + 25),
        ({"message_ttl": 30}, {"log": plain(place(-5), place(-1)), "leases": {place(-5): token(80)}}, NOW + 29),
        ({}, {"log": {place(-1): (at(40), b"x")}, "expiry": {place(-1): NOW + 40}}, NOW + 40),
        ({}, {"log": plain(place(-1)), "leases": {place(-1): token(70, 999)}}, NOW + 70),
        ({}, {"log": plain(place(-1)), "delayed": {place(-1): NOW + 60}}, NOW + 60),
        ({"message_ttl": 30}, {"log": plain(place(-1)), "requeued": {place(-1): NOW - 1}}, NOW + 29),
    ],
)
def test_the_next_due_time_is_the_earliest_of_all(
    lab: Lab, options: dict[str, object], parts: dict[str, Any], due: object
) -> None:
    lab.seed(options=options, **parts, meta={"due_at": 0})

    assert sweep(lab)["due"] == due
    assert lab.snapshot()["orders"]["meta"]["due_at"] == ("" if due == b"" else due)


KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "reclaimed": ({}, {"leases": dict.fromkeys([place(-9, i) for i in range(600)], token(-1))}),
    "promoted": ({}, {"delayed": dict.fromkeys([place(-9, i) for i in range(600)], NOW)}),
    "expired": ({}, {"expiry": dict.fromkeys([place(-9, i) for i in range(600)], NOW)}),
    "trimmed": ({"max_length": 0}, {}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_more_than_a_budget_is_done_step_by_step_and_announced(lab: Lab, kind: str) -> None:
    options, parts = KINDS[kind]
    header = at(0) if kind == "expired" else b""
    lab.seed(options=options, log={place(-9, i): (header, b"x") for i in range(600)}, **parts)

    rounds = [sweep(lab)]
    while rounds[-1]["more"]:
        assert lab.snapshot()["orders"]["meta"]["due_at"] == NOW
        rounds.append(sweep(lab))

    assert [one[kind] for one in rounds] == [250, 250, 100]


def test_consumers_that_were_not_heard_of_are_forgotten(lab: Lab) -> None:
    before = lab.seed(
        waiters={"old": NOW, "new": NOW + 1}, consumers={"old": NOW, "new": NOW + 1}, log=plain(place(-1)), wakeup=[""]
    )

    sweep(lab)

    assert lab.snapshot() == changed(before, waiters={"old": None}, consumers={"old": None})


# Giving memory back


def holey(lab: Lab, dead: int = 60, **parts: Any) -> None:
    """300 living messages, each followed by others that are gone. The first 20 are leased."""
    step = dead + 1
    everyone = [place(-9, i) for i in range(300 * step)]
    living = everyone[::step]
    taken = living[:20]
    meta = {"ready_bytes": 280, "cursor": taken[-1], **parts.pop("meta", {})}
    lab.seed(
        log={one: (at(90), b"x") for one in everyone},
        expiry=dict.fromkeys(living[20:], NOW + 90),
        leases=dict.fromkeys(taken, token(50)),
        meta=meta,
        **parts,
    )
    lab.client.xdel(lab.keyspace.key("orders", "log"), *set(everyone) - set(living))


def compacted(lab: Lab) -> list[int]:
    """Sweep until a sweep moves no message. Returns the number of moved messages of each sweep."""
    moved = []
    while n := sweep(lab)["compacted"]:
        moved.append(n)
    return moved


def test_survivors_move_aside_from_the_beginning_in_their_order_and_with_their_deadlines(lab: Lab) -> None:
    holey(lab)
    before = lab.snapshot()["orders"]
    first = list(before["log"])[:100]

    once = sweep(lab)

    after = lab.snapshot()["orders"]
    assert (once["compacted"], once["more"]) == (100, 1)
    assert list(after["log"]) == list(before["log"])[100:]
    assert list(after["detached"].items()) == [(one, before["log"][one]) for one in first]
    assert list(after["requeued"]) == first[20:]
    assert (after["leases"], after["expiry"]) == (before["leases"], before["expiry"])
    assert (after["meta"]["cursor"], after["meta"]["ready_bytes"]) == (first[-1], before["meta"]["ready_bytes"])
    assert (before["meta"].get("compacted"), after["meta"]["compacted"]) == (None, 1)
    assert (compacted(lab), sweep(lab)["more"]) == ([100], 0)


@pytest.mark.parametrize("dead", [0, 1])
def test_a_log_that_takes_little_more_than_its_messages_need_is_left_alone(lab: Lab, dead: int) -> None:
    lab.seed(log={place(-9, i): (b"", b"x" * 200) for i in range(3000)})
    if dead:
        lab.client.xdel(lab.keyspace.key("orders", "log"), *[place(-9, i) for i in range(0, 3000, 2)])
        lab.client.hset(lab.keyspace.key("orders", "meta"), "ready_bytes", 1500 * 200)
    before = lab.snapshot()

    assert sweep(lab)["compacted"] == 0
    assert lab.snapshot() == before


def test_large_bodies_are_left_where_they_are(lab: Lab) -> None:
    lab.seed(log={place(-9, i): (b"", b"x" * 5000) for i in range(200)})

    assert sweep(lab)["compacted"] == 0
