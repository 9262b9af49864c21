"""Made-up journals for the judge, and a history in which everything happens that at-least-once delivery allows."""

from __future__ import annotations

import itertools
from typing import Any

from tests.chaos import judge
from tests.chaos.journal import Event

#: Milliseconds since 1970 at which the histories begin.
START = 1_700_000_000_000
LEASE = 1_000
#: A queue, a sequence and a token: what settles a claim.
Held = tuple[str, str, str]
NUMBERS = {
    "ready": 0,
    "leased": 0,
    "delayed": 0,
    "enqueued": 0,
    "acked": 0,
    "refused": 0,
    "purged": 0,
    "redriven": 0,
    "deaths": 0,
}


class History:
    """Made-up journals. `at` is the time of the next event, in ms after the start."""

    def __init__(self, *, dead: str | None = "q/dead", **options: Any) -> None:
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
        """Deliver a message. Returns a function that settles it."""
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
        self.add("letter", q="q/dead", id=id, reason=reason, **facts)
        self.handle(id, queue="q/dead", deaths=1, sequence=f"{START}-dead-{id}")

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
