"""Made-up histories, each with one broken promise."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tests.chaos.histories import LEASE, START, History


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


def late_at_a_last_look() -> History:
    history = History()
    history.send("a", told=[["stored", START + 50]])
    looked = [(START + 55) * 1000, f"{START}-a"]
    history.handle("a", claimed=60, deadline=START + 50, tickets={}, looked=looked)
    return history


def late_by_a_ticket() -> History:
    history = History()
    history.send("a", told=[["stored", START + 50]])
    tickets = {f"{START}-a": f"{START + 5_055}000"}
    history.handle("a", claimed=60, deadline=START + 50, tickets=tickets)
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


def sent_and_dead(reason: str, *, options: Mapping[str, Any] | None = None, **facts: Any) -> History:
    """A message of a queue with `options`, and its letter with these `facts`."""
    history = History(**(options or {}))
    history.send("a")
    history.letter("a", reason, **facts)
    return history


def death_before_its_deadline() -> History:
    return sent_and_dead("expired", died=START + 99)


def death_by_no_limit() -> History:
    return sent_and_dead("maxlen")


def death_by_a_limit_that_refuses() -> History:
    return sent_and_dead("maxlen", options={"max_length": 3, "overflow": "reject-publish"})


def rejected_by_nobody() -> History:
    return sent_and_dead("rejected")


def death_after_too_few_deliveries() -> History:
    return sent_and_dead("delivery_limit", options={"max_deliveries": 3}, count=2)


def death_in_another_queue() -> History:
    return sent_and_dead("expired", origin="another")


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


def options_of_other_policies() -> History:
    history = History()
    history.add("audit", problems=["q has other options", "q names another version"])
    return history


def message_that_nobody_sent() -> History:
    history = History()
    history.claim("a")
    return history


def letter_that_nobody_sent() -> History:
    history = History()
    history.add("letter", q="q/dead", id="a", reason="expired", origin="q", count=1, died=START, deadline=START)
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


def scripts_forgotten_by_nobody() -> History:
    history = History()
    history.add("error", type="ScriptsForgotten", text="enqueue")
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
    (late_at_a_last_look, {"late": 1}),
    (late_by_a_ticket, {"late": 1}),
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
    (options_of_other_policies, {"not in force": 2}),
    (message_that_nobody_sent, {"unexplained": 1}),
    (letter_that_nobody_sent, {"unexplained": 1}),
    (message_that_nobody_gets, {"unexplained": 1}),
    (report_of_a_wrong_reply, {"told wrongly": 1}),
    (report_of_an_error, {"unexplained": 1}),
    (scripts_forgotten_by_nobody, {"unexplained": 1}),
]
