"""`peek` and `stats`: looking without changes, except for due work."""

from __future__ import annotations

from typing import Any

import pytest

from rqttl import flows
from rqttl.protocol import commands
from rqttl.protocol.keys import STATES
from rqttl.store.driver import driver_of
from rqttl.units import as_datetime
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


def test_peek_shows_every_message_in_order_with_its_state(lab: Lab) -> None:
    before = lab.seed(options={"message_ttl": 60}, **PARTS)

    _, _, now, retention, entries, details = peek(lab)

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


def test_peek_goes_on_after_a_place(lab: Lab) -> None:
    lab.seed(**PARTS)

    pages, after = [], ""
    while entries := peek(lab, after, 1)[4]:
        pages.append(entries[0][0].decode())
        after = pages[-1]

    assert pages == [place(-4), place(-3, 1), place(-3, 3), place(-2, 2)]


def test_peek_shows_what_is_not_swept_yet_and_leaves_it(lab: Lab) -> None:
    before = lab.seed(log={place(-1): (at(-1), b"x")}, expiry={place(-1): NOW - 1})

    assert len(peek(lab)[4]) == 1
    assert lab.snapshot() == before


def test_peek_bounds_the_bytes_of_an_answer(lab: Lab) -> None:
    lab.seed(log={place(-1, i): (b"", b"x" * 2**21) for i in range(6)})

    assert len(peek(lab)[4]) == 2


def test_stats_counts_each_state(lab: Lab) -> None:
    before = lab.seed(**PARTS, consumers={"a": NOW + 1, "gone": NOW})

    numbers = stats(lab)

    assert [numbers[name] for name in ("more", "ready", "bytes", "oldest", "consumers", "overdue")] == [
        0,
        2,
        2,
        3,
        1,
        0,
    ]
    assert (numbers["leases"], numbers["delayed"]) == ((1, b"%d" % token(7)), (1, b"%d" % (NOW + 9)))
    assert lab.snapshot() == before


def test_stats_of_an_empty_queue(lab: Lab) -> None:
    lab.seed()

    assert list(stats(lab).values()) == [0, 0, 0, b"", 0, 0, *[(0, b"") for _ in STATES]]


def test_stats_gives_the_score_of_the_next_lease_and_of_the_next_delay_to_end(lab: Lab) -> None:
    lab.seed(**{**PARTS, "leases": {place(-4): token(7), place(-2, 2): token(3)}})

    assert (stats(lab)["leases"], stats(lab)["delayed"]) == ((2, b"%d" % token(3)), (1, b"%d" % (NOW + 9)))


def test_statistics_say_when_the_next_lease_and_the_next_delay_end(lab: Lab) -> None:
    lab.seed(**PARTS)

    numbers = driver_of(lab.broker).perform(flows.reading.swept_stats("orders", now=NOW))

    assert (numbers.next_lease_end, numbers.next_delay_end) == (as_datetime(NOW + 7), as_datetime(NOW + 9))


def test_stats_gives_the_record_with_its_counters(lab: Lab) -> None:
    lab.seed(meta={"deaths:expired": 4, "acked": 5})

    command = commands.stats(lab.known(), now=NOW)
    values: Any = command.script.read(lab.run(command))
    record = values.counters

    fields = dict(zip(record[::2], record[1::2], strict=True))
    assert (fields[b"deaths:expired"], fields[b"acked"]) == (b"4", b"5")


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


@pytest.mark.parametrize("part,state", [("leases", b"leased"), ("delayed", b"delayed")])
def test_peek_shows_messages_that_are_out_after_they_were_moved_aside(lab: Lab, part: str, state: bytes) -> None:
    out: dict[str, Any] = {part: {place(-3, 3): token(7) if part == "leases" else NOW + 7}}
    lab.seed(detached=plain(place(-3, 3)), **out)

    _, _, _, _, entries, details = peek(lab)

    assert [one for one, _ in entries] == [place(-3, 3).encode()]
    assert details == [state, b"%d" % (NOW + 7), b"0"]
