"""`peek`, `stats` and `preview`: looking without changes, except for due work."""

from typing import Any

import pytest

from rqttl import QueueOptions
from rqttl.protocol import commands
from rqttl.protocol.keys import STATES
from tests.lua.states import NOW, Lab, at, place, plain, token


def peek(lab: Lab, after: str = "", limit: int = 10) -> Any:
    return lab.run(commands.peek(lab.keyspace, "orders", after=after, limit=limit, now=NOW))


def stats(lab: Lab, now: int = NOW) -> dict[str, Any]:
    command = commands.stats(lab.known(), now=now)
    values: Any = command.script.read(lab.run(command))
    counts, scores = values.states[: len(STATES)], values.states[len(STATES) :]
    names = ("more", "ready", "bytes", "oldest", "consumers", "overdue")
    return {name: getattr(values, name) for name in names} | dict(
        zip(STATES, zip(counts, scores, strict=True), strict=True)
    )


PARTS: dict[str, Any] = {
    "log": plain(place(-4), place(-3, 1), place(-2, 2)),
    "detached": plain(place(-3, 3)),
    "leases": {place(-4): token(7)},
    "delayed": {place(-3, 1): NOW + 9},
    "requeued": {place(-3, 3): NOW - 3},
    "failures": {place(-4): 2, place(-3, 1): 1},
}


@pytest.mark.parametrize("aside", [[], [place(-4)], [place(-3, 1)]], ids=["in the log", "leased", "delayed"])
def test_peek_shows_every_message_in_order_with_its_state_also_if_it_was_moved_aside(
    lab: Lab, aside: list[str]
) -> None:
    log = {one: entry for one, entry in PARTS["log"].items() if one not in aside}
    detached = {**PARTS["detached"], **plain(*aside)}
    before = lab.seed(options={"message_ttl": 60}, **{**PARTS, "log": log, "detached": detached})

    _, _, now, retention, entries, details, *_ = peek(lab)

    assert (now, retention) == (NOW, b"60")
    assert [(one, body) for one, (_, body) in entries] == [
        (place(-4).encode(), b"0"),
        (place(-3, 1).encode(), b"1"),
        (place(-3, 3).encode(), b"3"),
        (place(-2, 2).encode(), b"2"),
    ]
    states = [tuple(details[i : i + 3]) for i in range(0, len(details), 3)]
    assert states == [
        (b"leased", b"%d" % (NOW + 7), b"2"),
        (b"delayed", b"%d" % (NOW + 9), b"1"),
        (b"ready", b"", b"0"),
        (b"ready", b"", b"0"),
    ]
    assert lab.snapshot() == before


@pytest.mark.parametrize("count,more", [(250, 1), (249, 0), (600, 1)])
def test_stats_sweeps_first_as_far_as_one_call_may_go(lab: Lab, count: int, more: int) -> None:
    places = [place(-9, i) for i in range(count)]
    lab.seed(log={one: (at(0), b"x") for one in places}, expiry=dict.fromkeys(places, NOW))

    found = stats(lab)

    assert (found["ready"], found["more"]) == (max(0, count - 250), more)


OVERDUE: dict[str, dict[str, Any]] = {
    "a lease": {"log": plain(place(-90)), "leases": {place(-90): token(-7)}},
    "a delay": {"log": plain(place(-90)), "delayed": {place(-90): NOW - 7}},
    "a deadline": {"log": {place(-90): (at(-7), b"x")}, "expiry": {place(-90): NOW - 7}},
    "retention": {"log": plain(place(-67)), "options": {"message_ttl": 60}},
    "the oldest of several": {
        "log": plain(place(-90), place(-90, 1)),
        "leases": {place(-90): token(-2)},
        "delayed": {place(-90, 1): NOW - 7},
    },
}


@pytest.mark.parametrize("due", [-20, -7, None], ids=["bound too low", "bound exact", "at once"])
@pytest.mark.parametrize("what", OVERDUE)
def test_lag_is_how_long_the_oldest_due_work_had_waited_before_the_sweep(lab: Lab, what: str, due: int | None) -> None:
    lab.seed(**OVERDUE[what], meta={"due_at": 0 if due is None else NOW + due})

    assert [stats(lab)["overdue"], stats(lab)["overdue"]] == [7, 0]


@pytest.mark.parametrize("due", [0, NOW - 20, NOW, NOW + 1, ""])
def test_there_is_no_lag_where_nothing_was_overdue(lab: Lab, due: int | str) -> None:
    lab.seed(log=plain(place(-90), place(-90, 1)), leases={place(-90): token(1)}, meta={"due_at": due})

    assert stats(lab)["overdue"] == 0


def test_stats_rings_for_what_came_back(lab: Lab) -> None:
    lab.seed(log=plain(place(-1)), leases={place(-1): token(0)}, waiters={"c": NOW + 5})

    assert stats(lab)["ready"] == 1
    assert lab.snapshot()["orders"]["wakeup"] == [""]


READY: dict[str, Any] = {
    "log": {place(-30): (b"", b"four"), place(-20): (at(9), b"ab"), **plain(place(-10), place(-9, 1))},
    "detached": {place(-40): (b"", b"x")},
    "requeued": {place(-40): NOW - 40},
    "expiry": {place(-20): NOW + 9},
}


def preview(lab: Lab, **options: object) -> tuple[int, int]:
    """The counts of expired and trimmed messages, after as many calls as it takes."""
    after = QueueOptions.read_stored("orders", options)
    walk, more = commands.Walk(), 1
    while more:
        _, _, more, *state = lab.run(commands.preview(lab.known(), after, walk, now=NOW))
        walk = commands.Walk(*state)
    return int(walk.expired), int(walk.trimmed)


@pytest.mark.parametrize(
    "options, counts",
    [
        ({}, (0, 0)),
        ({"message_ttl": "41ms"}, (0, 0)),
        ({"message_ttl": "40ms"}, (1, 0)),
        ({"message_ttl": "20ms"}, (3, 0)),
        ({"message_ttl": 0}, (5, 0)),
        ({"max_length": 5}, (0, 0)),
        ({"max_length": 3}, (0, 2)),
        ({"max_length": 0}, (0, 5)),
        ({"max_length_bytes": 9}, (0, 0)),
        ({"max_length_bytes": 8}, (0, 1)),
        ({"max_length_bytes": 7}, (0, 2)),
        ({"max_length": 4, "max_length_bytes": 3}, (0, 3)),
        ({"message_ttl": "30ms", "max_length": 2}, (2, 1)),
        ({"message_ttl": "30ms", "max_length_bytes": 4}, (2, 0)),
        ({"max_length": 0, "overflow": "reject-publish"}, (0, 0)),
    ],
)
def test_the_first_messages_are_counted_by_what_they_would_die_of(
    lab: Lab, options: dict[str, object], counts: tuple[int, int]
) -> None:
    before = lab.seed(**READY)

    assert preview(lab, **options) == counts
    assert lab.snapshot() == before


@pytest.mark.parametrize("behind", [0, 100, 250, 400])
def test_a_walk_over_many_messages_takes_several_calls_and_misses_none(lab: Lab, behind: int) -> None:
    places = [place(-1000 + i) for i in range(700)]
    returned = {one: NOW - 1000 + i for i, one in enumerate(places[:behind])}
    parts: dict[str, Any] = {"requeued": returned, "meta": {"cursor": places[behind - 1]}} if behind else {}
    lab.seed(log=plain(*places), **parts)

    assert preview(lab, message_ttl="400ms") == (601, 0)
    assert preview(lab, max_length=1) == (0, 699)
    assert preview(lab, message_ttl="700ms", max_length=10) == (301, 389)
