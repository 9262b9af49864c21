"""What readers learn of the past: `trimmed_upto` and `tombstone` of losses, `arrivals` of dead letters."""

from collections.abc import Callable
from typing import Any

import pytest

from rqttl import Message
from rqttl.protocol import commands
from rqttl.protocol.commands import Command
from tests.encoded import enqueue_encoded
from tests.lua.states import NOW, Lab, at, enqueue, place, plain, plain_options, token


def trimmed(lab: Lab, queue: str = "orders") -> object:
    return lab.snapshot()[queue]["meta"]["trimmed_upto"]


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


def test_a_queue_that_a_dead_letter_made_keeps_its_birth_when_it_is_adopted(lab: Lab) -> None:
    lab.seed(options={"dead_letter": "dead"}, log=plain(place(-9)), leases={place(-9): token(50)})
    lab.run(commands.reject(lab.known(), [place(-9), token(50)], now=NOW))

    lab.run(commands.declare(lab.keyspace, plain_options("dead", max_length=9), now=NOW + 5))

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
        lab.run(commands.declare(lab.keyspace, plain_options(), now=now))

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


DEAD = "dead"


def bury(lab: Lab, count: int) -> None:
    """Let `count` expired messages of `orders` die at `NOW`, at most 250 in each sweep."""
    places = [place(-5_000, i) for i in range(count)]
    lab.seed(
        options={"dead_letter": DEAD}, log=dict.fromkeys(places, (at(-1), b"x")), expiry=dict.fromkeys(places, NOW)
    )
    for _ in range(-(-count // 250)):
        lab.run(commands.sweep(lab.known(), now=NOW))


def reject_one(lab: Lab) -> None:
    """Let one message of `orders` die at `NOW`."""
    lab.seed(options={"dead_letter": DEAD}, log=plain(place(-5)), leases={place(-5): token(5)})
    lab.run(commands.reject(lab.known(), (place(-5), token(5)), now=NOW))


def marks(lab: Lab, queue: str = DEAD) -> dict[str, int]:
    """The marks of a queue: sequences with numbers of arrivals. The score is the time of the sequence."""
    raw: Any = lab.client.zrange(lab.keyspace.key(queue, "arrivals"), 0, -1, withscores=True)
    found = {}
    for member, score in raw:
        sequence, count, *_ = member.decode().split(" ")
        assert int(sequence[:13]) == score
        found[sequence] = int(count)
    return found


def index(*pairs: tuple[str, int]) -> dict[str, int]:
    """The part `arrivals` with these marks."""
    return {f"{sequence} {count} {count} {count}": int(sequence[:13]) for sequence, count in pairs}


def test_sweeps_mark_the_letter_with_which_1024_more_have_arrived(lab: Lab) -> None:
    lab.seed(DEAD)

    bury(lab, 2_500)

    found, letters = marks(lab), list(lab.snapshot()[DEAD]["log"])
    assert list(found.values()) == [1_250, 2_250]
    assert {sequence: letters.index(sequence) + 1 for sequence in found} == found
    assert lab.snapshot()[DEAD]["meta"]["enqueued"] == 2_500


@pytest.mark.parametrize("before, marked", [(0, []), (1_022, []), (1_023, [1_024]), (1_024, []), (2_047, [2_048])])
def test_a_single_letter_is_marked_if_it_is_a_1024th(lab: Lab, before: int, marked: list[int]) -> None:
    lab.seed(DEAD, meta={"enqueued": before})

    reject_one(lab)

    assert list(marks(lab).values()) == marked


def test_a_mark_has_the_letters_up_to_it_and_the_bytes_of_their_headers_and_bodies(lab: Lab) -> None:
    lab.seed(DEAD)
    lab.run(enqueue_encoded(lab.known(DEAD), [(b"", b"sent")], now=NOW))

    bury(lab, 1_600)

    log = lab.snapshot()[DEAD]["log"]
    sizes = [len(header) + len(body) for header, body in log.values()]
    upto = list(log)[1_250]
    assert list(lab.snapshot()[DEAD]["arrivals"]) == [f"{upto} 1251 1250 {sum(sizes[1:1251])}"]
    meta = lab.snapshot()[DEAD]["meta"]
    assert (meta["enqueued"], meta["letters"], meta["letter_bytes"]) == (1_601, 1_600, sum(sizes[1:]))


def test_a_mark_removes_marks_before_the_first_letter_but_for_the_newest(lab: Lab) -> None:
    old = index((place(-9_000), 1), (place(-8_000), 2), (place(-7_000), 3), (place(-50), 4), (place(-40), 5))
    lab.seed(DEAD, log=plain(place(-50)), arrivals=old, meta={"enqueued": 1_023})

    reject_one(lab)

    assert marks(lab) == {place(-7_000): 3, place(-50): 4, place(-40): 5, place(): 1_024}


def test_one_call_removes_at_most_250_marks(lab: Lab) -> None:
    lab.seed(DEAD, arrivals=index(*((place(-9_000 + i), i) for i in range(600))), meta={"enqueued": 1_023})

    reject_one(lab)

    assert list(marks(lab).values()) == [*range(250, 600), 1_024]


def test_an_index_of_another_type_goes_and_the_letter_arrives(lab: Lab) -> None:
    lab.seed(DEAD, meta={"enqueued": 1_023})
    lab.seed(options={"dead_letter": DEAD}, log=plain(place(-5)), leases={place(-5): token(5)})
    lab.client.set(lab.keyspace.key(DEAD, "arrivals"), "no index")

    lab.run(commands.reject(lab.known(), (place(-5), token(5)), now=NOW))

    assert marks(lab) == {place(): 1_024}


OLD = index((place(-9), 1_024), (place(-8), 2_048), (place(-7), 3_072))


REMOVALS: dict[str, tuple[Callable[[Lab], Command], dict[str, int] | None]] = {
    "purge of all": (lambda lab: commands.purge(lab.keyspace, DEAD, ""), None),
    "purge of the first": (
        lambda lab: commands.purge(lab.keyspace, DEAD, "", tuple(place(ms) for ms in range(-10, -6))),
        index((place(-7), 3_072)),
    ),
    "purge in the middle": (lambda lab: commands.purge(lab.keyspace, DEAD, "", (place(-9), place(-8))), OLD),
    "discard": (
        lambda lab: commands.discard(lab.keyspace, DEAD, NOW, "0000000000000-000000", place(-7)),
        index((place(-7), 3_072)),
    ),
    "sweep": (lambda lab: commands.sweep(lab.known(DEAD), now=NOW), index((place(-7), 3_072))),
}


@pytest.mark.parametrize("how", REMOVALS)
def test_what_removes_letters_trims_the_index_to_the_first_that_stays(lab: Lab, how: str) -> None:
    command, left = REMOVALS[how]
    lab.seed(
        DEAD,
        options={"message_ttl": 7} if how == "sweep" else {},
        log=plain(*(place(ms) for ms in range(-10, -5))),
        arrivals=OLD,
        meta={"holds_dead_letters": 1},
    )

    lab.run(command(lab))

    assert lab.snapshot()[DEAD].get("arrivals") == left


@pytest.mark.parametrize("log", [{}, plain(place(-8))])
def test_a_deleted_queue_has_no_index(lab: Lab, log: dict[str, Any]) -> None:
    lab.seed(DEAD, log=log, arrivals=OLD)

    lab.run(commands.delete(lab.keyspace, DEAD, if_unused=False, if_empty=False, now=NOW))

    assert list(lab.snapshot()[DEAD]) == ["tombstone"]
