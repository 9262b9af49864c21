"""Circles of dead letters: those with a rejection in them go round for ever, automatic ones end and are counted."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.clocked import Clocked
from tests.contract.looks import bodies, dead, dropped, one, taken


def ring(clocked: Clocked, *names: str, **options: Any) -> None:
    """Queues that dead-letter to the next one, the last to the first."""
    for name, following in zip(names, (*names[1:], names[0]), strict=True):
        clocked.declare_queue(name, dead_letter=following, **options)


@pytest.mark.spec("CYC-01", "CYC-04", "CYC-09")
@pytest.mark.parametrize("names", [("a", "b"), ("a", "b", "c")], ids=len)
def test_a_message_that_only_expires_goes_round_once_and_is_dropped_and_counted(
    clocked: Clocked, names: tuple[str, ...]
) -> None:
    ring(clocked, *names, message_ttl="100ms")
    clocked.queue("a").enqueue(b"x")

    for name in names:
        clocked.advance(100)
        clocked.queue(name).sweep()

    assert [bodies(clocked.queue(name)) for name in names] == [[]] * len(names)
    assert [dead(clocked.queue(name)) for name in names] == [{"expired": 1}] * len(names)
    assert [dropped(clocked.queue(name)) for name in names] == [*[{}] * (len(names) - 1), {"cycle": 1}]


@pytest.mark.spec("CYC-02")
def test_a_message_that_a_limit_pushes_round_a_circle_is_dropped_and_the_others_stay(clocked: Clocked) -> None:
    ring(clocked, "a", "b", max_length=1)
    for body in (b"1", b"2", b"3"):
        clocked.queue("a").enqueue(body)

    assert (bodies(clocked.queue("a")), bodies(clocked.queue("b"))) == ([b"3"], [b"2"])
    assert dropped(clocked.queue("b")) == {"cycle": 1}


@pytest.mark.spec("CYC-03", "CYC-05")
def test_a_queue_may_be_its_own_target_for_rejections_for_ever(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", dead_letter_rejected="q")
    queue.enqueue(b"x", id="mine")

    for count in range(1, 30):
        clocked.advance(1)
        one(queue).reject()
        assert queue.peek()[0].deaths[0].count == count

    assert (one(queue).id, dropped(queue)) == ("mine", {})


@pytest.mark.spec("CYC-06", "CYC-04")
def test_a_retry_circle_with_a_rejection_in_it_goes_round_for_ever(clocked: Clocked) -> None:
    clocked.declare_queue("work", dead_letter="wait")
    clocked.declare_queue("wait", dead_letter="wait-again", message_ttl="100ms")
    clocked.declare_queue("wait-again", dead_letter="work", message_ttl="100ms")
    clocked.queue("work").enqueue(b"x")

    for _ in range(10):
        one(clocked.queue("work")).reject()
        for name in ("wait", "wait-again"):
            clocked.advance(100)
            clocked.queue(name).sweep()

    assert [death.count for death in one(clocked.queue("work")).deaths] == [10, 10, 10]


@pytest.mark.spec("CYC-04")
def test_a_rejection_before_the_circle_was_entered_does_not_keep_it_going(clocked: Clocked) -> None:
    clocked.declare_queue("start", dead_letter="a")
    ring(clocked, "a", "b", message_ttl="100ms")
    clocked.queue("start").enqueue(b"x")
    one(clocked.queue("start")).reject()

    for name in ("a", "b"):
        clocked.advance(100)
        clocked.queue(name).sweep()

    assert dropped(clocked.queue("b")) == {"cycle": 1}


@pytest.mark.spec("CYC-08")
def test_a_circle_of_failed_deliveries_is_an_automatic_one(clocked: Clocked) -> None:
    ring(clocked, "a", "b", max_deliveries=1)
    clocked.queue("a").enqueue(b"x")

    one(clocked.queue("a")).nack()
    one(clocked.queue("b")).nack()

    assert (bodies(clocked.queue("a")), dropped(clocked.queue("b"))) == ([], {"cycle": 1})
    assert dead(clocked.queue("b")) == {"delivery_limit": 1}


@pytest.mark.spec("CYC-10")
def test_once_the_circle_is_opened_letters_pass_again(clocked: Clocked) -> None:
    ring(clocked, "a", "b", message_ttl="100ms")
    clocked.queue("a").enqueue(b"x")
    clocked.advance(100)
    clocked.queue("a").sweep()
    clocked.queue("b").update(dead_letter="c")
    clocked.advance(100)

    clocked.queue("b").sweep()

    assert taken(clocked.queue("c")) == [b"x"]


def die(clocked: Clocked, name: str, reason: str, target: str) -> None:
    """The message in the queue dies of `reason` and goes to `target`, if it may."""
    queue = clocked.queue(name)
    queue.update(dead_letter=target)
    if reason == "expired":
        queue.update(message_ttl=0)
    elif reason == "maxlen":
        queue.update(max_length=0)
    elif reason == "delivery_limit":
        queue.update(max_deliveries=1)
        one(queue).nack()
    else:
        one(queue).reject()
    queue.update(message_ttl=None, max_length=None, max_deliveries=None, dead_letter=None)


@pytest.mark.spec("CYC-04", "CYC-05", "CYC-08")
@pytest.mark.parametrize(
    "deaths, passes",
    [
        ("1 expired 2 expired 1", False),
        ("1 expired 2 rejected 1", True),
        ("1 rejected 2 expired 1", True),
        ("1 expired 2 maxlen 3 delivery_limit 1", False),
        ("1 expired 2 rejected 3 expired 1", True),
        ("1 rejected 2 expired 3 expired 2", False),
        ("1 expired 2 expired 3 expired 2", False),
        ("1 expired 2 expired 3 rejected 2 expired 3", True),
        ("1 rejected 2 expired 1 expired 2", False),
        ("1 rejected 2 expired 1 rejected 2 expired 1", True),
        ("1 expired 2 expired 3 expired 4", True),
    ],
)
def test_the_walk_from_the_newest_death_to_the_target_decides(clocked: Clocked, deaths: str, passes: bool) -> None:
    words = deaths.split()
    names, reasons = words[::2], words[1::2]
    for name in set(names):
        clocked.declare_queue(name)
    clocked.queue(names[0]).enqueue(b"x")

    for name, reason, target in zip(names, reasons, names[1:], strict=False):
        die(clocked, name, reason, target)

    assert bodies(clocked.queue(names[-1])) == ([b"x"] if passes else [])
    assert dropped(clocked.queue(names[-2])) == ({} if passes else {"cycle": 1})
    assert dead(clocked.queue(names[-2]))[reasons[-1]] >= 1
