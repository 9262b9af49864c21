"""The facts of a campaign as its journals have them: the end of each message, and its holder at each time. Pure."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.chaos.journal import HOUR, SECOND, Event

#: A pair that names one handing-out of one message: its sequence and the token of its lease.
Pair = tuple[str, str]


#: Within this many µs of its event a step of the clock takes place.
MOMENT = SECOND // 2


class Step(NamedTuple):
    """A step of the clock of Redis, and how far it was ahead before and after."""

    at: int
    was: int
    ahead: int

    @property
    def latest(self) -> int:
        """The latest time that Redis can have had before it."""
        return self.at + MOMENT + self.was


@dataclass
class Attempt:
    """One try to settle a claim. `done` is None while no reply is known; `granted` is the end of a renewed lease."""

    how: str
    began: int
    done: bool | None = None
    ended: int | None = None
    granted: int | None = None


@dataclass
class Claim:
    """One handing-out of one message. Times are in microseconds; `granted` is the end of its lease, 0 without one.

    `died` is its newest death in ms, 0 without one. When it `began`, Redis `told` this as the time.
    """

    process: str
    queue: str
    sequence: str
    id: str
    written: int
    began: int
    told: int
    deadline: int | None
    count: int
    died: int
    granted: int
    handed: bool = False
    attempts: list[Attempt] = field(default_factory=list)

    @property
    def final(self) -> Attempt | None:
        """The attempt that ended the message for good, as it was told."""
        return next((one for one in self.attempts if one.done and one.how in ("ack", "reject")), None)

    @property
    def unknown(self) -> bool:
        """Return True if an attempt may have ended the message, and nobody was told."""
        return any(one.done is None and one.how in ("ack", "reject") for one in self.attempts)

    def leased_until(self, instant: int) -> int:
        """Return the end of its lease as of an instant."""
        renewals = [one.granted for one in self.attempts if one.granted is not None and one.began <= instant]
        return renewals[-1] if renewals else self.granted

    def given_back_by(self, instant: int) -> bool:
        """Return True if it may have been given back before an instant.

        An attempt that was told that the lease had ended may have ended it: the call is repeated after a lost reply.
        """
        return any(one.how in ("nack", "release") and one.began <= instant for one in self.attempts)


@dataclass
class Sent:
    """All that is known of one message: the queue it was sent to, and the answers to its sender."""

    id: str
    queue: str
    began: int
    ended: int
    stored: int = 0
    unknown: int = 0
    refused: int = 0
    duplicate: int = 0
    expired: int = 0
    deadline: int | None = None
    deadline_known: bool = False
    call: str = ""
    #: The queues that a move may have brought it to.
    moved: set[str] = field(default_factory=set)


#: Milliseconds for which a message stays leased that was handed to a waiting consumer.
PICKUP = 5_000


def _was_handed(event: Event, sequence: str, deadline: int | None, told: int, ahead: int) -> bool:
    """Return True if a ticket explains a message after its deadline: it was leased for a waiting consumer before that.

    Either the ticket was seen, and the lease that it names began in time and holds; or it came after the last look
    at the wake-up list, so the message was alive then. A last look takes one message by a ticket, and takes it first.
    """
    if deadline is None:
        return False
    token = event.get("tickets", {}).get(sequence)
    if token is not None:
        ends = int(token) // 1000
        return ends - PICKUP <= deadline and told // 1000 < ends
    since, first = event.get("looked") or (0, "")
    return sequence == first and bool(deadline * 1000 + 999 >= since + ahead)


class Facts:
    """The events of a campaign, sorted by their subjects."""

    def __init__(self, events: Iterable[Event]) -> None:
        self.queues: dict[str, Event] = {}
        self.sent: dict[str, Sent] = {}
        self.claims: dict[str, list[Claim]] = defaultdict(list)
        #: All events by their kind.
        self.seen: dict[str, list[Event]] = defaultdict(list)
        self.forgettable: dict[str, list[tuple[int, int, str]]] = defaultdict(list)
        self.forgotten_scripts: list[Event] = []
        self.counted: Counter[str] = Counter()
        self.lost_takings: Counter[str] = Counter()
        self.calls: dict[str, list[str]] = {}
        #: The calls whose messages had a delay.
        self.delayed: set[str] = set()
        self.last = 0
        #: When the last answered change of the policy began and ended, and the values that the policy may have since.
        self.policy_set: tuple[int, int] = (0, 0)
        self.policy_values: list[tuple[int, int | None]] = [(0, None)]
        #: How far Redis is ahead, and the steps of its clock.
        self.ahead = 0
        self.steps: list[Step] = []
        self._held: dict[tuple[str, str, str], Claim] = {}
        self._settles: dict[str, tuple[str, list[tuple[Claim, Attempt]]]] = {}
        self._collected: dict[tuple[str, str, str], tuple[Claim, Attempt]] = {}
        self._takings: dict[str, Event] = {}
        self._taking_since: dict[str, int] = {}
        for event in events:
            self.last = event["t"]
            self.seen[event["k"]].append(event)
            getattr(self, f"_{event['k'].replace(' ', '_')}", lambda _: None)(event)
        for event in self._takings.values():
            self.lost_takings[event["q"]] += event["count"]

    # Sending

    def _queue(self, event: Event) -> None:
        self.queues[event["q"]] = event

    def _send(self, event: Event) -> None:
        self.calls[event["n"]] = event["ids"]
        if event.get("delayed"):
            self.delayed.add(event["n"])
        for id in event["ids"]:
            one = self.sent.setdefault(id, Sent(id, event["q"], event["t"], event["t"]))
            one.unknown += 1
            one.call = event["n"]

    def _sent(self, event: Event) -> None:
        told = event.get("told") or [[event["outcome"]]] * len(self.calls[event["n"]])
        for id, (outcome, *deadline) in zip(self.calls[event["n"]], told, strict=True):
            one = self.sent[id]
            one.ended = event["t"]
            if outcome == "unknown":
                continue
            one.unknown -= 1
            if outcome != "none":
                setattr(one, outcome, getattr(one, outcome) + 1)
            if outcome in ("stored", "expired"):
                one.deadline, one.deadline_known = (deadline[0] if deadline else None), True

    def _move(self, event: Event) -> None:
        self.sent[event["id"]].moved.add(event["to"])

    # Handing out and settling

    def _claim(self, event: Event) -> None:
        token: str = event["token"]
        granted = int(token or 0)
        since = self._taking_since.get(event["p"], int(event["t"]))
        told = granted - event["lease"] * 1000 if token else since + self.ahead
        began = self.instant_of(told) if token else since
        # a step comes a moment after its event, and nobody knows whether before or after a call
        is_near = any(step.at >= (event.get("looked") or (since,))[0] - SECOND for step in self.steps)
        for sequence, id, deadline, count, died in event["got"]:
            claim = Claim(
                event["p"],
                event["q"],
                sequence,
                id,
                event["t"],
                began,
                told,
                deadline,
                count,
                died,
                granted,
                is_near or _was_handed(event, sequence, deadline, told, told - began),
            )
            self.claims[id].append(claim)
            if not token:
                claim.attempts.append(Attempt("ack", began, done=True, ended=event["t"]))
            else:
                self._held[event["q"], sequence, token] = claim

    def _taking(self, event: Event) -> None:
        self._takings[event["n"]] = event
        self._taking_since[event["p"]] = event["t"]

    def _took(self, event: Event) -> None:
        del self._takings[event["n"]]

    def _settle(self, event: Event) -> None:
        tried = []
        for sequence, token in event["got"]:
            claim = self._held.get((event["q"], sequence, token))
            if claim is None:
                continue  # nobody has written this claim down
            attempt = Attempt(event["how"], event["t"])
            claim.attempts.append(attempt)
            tried.append((claim, attempt))
            if event.get("collected"):
                self._collected[event["q"], sequence, token] = claim, attempt
        self._settles[event["n"]] = (event["q"], tried)

    def _settled(self, event: Event) -> None:
        queue, tried = self._settles.get(event["n"], ("", []))
        lost, unknown = set(event["lost"]), set(event.get("unknown", ()))
        newest = {claim.sequence: claim for claim, _ in sorted(tried, key=lambda pair: pair[0].began)}
        for claim, attempt in tried:
            # a process may hold two claims of one message: only the newest can have succeeded
            told = claim is newest[claim.sequence] and claim.sequence in event.get("done", ())
            if claim.sequence in unknown and not told:
                continue
            self._end(claim, attempt, told or claim.sequence not in lost, event["t"])
            token = event.get("tokens", {}).get(claim.sequence)
            if token is not None and attempt.done:
                attempt.granted = int(token)
                self._held[queue, claim.sequence, token] = claim

    def _acks(self, event: Event) -> None:
        for name, done in (("done", True), ("lost", False)):
            for sequence, token in event[name]:
                if tried := self._collected.pop((event["q"], sequence, token), None):
                    self._end(*tried, done, event["t"])

    def _end(self, claim: Claim, attempt: Attempt, done: bool, instant: int) -> None:
        """Record the answer to an attempt. After a step back of the clock, an end that comes too late seems in time."""
        attempt.ended = instant
        ends, steps = claim.leased_until(instant), self.steps_while(claim, instant)
        is_over = instant > self.instant_of(ends) or any(step.latest >= ends for step in steps)
        went_back = is_over and any(step.ahead < step.was for step in steps)
        if not (done and went_back and attempt.how in ("ack", "reject")):
            attempt.done = done

    # Policies

    def _policy(self, event: Event) -> None:
        self.policy_values.append((event["t"], event["value"]))

    def _policy_set(self, event: Event) -> None:
        began, value = self.policy_values[-1]  # one operator at a time
        self.policy_set, self.policy_values = (began, event["t"]), [(began, value)]

    def _clock(self, event: Event) -> None:
        self.ahead = event["ahead"]
        self.steps.append(Step(event["t"], event["was"], self.ahead))

    def instant_of(self, told: int) -> int:
        """When Redis told this as the time: it is some whole hours ahead, and a round is short."""
        return told - round((told - self.last) / HOUR) * HOUR

    def steps_while(self, claim: Claim, until: int) -> list[Step]:
        """The steps of the clock between a claim and an instant. A step comes a moment after its event."""
        was = claim.told - claim.began
        return [
            step
            for step in self.steps
            if step.at <= until and (claim.began <= step.at or (claim.began <= step.at + MOMENT and step.was == was))
        ]

    # What the nemeses tell. Of all else, `seen` is enough.

    def _forget(self, event: Event) -> None:
        for queue in event["queues"]:
            self.forgettable[queue].append((event["since"], event["until"], event["how"]))

    def _error(self, event: Event) -> None:
        if event["type"] == "ScriptsForgotten":
            self.forgotten_scripts.append(event)
        self.counted["refused calls" if event["type"] != "LeaseLost" else "late settles"] += 1

    def _count(self, event: Event) -> None:
        self.counted[event["what"]] += event["times"]

    def forgotten_by(self, queue: str, began: int, ended: int) -> str:
        """The kind of failover that may have forgotten events of a queue between two instants, or `""`.

        Servers tell whole ms.
        """
        began, ended = began // 1000, ended // 1000
        windows = ((since // 1000, until // 1000, how) for since, until, how in self.forgettable[queue])
        return next((how for since, until, how in windows if began <= until and ended >= since), "")

    def option(self, queue: str, name: str) -> Any:
        """An option of a judged queue, `None` where the queue has none."""
        return self.queues[queue]["options"].get(name) if queue in self.queues else None
