"""The judge on histories that are made up: a sound one, each kind of violation, and what excuses it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.chaos import judge
from tests.chaos.broken import BROKEN
from tests.chaos.histories import LEASE, START, History, sound


def test_a_sound_history_has_no_violation() -> None:
    verdict = judge.judge(sound().events)

    assert verdict.violations == []
    figures = verdict.figures
    assert (figures["sent"], figures["stored"], figures["delivered"], figures["settled"], figures["dead"]) == (
        10,
        7,
        12,
        8,
        2,
    )


@pytest.mark.parametrize("make, violations", BROKEN, ids=[make.__name__ for make, _ in BROKEN])
def test_a_broken_promise_is_named(make: Callable[[], History], violations: dict[str, int]) -> None:
    assert make().bad() == violations


# What excuses


def test_messages_that_an_unplanned_failover_forgets_are_counted_apart() -> None:
    history = History()
    history.send("a", "b")
    history.handle("b")
    history.handle("b", sequence="another")
    history.add("forget", since=START * 1000, until=(START + 100) * 1000)

    verdict = judge.judge(history.events)

    assert (verdict.violations, verdict.figures["server forgot"]) == ([], 2)


def test_of_two_claims_of_one_message_in_one_call_only_the_newest_succeeds() -> None:
    history = History()
    history.send("a")
    queue, place, old = history.claim("a")
    history.at += 2 * LEASE
    _, _, new = history.claim("a", count=2)
    history.add("settle", n="both", q=queue, how="ack", got=[[place, old], [place, new]])
    history.add("settled", n="both", done=[place], lost=[place], tokens={})

    assert history.bad() == {}


def test_a_failover_excuses_nothing_that_happened_before_it() -> None:
    history = History()
    history.send("a")
    history.add("forget", since=(START + 500) * 1000, until=(START + 600) * 1000)

    assert history.bad() == {"lost": 1}


def test_a_message_may_expire_without_a_trace_where_there_is_no_target() -> None:
    history = History(dead=None)
    history.send("a", told=[["stored", START + 10]])
    history.at = 20
    history.add("note", text="the end")

    assert history.bad() == {}


@pytest.mark.parametrize(
    "handed, ticket, claimed, late",
    [
        ("in time", ("a", 50), 60, 0),
        ("to its end", ("a", 50), 5_049, 0),
        ("lease over", ("a", 50), 5_050, 1),
        ("after the deadline", ("a", 51), 60, 1),
        ("another message", ("b", 50), 60, 1),
    ],
)
def test_a_message_that_a_ticket_leased_before_its_deadline_may_be_handed_out_after_it(
    handed: str, ticket: tuple[str, int], claimed: int, late: int
) -> None:
    history = History()
    history.send("a", told=[["stored", START + 50]])
    id, at = ticket
    tickets = {f"{START}-{id}": f"{START + at + 5_000}007"}
    history.handle("a", claimed=claimed, deadline=START + 50, tickets=tickets)

    assert history.bad().get("late", 0) == late


@pytest.mark.parametrize("first, since, late", [("a", 50, 0), ("a", 50.9, 0), ("a", 51, 1), ("b", 50, 1)])
def test_a_last_look_may_take_one_message_by_a_ticket_that_came_after_the_wakeup_list_was_read(
    first: str, since: float, late: int
) -> None:
    history = History()
    history.send("a", told=[["stored", START + 50]])
    looked = [int((START + since) * 1000), f"{START}-{first}"]
    history.handle("a", claimed=60, deadline=START + 50, looked=looked)

    assert history.bad().get("late", 0) == late


def test_a_renewed_lease_is_longer() -> None:
    history = History()
    history.send("a")
    held = history.claim("a", "one")
    history.settle(held, "renew", "one", **{held[1]: f"{START + 5_000}999"})
    history.at = 4_000
    history.claim("a", "two")

    assert history.bad()["twice"] == 1


def test_acks_that_a_consumer_collects_count_when_they_were_sent() -> None:
    history = History()
    history.send("a", "b")
    for id, told in (("a", "done"), ("b", "lost")):
        _, sequence, token = history.claim(id)
        history.add("settle", n=id, q="q", how="ack", got=[[sequence, token]], collected=True)
        answer: dict[str, Any] = {"done": [], "lost": [], told: [[sequence, token]]}
        history.add("acks", q="q", **answer)
    history.stats(drained=True, enqueued=1, acked=1)

    assert history.bad() == {"lost": 1}
