"""The judge of a campaign: replays its journals, and names every promise that was broken. Pure: no Redis, no clock.

It accepts what at-least-once delivery explains: a lost lease, a reply that was lost, a message that was given back. All
else is a violation, with the id of the message where there is one.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter, itemgetter
from typing import Literal, get_args

from tests.chaos.cast import FEW, POLICED, POLICY, RATED, SLOW
from tests.chaos.facts import MOMENT, Claim, Facts, Sent
from tests.chaos.journal import SECOND, Event

Kind = Literal["lost", "late", "twice", "over a limit", "out of order", "told wrongly", "unexplained"]
#: The kinds of violations, in the order of the table.
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True)
class Violation:
    """One broken promise. `id` is empty where it is not about one message."""

    kind: Kind
    id: str
    text: str


@dataclass(frozen=True)
class Verdict:
    """The violations and the figures of a campaign."""

    violations: list[Violation]
    figures: Counter[str]

    @property
    def bad(self) -> Counter[str]:
        """The number of violations of each kind."""
        return Counter(one.kind for one in self.violations)


def judge(events: Iterable[Event]) -> Verdict:
    """Replay the events, which are in the order of time."""
    facts = Facts(events)
    figures = facts.counted + Counter()
    violations: list[Violation] = []
    for rule in RULES:
        violations += rule(facts, figures)
    figures["sent"] = len(facts.sent)
    figures["stored"] = sum(_certain(facts, one) for one in facts.sent.values())
    figures["copies"] = sum(
        _certain(facts, one) for one in facts.sent.values() if facts.queues[one.queue].get("passed")
    )
    figures["delivered"] = sum(map(len, facts.claims.values()))
    figures["settled"] = sum(claim.final is not None for claims in facts.claims.values() for claim in claims)
    figures["dead"] = sum(1 for letter in facts.seen["letter"] if letter["reason"])
    return Verdict(violations, figures)


# What became of each message


def _target_of(facts: Facts, queue: str) -> str | None:
    target: str | None = facts.queues.get(queue, {}).get("dead")
    return target


def _certain(facts: Facts, one: Sent) -> int:
    """Return the number of copies of a message that the server certainly got."""
    died = one.expired if _target_of(facts, one.queue) or one.deadline is None else 0
    refused = one.refused if facts.option(one.queue, "overflow") == "reject-publish-dlx" else 0
    if facts.option(one.queue, "duplicate_window"):
        return min(1, one.stored + died + one.duplicate)
    return one.stored + died + refused


def _possible(facts: Facts, one: Sent) -> int:
    """Return the largest number of copies of a message that the server can have got."""
    most = _certain(facts, one) + one.unknown
    return min(1, most) if facts.option(one.queue, "duplicate_window") else most


def _ends(facts: Facts, claims: list[Claim]) -> tuple[int, int]:
    """Return the number of ends of a message: the certain ones, and possible further ones."""
    told = unknown = 0
    for claim in claims:
        final = claim.final
        # a rejected message lives on as a letter where there is a target
        leaves = final is not None and (final.how == "ack" or not _target_of(facts, claim.queue))
        told += leaves
        unknown += not leaves and claim.unknown
    return told, unknown


def accounts(facts: Facts, figures: Counter[str]) -> Iterator[Violation]:
    """Each stored message was ended exactly once, and no other message was."""
    missing: Counter[str] = Counter()
    for one in facts.sent.values():
        claims = facts.claims.get(one.id, [])
        told, unknown = _ends(facts, claims)
        certain, possible = _certain(facts, one), _possible(facts, one)
        is_missing = told + unknown < certain and not _may_vanish(facts, one)
        if is_missing and not _forgotten(facts, one, claims, figures, lost=True):
            missing[one.queue] += certain - told - unknown
            if missing[one.queue] > facts.lost_takings[one.queue]:
                yield Violation("lost", one.id, f"{one.queue}: stored {certain} times, ended {told} times")
        if told > possible and not _forgotten(facts, one, claims, figures):
            if possible == 0:
                yield Violation("told wrongly", one.id, f"{one.queue}: told as not stored, and handled")
            else:
                yield Violation("twice", one.id, f"{one.queue}: stored {possible} times at most, ended {told} times")
    for id, claims in facts.claims.items():
        if id not in facts.sent:
            yield Violation("unexplained", id, f"{claims[0].queue}: delivered, and nobody sent it")


def _may_vanish(facts: Facts, one: Sent) -> bool:
    """Return True if the message may be gone without a trace: it expired in a queue without a dead-letter queue.

    So does one for a queue to which messages are `passed`: it may have waited where they come from.
    """
    over = one.deadline is not None and one.deadline * 1000 <= facts.last + facts.ahead
    dropped = over and (not _target_of(facts, one.queue) or facts.queues[one.queue].get("passed"))
    return dropped or (not one.deadline_known and one.duplicate > 0 and not _target_of(facts, one.queue))


def _forgotten(facts: Facts, one: Sent, claims: list[Claim], figures: Counter[str], *, lost: bool = False) -> bool:
    """Return True if a failover explains what became of a message, and count it."""
    calls = [(one.queue, one.began, one.ended)]
    for claim in claims:
        calls += [(claim.queue, attempt.began, attempt.ended or attempt.began) for attempt in claim.attempts]
    how = _first(facts, calls) or (_first(facts, _ways(facts, one, claims, lost=lost)) and "between slots")
    figures[f"forgot, {how}"] += bool(how)
    return bool(how)


def _first(facts: Facts, stretches: Iterable[tuple[str, int, int]]) -> str:
    return next(filter(None, (facts.forgotten_by(*stretch) for stretch in stretches)), "")


def _ways(facts: Facts, one: Sent, claims: list[Claim], *, lost: bool) -> Iterator[tuple[str, int, int]]:
    """When a message may have been on its way between two slots: from a death until it was handed out again.

    The queue that forgets that the message has left has it again, and the queue that forgets that it came has lost it.
    """
    if not facts.queues[one.queue].get("far"):
        return
    ways = [(facts.instant_of(claim.died * 1000), claim.began) for claim in claims if claim.died]
    if lost:
        ways.append((_dies_from(facts, one, claims), facts.last))
    for queue in filter(None, (one.queue, _target_of(facts, one.queue))):
        yield from ((queue, *way) for way in ways)


def _dies_from(facts: Facts, one: Sent, claims: list[Claim]) -> int:
    """The earliest instant at which a message that was not seen again can have died."""
    alive = max([one.began, *(claim.began for claim in claims)])
    limits = (facts.option(one.queue, name) for name in ("max_length", "max_length_bytes", "max_deliveries"))
    attempts = (attempt.how for claim in claims for attempt in claim.attempts)
    early = any(limits) or "reject" in attempts or any(claim.died for claim in claims)
    if early or facts.steps or not one.deadline_known:
        return alive
    return facts.last if one.deadline is None else max(alive, one.deadline * 1000)


# Who held a message when


def deadlines(facts: Facts, _: Counter[str]) -> Iterator[Violation]:
    """No message was handed out at its deadline or after it, by the clock of the server."""
    for id, claims in facts.claims.items():
        sent = facts.sent.get(id)
        for claim in claims:
            # one that was handed to a waiting consumer on arrival has been leased since then, and does not expire
            if claim.deadline is not None and claim.told >= claim.deadline * 1000 and not claim.handed:
                late = (claim.told - claim.deadline * 1000) // 1000
                yield Violation("late", id, f"{claim.queue}: handed out {late} ms after its deadline")
            if sent is None or claim.died or claim.queue != sent.queue:
                continue
            is_told = sent.deadline_known and not sent.unknown and not sent.duplicate
            # a call that was repeated after a failover stores another copy, and either of them may be forgotten
            if (
                is_told
                and claim.deadline != sent.deadline
                and not facts.forgotten_by(sent.queue, sent.began, claim.began)
            ):
                text = f"{claim.queue}: deadline {sent.deadline} in the receipt, {claim.deadline} in the delivery"
                yield Violation("told wrongly", id, text)
            if sent.expired and not (sent.stored or sent.unknown):
                yield Violation("told wrongly", id, f"{claim.queue}: told as dead on arrival, and handed out")


def handings_out(facts: Facts, _: Counter[str]) -> Iterator[Violation]:
    """Two claims of one message never held at once, and nothing is handed out after it was settled for good."""
    for id, claims in facts.claims.items():
        places: dict[tuple[str, str], list[Claim]] = {}
        for claim in claims:
            places.setdefault((claim.queue, claim.sequence), []).append(claim)
        for held in places.values():
            held.sort(key=attrgetter("began"))
            for i, claim in enumerate(held):
                yield from _after(facts, id, claim, held[i + 1 :])


def _after(facts: Facts, id: str, claim: Claim, later: list[Claim]) -> Iterator[Violation]:
    """Yield the violations in the claims of a message after one of them."""
    final = claim.final
    for other in later:
        if facts.forgotten_by(claim.queue, claim.began, other.began):
            return
        if final is not None:
            text = f"{claim.queue}: {claim.process} was told that its {final.how} is done; {other.process} got it later"
            yield Violation("told wrongly", id, text)
            return
    if not later or not claim.granted:
        return
    other = later[0]
    renewals = [one for one in claim.attempts if one.how == "renew"]
    if any(one.done is None for one in renewals):
        return  # nobody knows when this lease ended
    if any(one.done and one.began > other.began for one in renewals):
        yield Violation("told wrongly", id, f"{claim.queue}: {claim.process} renewed after {other.process} got it")
    ends = claim.leased_until(other.began)
    # a lease may have ended before a step back
    latest = max([other.told, *(step.latest for step in facts.steps_while(claim, other.began + 1000))])
    if latest // 1000 < ends // 1000 and not claim.given_back_by(other.began + 1000):
        text = f"{claim.queue}: {other.process} got it {(ends - latest) // 1000} ms before the lease of "
        yield Violation("twice", id, f"{text}{claim.process} ended")


def counts(facts: Facts, _: Counter[str]) -> Iterator[Violation]:
    """No message is delivered more often than `max_deliveries` allows."""
    for id, claims in facts.claims.items():
        for claim in claims:
            most = facts.option(claim.queue, "max_deliveries")
            if most is not None and claim.count > most:
                yield Violation("over a limit", id, f"{claim.queue}: delivery {claim.count}, max_deliveries is {most}")


def order(facts: Facts, _: Counter[str]) -> Iterator[Violation]:
    """Messages of one call are stored in the order of the call."""
    for number, ids in facts.calls.items():
        first = facts.sent[ids[0]]
        if number in facts.delayed and any(first.began - MOMENT <= step.at <= first.ended for step in facts.steps):
            continue  # after a step back, what comes later is due earlier
        places: list[tuple[str, str]] = []
        for id in ids:
            sent = facts.sent[id]
            if sent.call != number or sent.duplicate or sent.stored != 1 or sent.unknown:
                continue
            fresh = [c.sequence for c in facts.claims.get(id, []) if c.queue == sent.queue and not c.died]
            places += [(min(fresh), id)] if fresh else []
        for (before, _id), (after, id) in pairwise(places):
            if after <= before:
                yield Violation("out of order", id, f"stored as {after}, its predecessor in the call as {before}")


# Letters, limits and numbers


def letters(facts: Facts, _: Counter[str]) -> Iterator[Violation]:
    """Each letter died of a reason that the facts justify."""
    for letter in facts.seen["letter"]:
        sent = facts.sent.get(letter["id"])
        if sent is None:
            yield Violation("unexplained", letter["id"], f"{letter['q']}: a letter that nobody sent")
            continue
        problem = _unjustified(facts, sent, letter)
        if problem:
            yield Violation("told wrongly", sent.id, f"{letter['q']}: died of {letter['reason']}, but {problem}")


def _unjustified(facts: Facts, sent: Sent, letter: Event) -> str:
    """Return the objection against the reason of a death, if there is one."""
    reason, origin = letter["reason"], letter["origin"]
    if origin not in (sent.queue, *sent.moved):
        return f"it was sent to {sent.queue}, not to {origin}"
    if reason == "expired":
        if letter["deadline"] is None or letter["died"] < letter["deadline"]:
            return f"it died at {letter['died']}, and its deadline was {letter['deadline']}"
        return ""
    if reason == "maxlen":
        limited = facts.option(origin, "max_length") is not None or facts.option(origin, "max_length_bytes") is not None
        return "" if limited and facts.option(origin, "overflow") != "reject-publish" else "no limit pushes out here"
    if reason == "rejected":
        tried = any(one.how == "reject" for claim in facts.claims.get(sent.id, []) for one in claim.attempts)
        return "" if tried else "nobody rejected it"
    most = facts.option(origin, "max_deliveries")
    return "" if most is not None and letter["count"] >= most else f"after {letter['count']} of {most} deliveries"


def limits(facts: Facts, _: Counter[str]) -> Iterator[Violation]:
    """Nobody ever sees or is told a depth over a limit."""
    for event in facts.seen["depth"]:
        for number, name in (("ready", "max_length"), ("bytes", "max_length_bytes")):
            most = facts.option(event["q"], name)
            if most is not None and event[number] > most:
                text = f"{event['q']}: {event['by']} has {event[number]}, {name} is {most}"
                yield Violation("over a limit", "", text)


def rates(facts: Facts, _: Counter[str]) -> Iterator[Violation]:
    """While the lowest rate holds, hardly any messages leave: those of tickets, and one for each step of the clock."""
    for begin, answer, end in zip(facts.seen["rate"], facts.seen["rate"][1:], facts.seen["rate"][2:], strict=False):
        if answer.get("set") != SLOW or any(facts.forgotten_by(q, begin["t"], end["t"]) for q in (RATED, POLICY)):
            continue
        since = answer["t"] + SECOND  # no call of an operator that was killed is on its way any more
        claims = [one for held in facts.claims.values() for one in held if one.queue == RATED]
        left = sum(since <= one.began < end["t"] for one in claims)
        if left > FEW + sum(since <= step.at <= end["t"] for step in facts.steps):
            yield Violation("over a limit", "", f"{RATED}: {left} messages left at a rate of {SLOW}")


def conservation(facts: Facts, _: Counter[str]) -> Iterator[Violation]:
    """Every message of a queue is there, or left it in a way that was counted; at the end none is left."""
    for event in facts.seen["stats"]:
        told = event["numbers"]
        there = told["ready"] + told["leased"] + told["delayed"]
        left = told["acked"] + told["purged"] + told["redriven"] + told["deaths"]
        if facts.option(event["q"], "overflow") == "reject-publish-dlx":
            left -= told["refused"]
        if told["enqueued"] != there + left:
            text = f"{event['q']}: {told['enqueued']} came in, {there} are there, {left} have left"
            yield Violation("told wrongly", "", text)
        if event.get("drained") and there:
            yield Violation(
                "unexplained", "", f"{event['q']}: {there} messages stay in the queue, and nobody gets them"
            )


def receipts(facts: Facts, _: Counter[str]) -> Iterator[Violation]:
    """The counter of acks agrees with what consumers were told."""
    told: Counter[str] = Counter()
    perhaps: Counter[str] = Counter()
    for claims in facts.claims.values():
        for claim in claims:
            final = claim.final
            told[claim.queue] += final is not None and final.how == "ack"
            perhaps[claim.queue] += final is None and claim.unknown
    for event in facts.seen["stats"]:
        if not event.get("drained") or facts.forgettable[event["q"]] or event["q"] not in facts.queues:
            continue
        queue, acked = event["q"], event["numbers"]["acked"]
        most = told[queue] + perhaps[queue] + facts.lost_takings[queue]
        if not told[queue] <= acked <= most:
            text = f"{queue}: {acked} acks counted, {told[queue]} told as done, {most - told[queue]} unknown"
            yield Violation("told wrongly", "", text)


def reports(facts: Facts, _: Counter[str]) -> Iterator[Violation]:
    """Violations and unexplained errors that a process of the campaign reported itself."""
    for event in sorted(facts.seen["wrong"] + facts.seen["unexplained"], key=itemgetter("t")):
        kind: Kind = "told wrongly" if event["k"] == "wrong" else "unexplained"
        yield Violation(kind, event.get("id", ""), f"{event['p']}: {event['text']}")
    for event in () if facts.counted["scripts forgotten"] else facts.forgotten_scripts:
        yield Violation("unexplained", "", f"{event['p']}: nobody let Redis forget scripts: {event['text']}")


def policies(facts: Facts, _: Counter[str]) -> Iterator[Violation]:
    """The last change of the policy that was answered holds, or a later one; and each queue follows what is stored."""
    for event in facts.seen["policies"]:
        stored, values = event["stored"], [value for _, value in facts.policy_values]
        if stored not in values and not facts.forgotten_by(POLICY, *facts.policy_set):
            yield Violation("lost", "", f"the policy has {stored}, and the last change was to {values[0]}")
        for queue, value in event["queues"].items():
            if stored is not None and value != stored:
                yield Violation("told wrongly", "", f"{queue}: {POLICED} is {value}, and {stored} in the policy")


Rule = Callable[[Facts, Counter[str]], Iterator[Violation]]
RULES: tuple[Rule, ...] = (
    accounts,
    deadlines,
    handings_out,
    counts,
    order,
    letters,
    limits,
    rates,
    conservation,
    receipts,
    policies,
    reports,
)
