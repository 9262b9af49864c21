"""`tombstone`: the trace of a deleted queue, and of the messages that were lost with it."""

from __future__ import annotations

from typing import Any

import pytest

from rqttl import QueueOptions
from rqttl.protocol import commands
from rqttl.protocol.commands import Options
from tests.lua.states import NOW, Lab, at, place, plain, token

KEY = "rqttl:{orders}:tombstone"
WEEK = 7 * 24 * 3_600_000


def trace(lab: Lab) -> Any:
    """Return the remains of the deleted queue: its trace, or nothing."""
    left = lab.snapshot().get("orders", {})
    assert set(left) <= {"tombstone"}
    return left.get("tombstone")


def delete(lab: Lab) -> Any:
    lab.run(commands.delete(lab.keyspace, "orders", if_unused=False, if_empty=False))
    return trace(lab)


def lost(held: str = "0-0", trimmed: str = "0-0", born: int = NOW, deleted: int | None = None) -> dict[str, object]:
    last = born if deleted is None else deleted
    return {"created_at": born, "last_id": held, "trimmed_upto": trimmed, "deleted": last}


def many(ms: int, count: int) -> list[str]:
    return [place(ms, serial) for serial in range(count)]


def aside(*places: str) -> dict[str, int]:
    """Ready messages behind the cursor."""
    return {one: int(one[:13]) for one in places}


#: What a queue holds, and the highest place of it. `cursor` and `last` are beyond all of it where they tell nothing.
HELD: dict[str, tuple[dict[str, Any], str]] = {
    "ready": ({"log": plain(place(-9), place(-8))}, place(-8)),
    "past their deadline": ({"log": {place(-9): (at(-5), b"x")}, "expiry": {place(-9): NOW - 5}}, place(-9)),
    "leased": ({"log": plain(place(-9)), "leases": {place(-9): token(9)}, "meta": {"cursor": place(-2)}}, place(-9)),
    "delayed": ({"log": plain(place(-9)), "delayed": {place(-9): NOW + 9}, "meta": {"cursor": place(-2)}}, place(-9)),
    "moved aside, ready": (
        {
            "log": plain(place(-9)),
            "leases": {place(-9): token(9)},
            "detached": plain(place(-8), place(-7)),
            "requeued": aside(place(-8), place(-7)),
            "meta": {"cursor": place(-2)},
        },
        place(-7),
    ),
    "moved aside, of one millisecond": (
        {"detached": plain(*many(-9, 3)), "requeued": aside(*many(-9, 3)), "meta": {"cursor": place(-2)}},
        place(-9, 2),
    ),
    "moved aside, leased": (
        {
            "detached": plain(place(-9), place(-8)),
            "requeued": aside(place(-9)),
            "leases": {place(-8): token(9)},
            "meta": {"cursor": place(-2)},
        },
        place(-8),
    ),
    "moved aside, delayed": (
        {
            "log": plain(place(-9)),
            "leases": {place(-9): token(9)},
            "detached": plain(place(-7)),
            "delayed": {place(-7): NOW + 9},
            "meta": {"cursor": place(-2)},
        },
        place(-7),
    ),
    "moved aside, and others ahead": (
        {
            "detached": plain(place(-9)),
            "requeued": aside(place(-9)),
            "log": plain(place(-3)),
            "meta": {"cursor": place(-5)},
        },
        place(-3),
    ),
}


@pytest.mark.parametrize("how", HELD)
def test_the_highest_deleted_sequence_of_any_state_is_told(lab: Lab, how: str) -> None:
    parts, highest = HELD[how]
    lab.seed(**parts)
    lab.client.hset("rqttl:{orders}:meta", "last_id", place(-1))

    assert delete(lab) == lost(highest)


def test_a_trace_ends_by_itself_after_a_week(lab: Lab) -> None:
    lab.seed(log=plain(place(-9)))
    delete(lab)

    assert WEEK - 60_000 < lab.client.pttl(KEY) <= WEEK


def test_a_queue_that_is_empty_and_lost_nothing_leaves_a_trace_without_a_loss(lab: Lab) -> None:
    lab.seed(meta={"last_id": place(-1), "cursor": place(-1), "acked": 7})

    assert delete(lab) == lost()
    assert WEEK - 60_000 < lab.client.pttl(KEY) <= WEEK


def test_earlier_trimmed_messages_are_in_the_tombstone_too(lab: Lab) -> None:
    lab.seed(log=plain(place(-9)), meta={"trimmed_upto": place(-7), "last_id": place(-7)})

    assert delete(lab) == lost(place(-9), place(-7))


def test_a_queue_that_is_empty_tells_what_had_been_trimmed(lab: Lab) -> None:
    lab.seed(log=plain(place(-9)))
    lab.run(commands.purge(lab.keyspace, "orders", ""))

    assert delete(lab) == lost(trimmed=place(-9))


def test_the_last_deletion_with_a_loss_counts(lab: Lab) -> None:
    def declare(now: int) -> None:
        lab.run(commands.declare(lab.keyspace, Options.plain(QueueOptions.read("orders", {})), now=now))

    lab.seed(log=plain(place(-9)))
    first = delete(lab)
    lab.client.pexpire(KEY, 1000)

    # one that lost nothing adds its own deletion
    declare(NOW + 5)
    assert lab.snapshot()["orders"]["tombstone"] == first
    assert delete(lab) == {**first, "deleted": NOW + 5}
    assert lab.client.pttl(KEY) > 1000

    declare(NOW + 7)
    lab.client.execute_command("XADD", "rqttl:{orders}:log", place(8), "", "x")
    assert delete(lab) == lost(place(8), born=NOW + 7)
    assert lab.client.pttl(KEY) > 1000


@pytest.mark.parametrize("on_expire", ["drop", "dead-letter"])
def test_the_end_of_a_lifetime_tells_what_it_dropped_or_moved_elsewhere(lab: Lab, on_expire: str) -> None:
    over = {"last_used_at": NOW - 5, "last_active_at": NOW - 5}
    lab.seed("dead")
    lab.seed(
        options={"expires": 5, "on_expire": on_expire, "dead_letter": "dead"},
        log=plain(place(-9), place(-8)),
        leases={place(-9): token(50)},
        meta=over,
    )

    for _ in range(2):
        if "meta" in lab.snapshot()["orders"]:
            lab.run(commands.sweep(lab.known(), now=NOW))

    assert trace(lab) == (lost(place(-8)) if on_expire == "drop" else lost(trimmed=place(-8)))


@pytest.mark.parametrize("ahead", [False, True])
def test_of_very_many_that_are_out_and_moved_aside_none_is_higher_than_the_cursor(lab: Lab, ahead: bool) -> None:
    out = many(-9, 1001)
    lab.seed(
        detached=plain(*out),
        leases=dict.fromkeys(out, token(9)),
        log=plain(*([place(-3)] if ahead else [])),
        meta={"cursor": place(-5), "last_id": place(-1)},
    )

    assert delete(lab) == lost(place(-3) if ahead else place(-5))


@pytest.mark.parametrize("held", [{"log": plain(place(-9))}, {}])
def test_a_trace_of_the_wrong_type_is_in_nobodys_way(lab: Lab, held: dict[str, Any]) -> None:
    lab.seed(**held)
    lab.client.set(KEY, "x")

    assert delete(lab) == lost(place(-9) if held else "0-0")


def test_a_record_without_the_fields_of_later_versions_is_told_as_born_at_no_time(lab: Lab) -> None:
    lab.seed(log=plain(place(-9)))
    lab.client.hdel("rqttl:{orders}:meta", "trimmed_upto", "created_at")

    assert delete(lab) == lost(place(-9), born=0)
