"""The merge of the declared options of a queue with the policies that match its name, option by option."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from rqttl.options import OPTIONS, SCRIPT_OPTIONS, QueueOptions, Value
from rqttl.policies.policy import Policy
from rqttl.policies.targets import fault
from rqttl.units import as_text

DECLARED = "declared"
#: Kinds of options of which the smallest value counts.
LIMITS = ("duration", "count", "size")
_BOUNDS = (("min_ttl", "max_ttl"), ("redelivery_delay", "redelivery_max_delay"))
_PAUSES = tuple(name for name, use in SCRIPT_OPTIONS.items() if use == "failure" and name != "redelivery_delay")


class Offer(NamedTuple):
    """The value that the policies of one kind give to one option. `None`: the first policy ended the search with it.

    `fault` is set if the policy names a target that the queue cannot have.
    """

    value: Value | None
    policy: Policy
    fault: str = ""


class Claim(NamedTuple):
    """A value for an option, and its source: `declared`, `policy NAME` or `operator policy NAME`."""

    value: Value
    source: str


class Change(NamedTuple):
    """A change of a merged value that contradicts another option. `None`: the option is left out."""

    claim: Claim | None
    reason: str


class Merged(NamedTuple):
    """The result of a merge. `claims` has all claims on each option, the winner first; `changes` come on top."""

    policies: Mapping[str, Offer]
    operators: Mapping[str, Offer]
    claims: Mapping[str, Sequence[Claim]]
    changes: Mapping[str, Change]

    def values(self) -> dict[str, Value]:
        """The values in force."""
        claims: dict[str, Claim | None] = {name: ranked[0] for name, ranked in self.claims.items() if ranked}
        claims |= {name: change.claim for name, change in self.changes.items()}
        return {name: claim.value for name, claim in claims.items() if claim}


def declared_values(options: QueueOptions) -> Mapping[str, Value]:
    """The declared options that differ from their defaults."""
    return options.non_default


class Ranked(tuple[Policy, ...]):  # noqa: SLOT001  # cached properties need a dictionary
    """The policies of one kind that match a queue, in their order. Queues with the same policies share the object."""

    @cached_property
    def first(self) -> dict[str, Offer]:
        """The value that they give to each option: the first policy that has the option decides."""
        by_option: dict[str, Offer] = {}
        for policy in self:
            for name, value in policy.definition.items():
                if name not in by_option:
                    by_option[name] = Offer(value, policy)
        return by_option

    @cached_property
    def targets(self) -> tuple[str, ...]:
        """The options of `first` that name a target. The name of the queue decides if it is good."""
        return tuple(
            name for name, offer in self.first.items() if offer.value is not None and OPTIONS[name].kind == "target"
        )

    def offers(self, queue: str, templates: Sequence[Policy]) -> dict[str, Offer]:
        """The value that they give to each option of a queue."""
        if not self.targets:
            return self.first
        offers = dict(self.first)
        for name in self.targets:
            reason = fault(name, str(offers[name].value), queue, templates)
            if reason:
                offers[name] = Offer(None, offers[name].policy, reason)
        return offers


def merge(declared: QueueOptions, policies: Ranked, operators: Ranked, templates: Sequence[Policy]) -> Merged:
    """Merge options with matching policies, each kind in its order. `templates` are all policies with templates."""
    user, operator = policies.offers(declared.queue, templates), operators.offers(declared.queue, templates)
    own = declared_values(declared)
    claims = {
        name: _claims(name, own.get(name), user.get(name), operator.get(name))
        for name in dict.fromkeys((*own, *user, *operator))
    }
    return Merged(user, operator, claims, _changes({name: ranked[0] for name, ranked in claims.items() if ranked}))


def _claims(name: str, own: Value | None, user: Offer | None, operator: Offer | None) -> list[Claim]:
    """The claims on an option, the winner first. Of equal limits the declared one wins, then the policy's."""
    claims = [] if own is None else [Claim(own, DECLARED)]
    claims += [
        Claim(offer.value, offer.policy.source) for offer in (user, operator) if offer and offer.value is not None
    ]
    if OPTIONS[name].kind in LIMITS:
        return sorted(claims, key=lambda claim: claim.value)
    if operator is not None and operator.value is not None:
        return [claims[-1], *claims[:-1]]
    return claims


def _changes(winners: Mapping[str, Claim]) -> dict[str, Change]:
    changes: dict[str, Change] = {}
    if "redelivery_delay" not in winners:
        for name in _PAUSES:
            if name in winners:
                changes[name] = Change(None, "it does nothing without redelivery_delay")
    for floor, ceiling in _BOUNDS:
        low, high = winners.get(floor), winners.get(ceiling)
        if low and high and int(low.value) > int(high.value):
            reason = f"{as_text(int(low.value))} is more than {ceiling}, {as_text(int(high.value))} ({high.source})"
            changes[floor] = Change(high, f"{reason}: the smaller limit counts")
    return changes
