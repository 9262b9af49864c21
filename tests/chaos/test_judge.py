"""The judge on histories that are made up: a sound one, each kind of violation, and what excuses it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from tests.chaos import judge
from tests.chaos.cast import FEW, RATED, SLOW
from tests.chaos.journal import HOUR, Event

#: Milliseconds since 1970 at which the histories begin, and those of a lease.
START, LEASE = 1_700_000_000_000, 1_000
HOUR_MS = HOUR // 1000
#: A queue, a sequence and a token: what settles a claim.
Held = tuple[str, str, str]
NUMBERS = ("ready", "leased", "delayed", "enqueued", "acked", "refused", "purged", "redriven", "deaths")


class History:
    """Made-up journals. `at` is the time of the next event, in ms after the start. What returns nothing else chains."""

    def __init__(self, *, dead: str | None = "q/dead", far: bool = False, passed: bool = False, **options: Any) -> None:
        self.events: list[Event] = []
        self.at = 0.0
        self._numbers = itertools.count()
        self.add("queue", q="q", options={"overflow": "drop-head", **options}, dead=dead, far=far, passed=passed)

    def add(self, kind: str, process: str = "p", **facts: Any) -> History:
        """Append an event."""
        self.at += 1
        self.events.append({"t": int((START + self.at) * 1000), "p": process, "k": kind, **facts})
        return self

    def later(self, ms: int = LEASE) -> History:
        """Let time pass."""
        self.at += ms
        return self

    def send(self, *ids: str, told: list[list[Any]] | None = None, outcome: str = "") -> History:
        """A call that sends messages, and its answer if it has one."""
        number = f"call {next(self._numbers)}"
        self.add("send", n=number, q="q", ids=list(ids))
        if outcome:
            self.add("sent", n=number, outcome=outcome)
        elif told != []:
            self.add("sent", n=number, told=told or [["stored", None]] * len(ids))
        return self

    def claim(self, id: str, process: str = "p", *, queue: str = "q", sequence: str = "", **more: Any) -> Held:
        """Deliver a message. Returns what settles it."""
        at = START + int(more.pop("claimed", self.at + 1))
        token = f"{at + LEASE}{next(self._numbers):03}"
        place = sequence or f"{START}-{id}"
        got = [place, id, more.pop("deadline", None), more.pop("count", 1), more.pop("died", 0)]
        self.add("claim", process, q=queue, token=token, lease=LEASE, got=[got], **more)
        return queue, place, token

    def settle(self, held: Held, how: str = "ack", process: str = "p", *, told: str = "done", **more: Any) -> History:
        """A claim is settled, or a reply is lost (`told=""`)."""
        queue, sequence, token = held
        number = f"settle {next(self._numbers)}"
        self.add("settle", process, n=number, q=queue, how=how, got=[[sequence, token]])
        if told:
            answer = {"done": [], "lost": [], told: [sequence]}
            self.add("settled", process, n=number, **answer, tokens=more)
        return self

    def handle(self, id: str, how: str = "ack", process: str = "p", *, told: str = "done", **more: Any) -> History:
        """A message is handed out and settled."""
        return self.settle(self.claim(id, process, **more), how, process, told=told)

    def letter(self, id: str, reason: str, **more: Any) -> History:
        """A dead letter is found at the end, and acked."""
        facts = {"origin": "q", "count": 1, "died": START + 100, "deadline": START + 100, **more}
        self.add("letter", q="q/dead", id=id, reason=reason, **facts)
        return self.handle(id, queue="q/dead", died=START, sequence=f"{START}-dead-{id}")

    def stats(self, queue: str = "q", *, drained: bool = False, **numbers: int) -> History:
        """A look at the numbers of the queue."""
        return self.add("stats", q=queue, numbers={**dict.fromkeys(NUMBERS, 0), **numbers}, drained=drained)

    def policy(self, value: int, *, told: bool = True) -> History:
        """A change of the policy, and its answer unless that is lost."""
        self.add("policy", value=value)
        return self.add("policy set", value=value) if told else self

    def policies(self, stored: int | None, **queues: int) -> History:
        """A look at the policy at the end, and at the queues."""
        return self.add("policies", stored=stored, queues=queues)

    def bad(self) -> dict[str, int]:
        """Return how many violations of each kind the judge finds."""
        return dict(judge.judge(self.events).bad)


def sent(*told: Any, **options: Any) -> History:
    """A queue with options, and the message `a`, with the answer to its sender."""
    return History(**options).send("a", told=[list(told)] if told else None)


def test_a_sound_history_in_which_all_that_at_least_once_allows_happens_has_no_violation() -> None:
    history = History(max_length=40, max_deliveries=2, message_ttl=None)
    history.send("a", "b", "c", "d", "e", "f").handle("a").handle("b", "nack").handle("b", count=2)
    history.handle("c", "reject").letter("c", "rejected")
    history.claim("d", "killed")
    history.later().handle("d", count=2)
    history.add("clock", was=0, ahead=HOUR)
    lost = history.claim("e", "slow", claimed=history.at + HOUR_MS)
    history.later().add("clock", was=HOUR, ahead=0)
    history.handle("e", count=2).settle(lost, "ack", "slow", told="lost").handle("f", told="")
    history.send("unknown", told=[]).handle("unknown").send("never stored", outcome="none")
    history.send("refused", "late", told=[["refused"], ["expired", START]])
    history.add("move", id="late", to="other")
    history.letter("late", "expired", died=START, deadline=START, origin="other").stats(
        drained=True, enqueued=7, acked=5, deaths=2
    )

    verdict = judge.judge(history.events)

    assert verdict.violations == []
    expected = {"sent": 10, "stored": 7, "delivered": 12, "settled": 8, "dead": 2}
    assert {name: verdict.figures[name] for name in expected} == expected


def twice_at_once(history: History) -> None:
    first, second = history.claim("a", "one"), history.claim("a", "two")
    history.settle(second, process="two").settle(first, process="one", told="lost")


def done_although_another_had_it(history: History) -> None:
    slow = history.claim("a", "slow")
    history.later().handle("a", "nack", "quick").settle(slow, process="slow")


def renewed_after_another_had_it(history: History) -> None:
    slow = history.claim("a", "slow")
    history.later().handle("a", "ack", "quick", told="").settle(slow, "renew", "slow")


def over_a_rate(history: History) -> None:
    history.add("rate").add("rate", set=SLOW).later()
    for id in map(str, range(FEW + 1)):
        history.send(id).handle(id, queue=RATED)
    history.add("rate")


def twice_within_a_renewed_lease(history: History) -> None:
    held = history.claim("a")
    history.settle(held, "renew", **{held[1]: f"{START + 5_000}999"}).later(2 * LEASE).handle("a")


def twice_in_another_hour(history: History) -> None:
    history.claim("a")
    history.add("clock", was=0, ahead=-HOUR).handle("a", claimed=50 - HOUR_MS)


LETTER: dict[str, Any] = {"origin": "q", "count": 1, "died": START, "deadline": START}


def late(**facts: Any) -> History:
    """The message `a` is handled, and dead from 50 ms after the start on."""
    return sent("stored", START + 50).handle("a", deadline=START + 50, **facts)


#: The kinds of violations, each with histories that show one.
BROKEN: dict[str, dict[str, Callable[[], Any]]] = {
    "lost": {
        "lost message": lambda: History().send("a", "b").handle("a"),
        "lost before a failover": lambda: sent().add(
            "forget", how="kill", since=START * 2000, until=START * 2000, queues=["q"]
        ),
        "lost change of the policy": lambda: History().policy(1).policy(2).policies(1),
        "lost change although a later one may hold": lambda: History().policy(1).policy(2, told=False).policies(3),
        "lost although its ack was told to be late": lambda: sent().handle("a", told="lost"),
        "lost letter": lambda: sent().handle("a", "reject"),
        "lost death on arrival": lambda: sent("expired", START),
        "lost before its deadline without a target": lambda: sent("stored", START + 10_000, dead=None).add(
            "note", text="the end"
        ),
        "lost duplicate": lambda: History(duplicate_window=1000).send("a", told=[]).send("a", told=[["duplicate"]]),
        "lost more than an unknown receive took": lambda: (
            History().send("a", "b", "c").add("taking", n="t", q="q", count=2)
        ),
    },
    "late": {
        "late delivery": lambda: late(claimed=50),
        "late at a last look": lambda: late(claimed=60, tickets={}, looked=[(START + 55) * 1000, f"{START}-a"]),
        "late by a ticket": lambda: late(claimed=60, tickets={f"{START}-a": f"{START + 5_055}000"}),
    },
    "twice": {
        "twice handled": lambda: sent().handle("a").handle("a", sequence="another"),
        "twice at once": lambda: acted(twice_at_once),
        "twice within a renewed lease": lambda: acted(twice_within_a_renewed_lease),
        "twice although the clock stepped back": lambda: acted(twice_in_another_hour),
        "twice stored within the window": lambda: (
            History(duplicate_window=1000).send("a", told=[]).send("a").handle("a").handle("a", sequence="another")
        ),
    },
    "over a limit": {
        "over the limit of messages": lambda: History(max_length=40).add(
            "depth", q="q", by="stats()", ready=41, bytes=0
        ),
        "over the limit of bytes": lambda: History(max_length_bytes=40).add(
            "depth", q="q", by="stats()", ready=1, bytes=41
        ),
        "delivered too often": lambda: sent(max_deliveries=2).handle("a", count=3),
        "over a rate": lambda: acted(over_a_rate, History()),
    },
    "out of order": {
        "batch out of order": lambda: (
            History().send("a", "b").handle("b", sequence=f"{START}-1").handle("a", sequence=f"{START}-2")
        )
    },
    "told wrongly": {
        "queue that does not follow its policy": lambda: History().policy(1).policies(1, q=2),
        "refused message appears": lambda: sent("refused").handle("a"),
        "failed message appears": lambda: History().send("a", outcome="none").handle("a"),
        "dead on arrival and delivered": lambda: sent("expired", START + 900).handle("a", deadline=START + 900),
        "another deadline than in the receipt": lambda: sent("stored", START + 500).handle("a", deadline=START + 600),
        "done although another had it": lambda: acted(done_although_another_had_it),
        "done and delivered again": lambda: acted(lambda history: history.handle("a").claim("a")),
        "renewed after another had it": lambda: acted(renewed_after_another_had_it),
        "death before its deadline": lambda: sent().letter("a", "expired", died=START + 99),
        "death by no limit": lambda: sent().letter("a", "maxlen"),
        "death by a limit that refuses": lambda: sent(max_length=3, overflow="reject-publish").letter("a", "maxlen"),
        "rejected by nobody": lambda: sent().letter("a", "rejected"),
        "death after too few deliveries": lambda: sent(max_deliveries=3).letter("a", "delivery_limit", count=2),
        "death in another queue": lambda: sent().letter("a", "expired", origin="another"),
        "numbers that do not add up": lambda: History().stats(enqueued=3, ready=1, acked=1),
        "more acks counted than made": lambda: sent().handle("a").stats(drained=True, enqueued=2, acked=2),
        "fewer acks counted than made": lambda: sent().handle("a").stats(drained=True),
        "report of a wrong reply": lambda: History().add("wrong", id="a", text="the receipt names b"),
    },
    "unexplained": {
        "message that nobody sent": lambda: acted(lambda history: history.claim("a"), History()),
        "letter that nobody sent": lambda: History().add("letter", q="q/dead", id="a", reason="expired", **LETTER),
        "message that nobody gets": lambda: History().stats(drained=True, enqueued=1, delayed=1),
        "report of an error": lambda: History().add("unexplained", text="TypeError"),
        "scripts forgotten by nobody": lambda: History().add("error", type="ScriptsForgotten", text="enqueue"),
    },
}


def acted(act: Callable[[History], object], history: History | None = None) -> History:
    """A history of the message `a` in which something happens that does not chain."""
    history = history or sent()
    act(history)
    return history


@pytest.mark.parametrize("kind, promise", [(kind, promise) for kind in BROKEN for promise in BROKEN[kind]])
def test_a_broken_promise_is_named(kind: str, promise: str) -> None:
    assert BROKEN[kind][promise]().bad() == {kind: 1}


# What excuses


@pytest.mark.parametrize(
    "pause, steps, wrong",
    [(2 * LEASE, [-HOUR], 0), (2 * LEASE, [HOUR], 1), (0, [-HOUR], 1), (0, [HOUR, 0], 0)],
    ids=["late, and back", "late, and ahead", "in time", "ahead, and back"],
)
def test_an_ack_after_the_end_of_its_lease_is_uncertain_only_if_the_clock_went_back(
    pause: int, steps: list[int], wrong: int
) -> None:
    history, was = sent("stored", None), 0
    slow = history.claim("a", "slow")
    history.later(pause)
    for ahead in steps:
        history.add("clock", was=was, ahead=ahead)
        if ahead == max(steps):
            history.handle("a", "ack", "quick", claimed=history.at + ahead // 1000)
        was = ahead

    assert history.settle(slow, process="slow").bad() == ({"twice": 1, "told wrongly": 1} if wrong else {})


@pytest.mark.parametrize("delayed, ahead, wrong", [(True, -HOUR, 0), (False, -HOUR, 1), (True, 0, 1)])
def test_messages_of_one_call_may_be_due_out_of_order_only_if_the_clock_stepped(
    delayed: bool, ahead: int, wrong: int
) -> None:
    history = History().add("send", n="1", q="q", ids=["a", "b"], delayed=delayed)
    if ahead:
        history.add("clock", was=0, ahead=ahead)
    history.add("sent", n="1", told=[["stored", None]] * 2)

    history.handle("b", sequence=f"{START}-1").handle("a", sequence=f"{START}-2")

    assert history.bad().get("out of order", 0) == wrong


def test_a_lease_may_have_ended_before_a_step_back_in_the_millisecond_of_the_next_claim() -> None:
    history = History().send("a").add("clock", was=0, ahead=HOUR)
    history.claim("a", "slow", claimed=history.at + 1 + HOUR_MS)
    history.later().at += 0.5
    history.add("clock", was=HOUR, ahead=0)

    assert history.handle("a", claimed=int(history.at), count=2).bad() == {}


def test_messages_that_an_unplanned_failover_forgets_are_counted_apart() -> None:
    history = History().send("a", "b").handle("b").handle("b", sequence="another")
    history.add("forget", how="kill", since=START * 1000, until=(START + 100) * 1000, queues=["q"])

    verdict = judge.judge(history.events)

    assert (verdict.violations, verdict.figures["forgot, kill"]) == ([], 2)


def test_a_call_that_was_repeated_after_a_failover_may_have_stored_two_copies() -> None:
    history = sent("stored", START + 500).handle("a", deadline=START + 600)
    history.add("forget", how="kill", since=START * 1000, until=(START + 100) * 1000, queues=["q"])

    assert history.bad() == {}


@pytest.mark.parametrize("stored", [1, None])
def test_a_failover_may_forget_a_change_of_the_policy(stored: int | None) -> None:
    history = History().policy(1).policy(2)
    history.add("forget", how="kill", since=START * 1000, until=(START + 100) * 1000, queues=["largest"])

    assert history.policies(stored).bad() == {}


def test_of_two_claims_of_one_message_in_one_call_only_the_newest_succeeds() -> None:
    history = sent()
    queue, place, old = history.claim("a")
    _, _, new = history.later(2 * LEASE).claim("a", count=2)
    history.add("settle", n="both", q=queue, how="ack", got=[[place, old], [place, new]])
    history.add("settled", n="both", done=[place], lost=[place], tokens={})

    assert history.bad() == {}


def twice_in_another_slot(*, far: bool) -> History:
    """A message that died after 50 ms, and whose letter is handled twice."""
    history = sent(far=far).later(100)
    for place in ("1", "2"):
        history.handle("a", queue="q/dead", died=START + 50, sequence=place)
    return history


def gone(deadline: int | None = START + 50, **options: Any) -> History:
    """A message with a deadline after 50 ms that is not seen again."""
    return sent("stored", deadline, far=True, **options).later(200).add("note", text="the end")


@pytest.mark.parametrize(
    "history, queue, since, found",
    [
        (twice_in_another_slot(far=True), "q", 60, "between"),
        (twice_in_another_slot(far=True), "q/dead", 60, "between"),
        (twice_in_another_slot(far=True), "q", 30, "twice"),
        (twice_in_another_slot(far=True), "another", 60, "twice"),
        (twice_in_another_slot(far=False), "q", 60, "twice"),
        (gone(), "q/dead", 60, "between"),
        (gone(), "q/dead", 30, "lost"),
        (gone(max_length=40), "q/dead", 30, "between"),
        (gone(None), "q/dead", 60, "lost"),
        (acted(lambda history: history.handle("a", "reject"), gone(None)), "q/dead", 260, "between"),
    ],
)
def test_a_failover_may_forget_a_step_of_a_letter_between_two_slots(
    history: History, queue: str, since: int, found: str
) -> None:
    ends = START + since + 10
    history.later(100).add("forget", how="kill", since=(START + since) * 1000, until=ends * 1000, queues=[queue])

    verdict = judge.judge(history.events)

    assert verdict.bad == ({} if found == "between" else {found: 1})
    assert verdict.figures["forgot, kill"] == 0
    assert verdict.figures["forgot, between slots"] == (found == "between")


@pytest.mark.parametrize("queue", [{"dead": None}, {"passed": True}])
def test_a_message_may_expire_without_a_trace_where_there_is_no_target_or_before_it_is_passed_on(
    queue: dict[str, Any],
) -> None:
    assert sent("stored", START + 10, **queue).later(20).add("note", text="the end").bad() == {}


@pytest.mark.parametrize(
    "ticket, claimed, violations",
    [(("a", 50), 60, 0), (("a", 50), 5_049, 0), (("a", 50), 5_050, 1), (("a", 51), 60, 1), (("b", 50), 60, 1)],
    ids=["in time", "to its end", "lease over", "after the deadline", "another message"],
)
def test_a_message_that_a_ticket_leased_before_its_deadline_may_be_handed_out_after_it(
    ticket: tuple[str, int], claimed: int, violations: int
) -> None:
    id, at = ticket
    tickets = {f"{START}-{id}": f"{START + at + 5_000}007"}

    assert late(claimed=claimed, tickets=tickets).bad().get("late", 0) == violations


@pytest.mark.parametrize("first, since, violations", [("a", 50, 0), ("a", 50.9, 0), ("a", 51, 1), ("b", 50, 1)])
def test_a_last_look_may_take_one_message_by_a_ticket_that_came_after_the_wakeup_list_was_read(
    first: str, since: float, violations: int
) -> None:
    looked = [int((START + since) * 1000), f"{START}-{first}"]

    assert late(claimed=60, looked=looked).bad().get("late", 0) == violations


def test_acks_that_a_consumer_collects_count_when_they_were_sent() -> None:
    history = History().send("a", "b")
    for id, told in (("a", "done"), ("b", "lost")):
        _, sequence, token = history.claim(id)
        history.add("settle", n=id, q="q", how="ack", got=[[sequence, token]], collected=True)
        answer: dict[str, Any] = {"done": [], "lost": [], told: [[sequence, token]]}
        history.add("acks", q="q", **answer)

    assert history.stats(drained=True, enqueued=1, acked=1).bad() == {"lost": 1}
