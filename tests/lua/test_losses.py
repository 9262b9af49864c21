"""`trimmed_upto` and `tombstone`: what went without anybody's having handled it, while a queue lives and after it."""

from __future__ import annotations

from typing import Any

import pytest

from rqttl import Message, QueueOptions
from rqttl.protocol import commands
from rqttl.protocol.commands import Command, Options
from tests.lua.states import NOW, Lab, at, place, plain, token


def trimmed(lab: Lab, queue: str = "orders") -> object:
    return lab.snapshot()[queue]["meta"]["trimmed_upto"]


def enqueue(lab: Lab, *messages: object) -> Command:
    known = lab.known()
    return commands.enqueue(known, [commands.pack(message) for message in messages], now=NOW)


def test_retention_limits_and_purges_raise_it_step_by_step(lab: Lab) -> None:
    lab.seed(options={"message_ttl": 9, "max_length": 3}, log=plain(*[place(-9 + i) for i in range(4)]))

    steps = []
    for command in (
        commands.receive(lab.known(), 1, 50, now=NOW),  # the first is past retention
        enqueue(lab, b"a", b"b"),  # one too many
        commands.purge(lab.keyspace, "orders", "", [place(-6)], unread=True),
        commands.purge(lab.keyspace, "orders", "", [place(-7)], unread=True),
        commands.purge(lab.keyspace, "orders", ""),
    ):
        lab.run(command)
        steps.append(trimmed(lab))

    assert steps == [place(-9), place(-7), place(-6), place(-6), place(0, 1)]


PURGED: dict[str, tuple[dict[str, Any], str]] = {
    "ready": ({"log": plain(place(-9), place(-8)), "meta": {"last_id": place(-1)}}, place(-8)),
    "nothing": ({"meta": {"last_id": place(-1), "cursor": place(-1)}}, "0-0"),
    "moved aside": (
        {"detached": plain(place(-5), place(-4)), "requeued": {place(-5): NOW - 5, place(-4): NOW - 4}},
        place(-4),
    ),
}


@pytest.mark.parametrize("what", PURGED)
def test_a_purge_of_all_says_what_really_went(lab: Lab, what: str) -> None:
    parts, highest = PURGED[what]
    lab.seed(**parts)

    lab.run(commands.purge(lab.keyspace, "orders", ""))

    assert trimmed(lab) == highest


@pytest.mark.parametrize("overflow", ["reject-publish", "reject-publish-dlx"])
def test_a_message_that_never_was_in_the_log_is_not_missed(lab: Lab, overflow: str) -> None:
    lab.seed(options={"max_length": 0, "overflow": overflow, "dead_letter": "dead"})

    lab.run(enqueue(lab, b"refused", Message(b"dead", ttl=0)))

    assert trimmed(lab) == "0-0"


@pytest.mark.parametrize("away", ["leases", "delayed", ""])
def test_the_end_of_a_lifetime_trims_every_message_that_it_takes(lab: Lab, away: str) -> None:
    places = [place(-9, i) for i in range(300)]
    ends = {"leases": token(50), "delayed": NOW + 50}
    parts: dict[str, Any] = {away: dict.fromkeys(places, ends[away])} if away else {}
    lab.seed(
        options={"expires": 5, "on_expire": "dead-letter", "dead_letter": "dead"},
        log=plain(*places),
        meta={"last_used_at": NOW - 5, "last_active_at": NOW - 5},
        **parts,
    )

    lab.run(commands.sweep(lab.known(), now=NOW))

    assert trimmed(lab) == places[249]


def test_a_record_that_has_no_such_field_gets_it(lab: Lab) -> None:
    lab.seed(log={place(-9): (at(0), b"x")}, expiry={place(-9): NOW})
    lab.client.hdel("rqttl:{orders}:meta", "trimmed_upto", "created_at")

    lab.run(commands.sweep(lab.known(), now=NOW))

    assert trimmed(lab) == place(-9)


def test_a_queue_that_is_declared_again_was_born_when_it_was_made(lab: Lab) -> None:
    def declare(now: int) -> None:
        lab.run(commands.declare(lab.keyspace, Options.plain(QueueOptions.read("orders", {})), now=now))

    declare(NOW)
    declare(NOW + 5)
    assert lab.snapshot()["orders"]["meta"]["created_at"] == NOW

    lab.run(commands.delete(lab.keyspace, "orders", if_unused=False, if_empty=False))
    declare(NOW + 7)
    assert lab.snapshot()["orders"]["meta"]["created_at"] == NOW + 7


def test_a_queue_that_a_dead_letter_made_keeps_its_birth_when_it_is_adopted(lab: Lab) -> None:
    lab.seed(options={"dead_letter": "dead"}, log=plain(place(-9)), leases={place(-9): token(50)})
    lab.run(commands.reject(lab.known(), [place(-9), token(50)], now=NOW))

    lab.run(commands.declare(lab.keyspace, Options.plain(QueueOptions.read("dead", {"max_length": 9})), now=NOW + 5))

    assert lab.snapshot()["dead"]["meta"]["created_at"] == NOW


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
STATES: dict[str, tuple[dict[str, Any], str]] = {
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


@pytest.mark.parametrize("how", STATES)
def test_the_highest_deleted_sequence_of_any_state_is_told(lab: Lab, how: str) -> None:
    parts, highest = STATES[how]
    lab.seed(**parts)
    lab.client.hset("rqttl:{orders}:meta", "last_id", place(-1))

    assert delete(lab) == lost(highest)


def test_a_queue_that_is_empty_and_lost_nothing_leaves_a_trace_without_a_loss(lab: Lab) -> None:
    lab.seed(meta={"last_id": place(-1), "cursor": place(-1), "acked": 7})

    assert delete(lab) == lost()
    assert WEEK - 60_000 < lab.client.pttl(KEY) <= WEEK


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
