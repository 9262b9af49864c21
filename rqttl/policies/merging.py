"""The options in force of a queue: its declared options, merged with the policies that match its name.

The explanation tells the source of each value, and all that lost against it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from rqttl.checks import is_queue_name
from rqttl.options import OPTIONS, SCRIPT_OPTIONS, QueueOptions, Value
from rqttl.policies.patterns import compare, compile_pattern
from rqttl.policies.policy import Policy
from rqttl.text import format_value
from rqttl.units import as_text

DECLARED, DEFAULT = "declared", "default"
#: Kinds of options of which the smallest value counts.
LIMITS = ("duration", "count", "size")
_BOUNDS = (("min_ttl", "max_ttl"), ("redelivery_delay", "redelivery_max_delay"))
_DELAYS = tuple(name for name, use in SCRIPT_OPTIONS.items() if use == "failure" and name != "redelivery_delay")


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


def offers(policies: Sequence[Policy], queue: str, templates: Iterable[Policy]) -> dict[str, Offer]:
    """The value that policies give to each option of a queue: the first policy that has the option decides."""
    by_option: dict[str, Offer] = {}
    for policy in policies:
        for name, value in policy.definition.items():
            if name not in by_option:
                is_target = value is not None and OPTIONS[name].kind == "target"
                reason = fault(name, str(value), queue, templates) if is_target else ""
                by_option[name] = Offer(None if reason else value, policy, reason)
    return by_option


def merge(
    declared: QueueOptions, policies: Sequence[Policy], operators: Sequence[Policy], templates: Sequence[Policy]
) -> Merged:
    """Merge options with matching policies, each kind in its order. `templates` are all policies with templates."""
    user, operator = (offers(kind, declared.queue, templates) for kind in (policies, operators))
    own = declared.non_default
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
        for name in _DELAYS:
            if name in winners:
                changes[name] = Change(None, "it does nothing without redelivery_delay")
    for floor, ceiling in _BOUNDS:
        low, high = winners.get(floor), winners.get(ceiling)
        if low and high and int(low.value) > int(high.value):
            reason = f"{as_text(int(low.value))} is more than {ceiling}, {as_text(int(high.value))} ({high.source})"
            changes[floor] = Change(high, f"{reason}: the smaller limit counts")
    return changes


def fault(option: str, target: str, queue: str, policies: Iterable[Policy]) -> str:
    """The reason why a policy's target gives a queue no target; empty if the target is good.

    `policies` are all policies with templates, also those that do not match the queue: two of them could name a queue
    after each other in turn, until the name is too long.
    """
    name = target.replace("{queue}", queue)
    if name == queue:
        return "" if option == "dead_letter_rejected" else f"{format_value(target)} names the queue itself"
    if "{queue}" in target:
        for policy in policies:
            if template := maker(queue, policy):
                return (
                    f"the template {template!r} of {policy.source} made the name {queue!r}: no template of any policy "
                    "acts on it"
                )
    if name and not is_queue_name(name):
        return f"{format_value(name)} is no valid queue name"
    return ""


def maker(queue: str, policy: Policy) -> str:
    """The template of a policy that makes the name of `queue` for a queue that the policy matches, or empty text."""
    for template in policy.templates:
        origin = origin_of(queue, template)
        if origin and policy.matches(origin):
            return template
    return ""


def origin_of(queue: str, template: str) -> str:
    """The queue for which a template gives this name: `orders` for `EXP.orders` and `EXP.{queue}`; or empty text."""
    before, *_ = template.split("{queue}")
    if not queue.startswith(before):
        return ""
    times = template.count("{queue}")
    length, remainder = divmod(len(queue) - len(template) + times * len("{queue}"), times)
    origin = queue[len(before) : len(before) + length] if length > 0 else ""
    is_made = not remainder and template.replace("{queue}", origin) == queue and is_queue_name(origin)
    return origin if is_made else ""


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
            *_lost_claims(name, declared.non_default.get(name), claims),
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


@dataclass(frozen=True)
class Resolution:
    """The declared options of a queue, and the policies that match its name, each kind in its order.

    `templates` are all policies with templates. `options` and `explained` are computed when they are first used.
    """

    declared: QueueOptions
    policies: tuple[Policy, ...] = ()
    operator_policies: tuple[Policy, ...] = ()
    templates: tuple[Policy, ...] = ()

    @cached_property
    def options(self) -> QueueOptions:
        """The options in force. If no policy changes an option, this is the object of the declared options."""
        if not self.policies and not self.operator_policies:
            return self.declared
        values = {name: value for name, value in self._merged.values().items() if value != OPTIONS[name].default}
        return (
            self.declared
            if values == self.declared.non_default
            else QueueOptions(self.declared.queue, dict(sorted(values.items())))
        )

    @cached_property
    def explained(self) -> Mapping[str, Explained]:
        """Every option in force, by name."""
        return explain(self.declared, self.policies, self.operator_policies, self._merged)

    @cached_property
    def _merged(self) -> Merged:
        return merge(self.declared, self.policies, self.operator_policies, self.templates)
