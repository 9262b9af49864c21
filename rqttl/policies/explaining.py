"""The explanation of the options in force: the source of each value, and all that lost against it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rqttl.options import OPTIONS, QueueOptions, Value
from rqttl.policies.merging import DECLARED, LIMITS, Claim, Merged, Offer, declared_values
from rqttl.policies.patterns import compare, compile_pattern
from rqttl.policies.policy import Policy

DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Contender:
    """A value that is not in force. `None` is the word `none` in a policy. `reason` tells which value won, and why."""

    value: Value | None
    source: str
    reason: str


@dataclass(frozen=True, slots=True)
class Explained:
    """An option in force: its value, with durations in milliseconds, and its source.

    `source` is `declared`, `policy NAME`, `operator policy NAME` or `default`. `lost` has all other values for the
    option. `note` tells of a value that was changed or left out because it contradicts something; empty otherwise.
    """

    value: Value | None
    source: str
    lost: tuple[Contender, ...] = ()
    note: str = ""


def explain(
    declared: QueueOptions, policies: Sequence[Policy], operators: Sequence[Policy], merged: Merged
) -> dict[str, Explained]:
    """Explain every option of a queue. `merged` is the merge of the other arguments."""
    explained = {}
    for name, option in OPTIONS.items():
        claims = list(merged.claims.get(name, ()))
        change = merged.changes.get(name)
        winner = change.claim if change else claims[0] if claims else None
        lost = [
            *_lost_claims(name, declared_values(declared).get(name), claims),
            *_lost_offers(name, policies, merged.policies.get(name), claims),
            *_lost_offers(name, operators, merged.operators.get(name), claims),
        ]
        if change:
            lost.insert(0, Contender(claims[0].value, claims[0].source, change.reason))
        notes = [offer.policy.source + ": " + offer.fault for offer in _faults(name, merged)]
        notes += [f"{claims[0].source}: {change.reason}"] if change else []
        value, source = winner or (option.default, DEFAULT)
        explained[name] = Explained(value, source, tuple(lost), "; ".join(notes))
    return explained


def _faults(name: str, merged: Merged) -> list[Offer]:
    both = (merged.policies.get(name), merged.operators.get(name))
    return [offer for offer in both if offer and offer.fault]


def _lost_claims(name: str, own: Value | None, claims: Sequence[Claim]) -> Iterator[Contender]:
    """The declared value, if it lost."""
    if own is not None and claims[0].source != DECLARED:
        yield Contender(own, DECLARED, _beaten(name, Claim(own, DECLARED), claims[0]))


def _lost_offers(
    name: str, policies: Sequence[Policy], offer: Offer | None, claims: Sequence[Claim]
) -> Iterator[Contender]:
    """The values of policies of one kind, without the winner. `offer` is that of the first policy."""
    if offer is None:
        return
    first = offer.policy
    if offer.value is None:
        reason = offer.fault or "none: it and all policies after it give no value"
        yield Contender(first.definition[name], first.source, reason)
    elif first.source != claims[0].source:
        yield Contender(offer.value, first.source, _beaten(name, Claim(offer.value, first.source), claims[0]))
    for policy in policies:
        if name in policy.definition and policy is not first:
            yield Contender(policy.definition[name], policy.source, _outranked(policy, first))


def _beaten(name: str, loser: Claim, winner: Claim) -> str:
    """The reason why a claim lost against a claim of another kind."""
    if OPTIONS[name].kind in LIMITS:
        equal = loser.value == winner.value
        return f"overridden by {winner.source} ({'equal' if equal else 'lower'})"
    if winner.source == DECLARED:
        return "overridden by the declaration"
    return f"overridden by {winner.source}: an operator policy beats all others"


def _outranked(policy: Policy, first: Policy) -> str:
    """The reason why a policy lost against the first policy of its kind."""
    if first.priority != policy.priority:
        return f"overridden by {first.source}: higher priority, {first.priority} against {policy.priority}"
    specific = compare(compile_pattern(first.pattern, first.syntax), compile_pattern(policy.pattern, policy.syntax))
    return f"overridden by {first.source}: {'more specific pattern' if specific else 'first by name'}"
