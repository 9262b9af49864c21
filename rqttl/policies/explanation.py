"""The answer of `explain`: every option in force of a queue with its source, and the deadline of a message.

Also warnings about a policy that is valid, but probably not meant so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from rqttl.options import OPTIONS, REASONS, QueueOptions, Value
from rqttl.policies.policy import DECLARED, LIMITS, Claim, Policy, PolicySet, Resolution, magnitude
from rqttl.units import as_text

#: The options of a policy that name a target.
_TARGETS = ("dead_letter", *(f"dead_letter_{reason}" for reason in REASONS))
#: The options that remove messages from a dead-letter queue without anybody having seen them.
_DEADLY = ("message_ttl", "max_length", "max_length_bytes", "expires", "auto_delete_on_idle")
_ENDS = ("expires", "auto_delete_on_idle")


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


def explain(resolution: Resolution) -> dict[str, Explained]:
    """Explain every option of a queue."""
    explained = {}
    for name, option in OPTIONS.items():
        claims, change = resolution.claims.get(name, []), resolution.changes.get(name)
        winner = change.claim if change else claims[0] if claims else None
        lost = list(_lost(name, resolution, claims))
        notes = [
            f"{offers[name].policy.source}: {offers[name].fault}"
            for offers in resolution.offers
            if name in offers and offers[name].fault
        ]
        if change:
            lost.insert(0, Contender(claims[0].value, claims[0].source, change.reason))
            notes.append(f"{claims[0].source}: {change.reason}")
        value, source = winner or (option.default, "default")
        explained[name] = Explained(value, source, tuple(lost), "; ".join(notes))
    return explained


def _lost(name: str, resolution: Resolution, claims: list[Claim]) -> Iterator[Contender]:
    """The values that lost: the declared one, those of policies, those of operator policies."""
    beaten = {
        claim.source: Contender(claim.value, claim.source, _beaten(name, claim, claims[0])) for claim in claims[1:]
    }
    if DECLARED in beaten:
        yield beaten[DECLARED]
    kinds = (resolution.policies, resolution.operator_policies)
    for policies, offers in zip(kinds, resolution.offers, strict=True):
        if name not in offers:
            continue
        value, first, fault = offers[name]
        if value is None:
            reason = fault or "none: it and all policies after it give no value"
            yield Contender(first.definition[name], first.source, reason)
        elif first.source in beaten:
            yield beaten[first.source]
        for policy in policies:
            if name in policy.definition and policy is not first:
                yield Contender(policy.definition[name], policy.source, _outranked(policy, first))


def _beaten(name: str, loser: Claim, winner: Claim) -> str:
    """The reason why a claim lost against a claim of another kind."""
    if OPTIONS[name].kind in LIMITS:
        equal = magnitude(loser.value) == magnitude(winner.value)
        return f"overridden by {winner.source} ({'equal' if equal else 'lower'})"
    if winner.source == DECLARED:
        return "overridden by the declaration"
    return f"overridden by {winner.source}: an operator policy beats all others"


def _outranked(policy: Policy, first: Policy) -> str:
    """The reason why a policy lost against the first policy of its kind."""
    if first.priority != policy.priority:
        return f"overridden by {first.source}: higher priority, {first.priority} against {policy.priority}"
    reason = "first by name" if first.compiled.rank == policy.compiled.rank else "more specific pattern"
    return f"overridden by {first.source}: {reason}"


class TtlStep(NamedTuple):
    """One rule of the resolution, and the TTL after it in ms (`None`: the message never expires).

    `option` is the option that the rule reads, and `text` its effect. The first step has no option: it is the
    TTL that the sender gives.
    """

    option: str | None
    text: str
    ttl: int | None


class TtlResolution(NamedTuple):
    """The TTL that a message gets, in ms, and the steps that lead to it. `None`: the message never expires.

    A message with a TTL of 0 is dead on arrival, unless a consumer waits for it.
    """

    ttl: int | None
    steps: tuple[TtlStep, ...]


def resolve_ttl(options: QueueOptions, ttl: int | None) -> TtlResolution:
    """The TTL of a message that is sent with `ttl` ms, or without one, to a queue with these options in force."""
    steps = [TtlStep(None, "sent without a TTL" if ttl is None else f"sent with a TTL of {as_text(ttl)}", ttl)]
    steps += _own(options, ttl)
    own, retention = steps[-1].ttl, options.number("message_ttl")
    if retention is not None:
        ends = own is None or retention < own
        text = "the message TTL of the queue is lower" if ends else "the message TTL of the queue is higher"
        steps.append(TtlStep("message_ttl", text, retention if ends else own))
    return TtlResolution(steps[-1].ttl, tuple(steps))


def _own(options: QueueOptions, ttl: int | None) -> list[TtlStep]:
    """The steps for the TTL of the message itself."""
    default, low, high = (options.number(name) for name in ("default_ttl", "min_ttl", "max_ttl"))
    if options.never_expire:
        return [TtlStep("never_expire", "the TTL of the message is ignored", None)]
    if default is not None:
        if ttl is None:
            return [TtlStep("default_ttl", "the TTL of a message without one", default)]
        return [TtlStep("default_ttl", "not for a message with a TTL; min_ttl and max_ttl do not act beside it", ttl)]
    if ttl is None:
        name, value = ("max_ttl", high) if high is not None else ("min_ttl", low)
        return [] if value is None else [TtlStep(name, "the TTL of a message without one", value)]
    steps = []
    if low is not None:
        ttl = max(ttl, low)
        steps.append(TtlStep("min_ttl", f"{as_text(low)} is the shortest TTL", ttl))
    if high is not None:
        ttl = min(ttl, high)
        steps.append(TtlStep("max_ttl", f"{as_text(high)} is the longest TTL", ttl))
    return steps


@dataclass(frozen=True)
class Explanation(Mapping[str, Explained]):
    """Every option of a queue by its name: the value in force, its source, and the values that lost.

    `policies` and `operator_policies` are those that match the name of the queue, in their order. `message` explains
    the TTL of a message that is sent with `ttl` ms (`None`: without one). `exists` is true if the declared options of
    an existing queue were read. `outdated` has the options of that queue that its record does not have in force yet,
    each with the value there: `Broker.reconcile` and reapers bring them up to date.
    """

    queue: str
    options: QueueOptions
    policies: tuple[Policy, ...]
    operator_policies: tuple[Policy, ...]
    message: TtlResolution
    explained: Mapping[str, Explained]
    exists: bool
    outdated: Mapping[str, object]

    @classmethod
    def of(cls, resolution: Resolution, ttl: int | None, recorded: QueueOptions | None = None) -> Explanation:
        """Explain a resolution. `recorded` are the options in force of an existing queue, as its record has them."""
        options = resolution.options
        outdated = {} if recorded is None else {name: was for name, (was, _) in recorded.differences(options).items()}
        return cls(
            options.queue,
            options,
            resolution.policies,
            resolution.operator_policies,
            resolve_ttl(options, ttl),
            explain(resolution),
            recorded is not None,
            outdated,
        )

    @classmethod
    def without_policies(cls, declared: Resolution, ttl: int | None, recorded: QueueOptions) -> Explanation:
        """Explain a queue whose policies cannot be read: what is not `declared` is in force by some policy."""
        known = explain(declared)
        explained = {
            name: one if one.value == recorded[name] else Explained(recorded[name], "a policy")
            for name, one in known.items()
        }
        return cls(recorded.queue, recorded, (), (), resolve_ttl(recorded, ttl), explained, exists=True, outdated={})

    def __getitem__(self, name: str) -> Explained:
        return self.explained[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.explained)

    def __len__(self) -> int:
        return len(self.explained)


# Warnings


def warn(policy: Policy, policies: PolicySet, queues: Mapping[str, QueueOptions]) -> list[str]:
    """Sentences about a policy in a set that contains it. `queues` are the options in force of all queues, by name."""
    matched = any(policy.matches(name) for name in queues)
    return [
        *([] if matched else [f"{policy.source}: no queue matches {policy.pattern!r}"]),
        *_own_targets(policy),
        *_expiring_letters(policy, policies, queues),
        *_equals(policy, policies),
    ]


def _own_targets(policy: Policy) -> Iterator[str]:
    """A target that the policy matches, too: the queue of that name gets no target by it."""
    for option in _TARGETS:
        target = policy.definition.get(option)
        if target and "{queue}" not in str(target) and policy.matches(str(target)):
            yield f"{policy.source} also matches its dead-letter queue {target}; it sets no {option} there"


def _expiring_letters(policy: Policy, policies: PolicySet, queues: Mapping[str, QueueOptions]) -> Iterator[str]:
    """Dead-letter queues from which the policy lets messages disappear, also those that do not exist yet."""
    options_of_policy = {name for name in _DEADLY if policy.definition.get(name) is not None}
    if not options_of_policy:
        return
    targets = {target for options in queues.values() for target in options.targets()}
    lossy, deadly = [], set()
    for name in sorted(filter(policy.matches, targets)):
        options = queues.get(name) or policies.resolve(QueueOptions(name, {})).options
        if reasons := options_of_policy & _drops(options):
            lossy.append(name)
            deadly |= reasons
    if lossy:
        more = f" and {len(lossy) - 1:,} more" if len(lossy) > 1 else ""
        verb = "lets" if len(deadly) == 1 else "let"
        yield f"{policy.source}: {', '.join(sorted(deadly))} {verb} dead letters in {lossy[0]}{more} disappear"


def _drops(options: QueueOptions) -> set[str]:
    """The options by which messages in a queue are dropped, or end with their queue."""
    ends = _ENDS if options.on_expire == "drop" else ()
    retention = () if options.target("expired") else ("message_ttl",)
    limits = () if options.target("maxlen") or options.overflow != "drop-head" else ("max_length", "max_length_bytes")
    return {name for name in (*ends, *retention, *limits) if options[name] is not None}


def _equals(policy: Policy, policies: PolicySet) -> Iterator[str]:
    """Other policies of the same kind, pattern and priority that give the same options: their names decide."""

    def rank(one: Policy) -> tuple[object, ...]:
        return one.operator, one.pattern, one.syntax, one.priority

    for other in policies.policies:
        both = sorted(policy.definition.keys() & other.definition.keys())
        if both and other.name != policy.name and rank(other) == rank(policy):
            yield (
                f"{policy.source}: {other.name} has the same pattern and priority and gives {', '.join(both)}, too; "
                f"{min(policy.name, other.name)} comes first by its name"
            )
