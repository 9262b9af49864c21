"""The judge on histories that are made up: a sound one, each kind of violation, and what excuses it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from tests.chaos import judge
from tests.chaos.journal import Event

#: Milliseconds since 1970 at which the histories begin.
START = 1_700_000_000_000
LEASE = 1_000
#: A queue, a sequence and a token: what settles a claim.
Held = tuple[str, str, str]
NUMBERS = {"ready": 0, "leased": 0, "delayed": 0, "enqueued": 0, "acked": 0, "refused": 0, "purged": 0, "redriven": 0,
           "deaths": 0}  # fmt: skip


class History:
    """Made-up journals. `at` is the time of the next event, in ms after the start."""

    def __init__(self, *, dead: str | None = "q.dead", **options: Any) -> None:
        self.events: list[Event] = []
        self.at = 0.0
        self._numbers = itertools.count()
        self.add("queue", q="q", options={"overflow": "drop-head", **options}, dead=dead)

    def add(self, kind: str, process: str = "p", **facts: Any) -> None:
        """Append an event."""
        self.at += 1
        self.events.append({"t": int((START + self.at) * 1000), "p": process, "k": kind, **facts})

    def send(self, *ids: str, told: list[list[Any]] | None = None, outcome: str = "") -> None:
        """A call that sends messages, and its answer if it has one."""
        number = f"call {next(self._numbers)}"
        self.add("send", n=number, q="q", ids=list(ids))
        if outcome:
            self.add("sent", n=number, outcome=outcome)
        elif told is None:
            self.add("sent", n=number, told=[["stored", None]] * len(ids))
        elif told:
            self.add("sent", n=number, told=told)

    def claim(self, id: str, process: str = "p", *, queue: str = "q", sequence: str = "", **more: Any) -> Held:
        """A message is handed out. Returns what settles it."""
        at = START + int(more.pop("claimed", self.at + 1))
        token = f"{at + LEASE}{next(self._numbers):03}"
        place = sequence or f"{START}-{id}"
        got = [place, id, more.pop("deadline", None), more.pop("count", 1), more.pop("deaths", 0)]
        self.add("claim", process, q=queue, token=token, lease=LEASE, got=[got], **more)
        return queue, place, token

    def settle(self, held: Held, how: str = "ack", process: str = "p", *, told: str = "done", **more: Any) -> None:
        """A claim is settled, or a reply is lost (`told=""`)."""
        queue, sequence, token = held
        number = f"settle {next(self._numbers)}"
        self.add("settle", process, n=number, q=queue, how=how, got=[[sequence, token]])
        if told:
            answer = {"done": [], "lost": [], told: [sequence]}
            self.add("settled", process, n=number, **answer, tokens=more)

    def handle(self, id: str, **more: Any) -> None:
        """A message is handed out and acked."""
        self.settle(self.claim(id, **more))

    def letter(self, id: str, reason: str, **more: Any) -> None:
        """A dead letter is found at the end, and acked."""
        facts = {"origin": "q", "count": 1, "died": START + 100, "deadline": START + 100, **more}
        self.add("letter", q="q.dead", id=id, reason=reason, **facts)
        self.handle(id, queue="q.dead", deaths=1, sequence=f"{START}-dead-{id}")

    def stats(self, queue: str = "q", *, drained: bool = False, **numbers: int) -> None:
        """A look at the numbers of the queue."""
        self.add("stats", q=queue, numbers={**NUMBERS, **numbers}, drained=drained)

    def bad(self) -> dict[str, int]:
        """Return how many violations of each kind the judge finds."""
        return dict(judge.judge(self.events).bad)


def sound() -> History:
    """A history in which everything happens that at-least-once delivery allows."""
    history = History(max_length=40, max_deliveries=2, message_ttl=None)
    history.send("a", "b", "c", "d", "e", "f")
    history.handle("a")
    history.settle(history.claim("b"), "nack")
    history.handle("b", count=2)
    history.settle(history.claim("c"), "reject")
    history.letter("c", "rejected")
    history.claim("d", "killed")
    history.at += LEASE
    history.handle("d", count=2)
    lost = history.claim("e", "slow")
    history.at += LEASE
    history.handle("e", count=2)
    history.settle(lost, "ack", "slow", told="lost")
    history.settle(history.claim("f"), told="")
    history.send("unknown", told=[])
    history.handle("unknown")
    history.send("never stored", outcome="none")
    history.send("refused", "late", told=[["refused"], ["expired", START]])
    history.letter("late", "expired", died=START, deadline=START)
    history.stats(drained=True, enqueued=7, acked=5, deaths=2)
    return history


def test_a_sound_history_has_no_violation() -> None:
    verdict = judge.judge(sound().events)

    assert verdict.violations == []
    figures = verdict.figures
    assert (figures["sent"], figures["stored"], figures["delivered"], figures["settled"], figures["dead"]) == (
        10, 7, 12, 8, 2,
    )  # fmt: skip


# A history for each kind of violation


def lost_message() -> History:
    history = History()
    history.send("a", "b")
    history.handle("a")
    return history


def lost_although_its_ack_was_told_to_be_late() -> History:
    history = History()
    history.send("a")
    history.settle(history.claim("a"), told="lost")
    return history


def lost_letter() -> History:
    history = History()
    history.send("a")
    history.settle(history.claim("a"), "reject")
    return history


def lost_death_on_arrival() -> History:
    history = History()
    history.send("a", told=[["expired", START]])
    return history


def lost_before_its_deadline_without_a_target() -> History:
    history = History(dead=None)
    history.send("a", told=[["stored", START + 10_000]])
    history.add("note", text="the end")
    return history


def lost_duplicate() -> History:
    history = History(duplicate_window=1000)
    history.send("a", told=[])
    history.send("a", told=[["duplicate"]])
    return history


def lost_more_than_an_unknown_receive_took() -> History:
    history = History()
    history.send("a", "b", "c")
    history.add("taking", n="t", q="q", count=2)
    return history


def late_delivery() -> History:
    history = History()
    history.send("a", told=[["stored", START + 50]])
    history.handle("a", claimed=50, deadline=START + 50)
    return history


def twice_handled() -> History:
    history = History()
    history.send("a")
    history.handle("a")
    history.handle("a", sequence="another")
    return history


def twice_at_once() -> History:
    history = History()
    history.send("a")
    first = history.claim("a", "one")
    second = history.claim("a", "two")
    history.settle(second, process="two")
    history.settle(first, process="one", told="lost")
    return history


def twice_stored_within_the_window() -> History:
    history = History(duplicate_window=1000)
    history.send("a", told=[])
    history.send("a")
    history.handle("a")
    history.handle("a", sequence="another")
    return history


def over_the_limit_of_messages() -> History:
    history = History(max_length=40)
    history.add("depth", q="q", by="stats()", ready=41, bytes=0)
    return history


def over_the_limit_of_bytes() -> History:
    history = History(max_length_bytes=40)
    history.add("depth", q="q", by="stats()", ready=1, bytes=41)
    return history


def delivered_too_often() -> History:
    history = History(max_deliveries=2)
    history.send("a")
    history.handle("a", count=3)
    return history


def batch_out_of_order() -> History:
    history = History()
    history.send("a", "b")
    history.handle("b", sequence=f"{START}-1")
    history.handle("a", sequence=f"{START}-2")
    return history


def refused_message_appears() -> History:
    history = History()
    history.send("a", told=[["refused"]])
    history.handle("a")
    return history


def failed_message_appears() -> History:
    history = History()
    history.send("a", outcome="none")
    history.handle("a")
    return history


def dead_on_arrival_and_delivered() -> History:
    history = History()
    history.send("a", told=[["expired", START + 900]])
    history.handle("a", deadline=START + 900)
    return history


def another_deadline_than_in_the_receipt() -> History:
    history = History()
    history.send("a", told=[["stored", START + 500]])
    history.handle("a", deadline=START + 600)
    return history


def done_although_another_had_it() -> History:
    history = History()
    history.send("a")
    slow = history.claim("a", "slow")
    history.at += LEASE
    history.settle(history.claim("a", "quick"), "nack", "quick")
    history.settle(slow, process="slow")
    return history


def done_and_delivered_again() -> History:
    history = History()
    history.send("a")
    history.handle("a")
    history.claim("a")
    return history


def renewed_after_another_had_it() -> History:
    history = History()
    history.send("a")
    slow = history.claim("a", "slow")
    history.at += LEASE
    history.settle(history.claim("a", "quick"), "ack", "quick", told="")
    history.settle(slow, "renew", "slow")
    return history


def death_before_its_deadline() -> History:
    history = History()
    history.send("a")
    history.letter("a", "expired", died=START + 99)
    return history


def death_by_no_limit() -> History:
    history = History()
    history.send("a")
    history.letter("a", "maxlen")
    return history


def death_by_a_limit_that_refuses() -> History:
    history = History(max_length=3, overflow="reject-publish")
    history.send("a")
    history.letter("a", "maxlen")
    return history


def rejected_by_nobody() -> History:
    history = History()
    history.send("a")
    history.letter("a", "rejected")
    return history


def death_after_too_few_deliveries() -> History:
    history = History(max_deliveries=3)
    history.send("a")
    history.letter("a", "delivery_limit", count=2)
    return history


def death_in_another_queue() -> History:
    history = History()
    history.send("a")
    history.letter("a", "expired", origin="another")
    return history


def numbers_that_do_not_add_up() -> History:
    history = History()
    history.stats(enqueued=3, ready=1, acked=1)
    return history


def more_acks_counted_than_made() -> History:
    history = History()
    history.send("a")
    history.handle("a")
    history.stats(drained=True, enqueued=2, acked=2)
    return history


def fewer_acks_counted_than_made() -> History:
    history = History()
    history.send("a")
    history.handle("a")
    history.stats(drained=True)
    return history


def message_that_nobody_sent() -> History:
    history = History()
    history.claim("a")
    return history


def letter_that_nobody_sent() -> History:
    history = History()
    history.add("letter", q="q.dead", id="a", reason="expired", origin="q", count=1, died=START, deadline=START)
    return history


def message_that_nobody_gets() -> History:
    history = History()
    history.stats(drained=True, enqueued=1, delayed=1)
    return history


def report_of_a_wrong_reply() -> History:
    history = History()
    history.add("wrong", id="a", text="the receipt names b")
    return history


def report_of_an_error() -> History:
    history = History()
    history.add("unexplained", text="TypeError")
    return history


BROKEN: list[tuple[Callable[[], History], dict[str, int]]] = [
    (lost_message, {"lost": 1}),
    (lost_although_its_ack_was_told_to_be_late, {"lost": 1}),
    (lost_letter, {"lost": 1}),
    (lost_death_on_arrival, {"lost": 1}),
    (lost_before_its_deadline_without_a_target, {"lost": 1}),
    (lost_duplicate, {"lost": 1}),
    (lost_more_than_an_unknown_receive_took, {"lost": 1}),
    (late_delivery, {"late": 1}),
    (twice_handled, {"twice": 1}),
    (twice_at_once, {"twice": 1}),
    (twice_stored_within_the_window, {"twice": 1}),
    (over_the_limit_of_messages, {"over a limit": 1}),
    (over_the_limit_of_bytes, {"over a limit": 1}),
    (delivered_too_often, {"over a limit": 1}),
    (batch_out_of_order, {"out of order": 1}),
    (refused_message_appears, {"told wrongly": 1}),
    (failed_message_appears, {"told wrongly": 1}),
    (dead_on_arrival_and_delivered, {"told wrongly": 1}),
    (another_deadline_than_in_the_receipt, {"told wrongly": 1}),
    (done_although_another_had_it, {"told wrongly": 1}),
    (done_and_delivered_again, {"told wrongly": 1}),
    (renewed_after_another_had_it, {"told wrongly": 1}),
    (death_before_its_deadline, {"told wrongly": 1}),
    (death_by_no_limit, {"told wrongly": 1}),
    (death_by_a_limit_that_refuses, {"told wrongly": 1}),
    (rejected_by_nobody, {"told wrongly": 1}),
    (death_after_too_few_deliveries, {"told wrongly": 1}),
    (death_in_another_queue, {"told wrongly": 1}),
    (numbers_that_do_not_add_up, {"told wrongly": 1}),
    (more_acks_counted_than_made, {"told wrongly": 1}),
    (fewer_acks_counted_than_made, {"told wrongly": 1}),
    (message_that_nobody_sent, {"unexplained": 1}),
    (letter_that_nobody_sent, {"unexplained": 1}),
    (message_that_nobody_gets, {"unexplained": 1}),
    (report_of_a_wrong_reply, {"told wrongly": 1}),
    (report_of_an_error, {"unexplained": 1}),
]


@pytest.mark.parametrize("make, violations", BROKEN, ids=[make.__name__ for make, _ in BROKEN])
def test_a_broken_promise_is_named(make: Callable[[], History], violations: dict[str, int]) -> None:
    assert make().bad() == violations


# What excuses


def test_what_an_unplanned_failover_forgets_is_counted_apart() -> None:
    history = History()
    history.send("a", "b")
    history.handle("b")
    history.handle("b", sequence="another")
    history.add("forget", since=START * 1000, until=(START + 100) * 1000)

    verdict = judge.judge(history.events)

    assert (verdict.violations, verdict.figures["server forgot"]) == ([], 2)


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


def test_a_message_that_was_handed_over_on_arrival_does_not_expire() -> None:
    history = History()
    history.send("a", told=[["stored", START + 50]])
    history.handle("a", claimed=60, deadline=START + 50, handed=f"{START}-a")

    assert history.bad() == {}


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
