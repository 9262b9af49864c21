"""A policy: options for all queues whose names match a pattern; and all policies of a namespace at one version."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from types import MappingProxyType
from typing import NamedTuple

from rqttl.checks import check_queue_name, is_queue_name, whole
from rqttl.errors import DataDamaged, InvalidInput, InvalidName, InvalidPolicy
from rqttl.options import DECLARED_ONLY, OPTIONS, SCRIPT_OPTIONS, QueueOptions, Value, by_name, written
from rqttl.policies.patterns import Pattern, Syntax, compile_pattern
from rqttl.text import escape, format_value, load_object, plain_text
from rqttl.units import as_text

#: The least and the greatest priority, without its sign.
MAX_PRIORITY = 1_000_000
#: The text of a definition that stops an option from being inherited.
NONE = "none"
_PARTS = ("apply_to", "definition", "pattern", "priority", "syntax")
DECLARED = "declared"
VERSION = b"version"
_KINDS = {b"policy": False, b"operator": True}
#: Kinds of options of which the smallest value counts.
LIMITS = ("duration", "count", "size", "rate")
_BOUNDS = (("min_ttl", "max_ttl"), ("redelivery_delay", "redelivery_max_delay"))
_DELAYS = tuple(name for name, use in SCRIPT_OPTIONS.items() if use == "failure" and name != "redelivery_delay")


@dataclass(frozen=True)
class Policy:
    """Options for all queues whose names match `pattern`. `Policy.read` checks arguments; `Policy(...)` does not.

    `definition` maps names of options, with underscores, to values. Durations are milliseconds. `None` is the word
    `none`: no policy of this kind gives the option a value then. `operator` is true for an operator policy.
    """

    name: str
    pattern: str
    definition: Mapping[str, Value | None] = field(hash=False)
    priority: int = 0
    apply_to: str = "queues"
    syntax: Syntax = "wildcard"
    operator: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "definition", MappingProxyType(dict(sorted(self.definition.items()))))

    def __reduce__(self) -> tuple[Callable[..., Policy], tuple[str, bool, str]]:
        return Policy.from_json, (self.name, self.operator, self.as_json())

    @classmethod
    def read(
        cls,
        name: object,
        pattern: object,
        definition: object,
        *,
        priority: object = 0,
        apply_to: object = "queues",
        syntax: object = "wildcard",
        operator: bool = False,
    ) -> Policy:
        """Check the arguments of `set_policy`. Raises `InvalidPolicy`, which names policy, option, value and rule."""
        known = check_policy_name(name, operator=operator)
        try:
            compiled = compile_pattern(pattern, syntax)
            if plain_text(apply_to) != "queues":
                rule = "expected 'queues', the only kind that exists"
                raise InvalidPolicy(f"apply_to: {rule}, got {format_value(apply_to)}")
            return cls(
                known,
                compiled.text,
                _definition(definition),
                whole(priority, "priority", -MAX_PRIORITY, MAX_PRIORITY),
                "queues",
                compiled.syntax,
                operator,
            )
        except InvalidInput as error:
            raise InvalidPolicy(f"{_kind(operator)} {known!r}: {error}") from None

    @classmethod
    def from_json(cls, name: str, operator: bool, text: str | bytes) -> Policy:
        """Read the text of `as_json`. Raises `InvalidPolicy`."""
        source = f"{_kind(operator)} {name!r}"
        text = text.decode("utf-8", "backslashreplace") if isinstance(text, bytes) else text
        try:
            parts = load_object(text)
        except ValueError as error:
            raise InvalidPolicy(f"{source}: expected JSON, got {format_value(text)} ({error})") from None
        if tuple(sorted(parts)) != _PARTS or not isinstance(parts["definition"], dict):
            raise InvalidPolicy(f"{source}: expected JSON with {', '.join(_PARTS)}, got {format_value(text)}")
        definition = {option: written(option, value) for option, value in parts.pop("definition").items()}
        return cls.read(name, parts.pop("pattern"), definition, **parts, operator=operator)

    def as_json(self) -> str:
        """All parts except name and kind as JSON, with durations in milliseconds. Equal policies give equal texts."""
        parts = {part: getattr(self, part) for part in _PARTS} | {"definition": dict(self.definition)}
        return json.dumps(parts, sort_keys=True, separators=(",", ":"))

    def as_arguments(self) -> dict[str, object]:
        """All parts except name and kind as arguments of `set_policy`, with durations as text with a unit.

        A copy of a policy: `broker.set_policy("copy", **policy.as_arguments())`.
        """
        definition = {option: written(option, value) for option, value in self.definition.items()}
        return {
            "pattern": self.pattern,
            "definition": definition,
            "priority": self.priority,
            "apply_to": self.apply_to,
            "syntax": self.syntax,
        }

    @property
    def source(self) -> str:
        """The policy as the source of an option: `policy NAME` or `operator policy NAME`."""
        return f"{_kind(self.operator)} {self.name}"

    @property
    def field(self) -> str:
        """The field of the policy in the hash of all policies in Redis."""
        return f"{'operator' if self.operator else 'policy'} {self.name}"

    def matches(self, queue: str) -> bool:
        """True if the pattern matches the name of a queue."""
        return self.compiled.matches(queue)

    @cached_property
    def compiled(self) -> Pattern:
        """The pattern, compiled."""
        return compile_pattern(self.pattern, self.syntax)

    @cached_property
    def templates(self) -> tuple[str, ...]:
        """The targets in the definition that make another name out of the name of the queue, such as `EXP.{queue}`."""
        targets = [str(value) for option, value in self.definition.items() if OPTIONS[option].kind == "target"]
        return tuple(dict.fromkeys(text for text in targets if "{queue}" in text and text != "{queue}"))


def check_policy_name(name: object, *, operator: bool) -> str:
    """Return `name` if a policy may have it: the rule is that of queue names. Raises `InvalidPolicy`."""
    try:
        return check_queue_name(name, f"name of the {_kind(operator)}")
    except InvalidName as error:
        raise InvalidPolicy(str(error)) from None


def _kind(operator: bool) -> str:
    return "operator policy" if operator else "policy"


def _definition(definition: object) -> dict[str, Value | None]:
    if not isinstance(definition, Mapping):
        raise InvalidPolicy(f"definition: expected a mapping of options, got {format_value(definition)}")
    values: dict[str, Value | None] = {}
    for option, value in by_name(definition).items():
        if option in DECLARED_ONLY:
            raise InvalidPolicy(f"{option}: declare it for each queue: for many at once a policy could close a circle")
        stops = value is None or plain_text(value) == NONE
        values[option] = None if stops else OPTIONS[option].read(option, value)
    if not values:
        raise InvalidPolicy("definition: expected at least one option, got none")
    for floor, ceiling in _BOUNDS:
        low, high = values.get(floor), values.get(ceiling)
        if low is not None and high is not None and int(low) > int(high):
            raise InvalidPolicy(f"{floor}: {as_text(int(low))} is more than {ceiling}, {as_text(int(high))}")
    return values


# The options in force: declared options, merged with the policies that match


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


@dataclass(frozen=True)
class Resolution:
    """The declared options of a queue, and the policies that match its name, each kind in its order.

    `templates` are all policies with templates. All else is computed when it is first used.
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
        winners: dict[str, Claim | None] = {name: ranked[0] for name, ranked in self.claims.items()}
        winners |= {name: change.claim for name, change in self.changes.items()}
        values = {name: claim.value for name, claim in winners.items() if claim}
        values = {name: value for name, value in sorted(values.items()) if value != OPTIONS[name].default}
        return self.declared if values == self.declared.non_default else replace(self.declared, non_default=values)

    @cached_property
    def offers(self) -> tuple[dict[str, Offer], dict[str, Offer]]:
        """The values that policies give, and those of operator policies."""
        return self._offers(self.policies), self._offers(self.operator_policies)

    def _offers(self, policies: Sequence[Policy]) -> dict[str, Offer]:
        """The value that policies of one kind give to each option: the first policy that has the option decides."""
        offers: dict[str, Offer] = {}
        for policy in policies:
            for name, value in policy.definition.items():
                if name not in offers:
                    is_target = value is not None and OPTIONS[name].kind == "target"
                    reason = fault(name, str(value), self.declared.queue, self.templates) if is_target else ""
                    offers[name] = Offer(None if reason else value, policy, reason)
        return offers

    @cached_property
    def claims(self) -> dict[str, list[Claim]]:
        """All claims on each option, the winner first."""
        names = dict.fromkeys((*self.declared.non_default, *self.offers[0], *self.offers[1]))
        return {name: ranked for name in names if (ranked := self._ranked(name))}

    def _ranked(self, name: str) -> list[Claim]:
        """The claims on an option, the winner first. Of equal limits the declared one wins, then the policy's."""
        own = self.declared.non_default.get(name)
        user, operator = (offers.get(name) for offers in self.offers)
        claims = [] if own is None else [Claim(own, DECLARED)]
        claims += [
            Claim(offer.value, offer.policy.source) for offer in (user, operator) if offer and offer.value is not None
        ]
        if OPTIONS[name].kind in LIMITS:
            return sorted(claims, key=lambda claim: magnitude(claim.value))
        if operator is not None and operator.value is not None:
            return [claims[-1], *claims[:-1]]
        return claims

    @cached_property
    def changes(self) -> dict[str, Change]:
        """The changes of winners that contradict each other."""
        winners = {name: ranked[0] for name, ranked in self.claims.items()}
        changes: dict[str, Change] = {}
        if "redelivery_delay" not in winners:
            for name in _DELAYS:
                if name in winners:
                    changes[name] = Change(None, "it does nothing without redelivery_delay")
        if "burst" in winners and "rate" not in winners:
            changes["burst"] = Change(None, "it does nothing without rate")
        for floor, ceiling in _BOUNDS:
            low, high = winners.get(floor), winners.get(ceiling)
            if low and high and int(low.value) > int(high.value):
                reason = f"{as_text(int(low.value))} is more than {ceiling}, {as_text(int(high.value))} ({high.source})"
                changes[floor] = Change(high, f"{reason}: the smaller limit counts")
        return changes


def magnitude(value: Value) -> Fraction | Value:
    """A value of a limit, as something that can be compared: a rate is messages per ms."""
    return Fraction(value) if isinstance(value, str) else value


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
        return f"{format_value(name)} is not a valid queue name"
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


@dataclass(frozen=True)
class PolicySet:
    """All policies and operator policies of a namespace. `version` rises with each change of them.

    A set never changes, and keeps nothing about single queues.
    """

    version: int = 0
    policies: tuple[Policy, ...] = ()

    def __post_init__(self) -> None:
        unique = {(policy.operator, policy.name): policy for policy in self.policies}
        object.__setattr__(self, "policies", tuple(unique[key] for key in sorted(unique)))

    @classmethod
    def from_fields(cls, fields: Mapping[bytes, bytes]) -> PolicySet:
        """Read the hash of policies in Redis. Raises `DataDamaged` for a field that this process cannot read.

        Perhaps a newer rqttl has written it.
        """
        if not fields:
            return cls()
        version = fields.get(VERSION, b"")
        if not (version.isdigit() and len(version) <= 16):
            raise _damaged(VERSION, f"expected a whole number, got {format_value(version, bytes)}")
        return cls(int(version), tuple(_policy(name, text) for name, text in fields.items() if name != VERSION))

    def get(self, name: str, operator: bool = False) -> Policy | None:
        """The policy of this name and kind; `None` if there is none."""
        return next((one for one in self.policies if (one.operator, one.name) == (operator, name)), None)

    def lost_in(self, after: PolicySet) -> list[Policy]:
        """The policies of this set that are others in a later set, or are not there."""
        return [policy for policy in self.policies if policy not in after.policies]

    def changed(self, stored: Iterable[Policy], removed: Iterable[Policy] = ()) -> PolicySet:
        """The next version: with some policies stored, and without others. Without a difference, this set."""
        kept = {(policy.operator, policy.name): policy for policy in self.policies}
        for policy in removed:
            kept.pop((policy.operator, policy.name), None)
        kept |= {(policy.operator, policy.name): policy for policy in stored}
        after = PolicySet(self.version + 1, tuple(kept.values()))
        return self if after.policies == self.policies else after

    def matching(self, queue: str, operator: bool = False) -> tuple[Policy, ...]:
        """The policies of one kind that match a queue name: by priority, then specific patterns first, then by name."""
        return tuple(policy for policy, matches in self._ordered if policy.operator is operator and matches(queue))

    def resolve(self, declared: QueueOptions) -> Resolution:
        """The options in force of a queue with these declared options."""
        queue = declared.queue
        return Resolution(declared, self.matching(queue, False), self.matching(queue, True), self._templates)

    @cached_property
    def _templates(self) -> tuple[Policy, ...]:
        return tuple(policy for policy in self.policies if policy.templates)

    @cached_property
    def _ordered(self) -> list[tuple[Policy, Callable[[str], bool]]]:
        """All policies in their order, each with the test of its pattern."""
        ordered = sorted(self.policies, key=lambda policy: (-policy.priority, policy.compiled.rank, policy.name))
        return [(policy, policy.compiled.matches) for policy in ordered]


def _policy(field: bytes, text: bytes) -> Policy:
    kind, _, name = field.partition(b" ")
    # no release stores a policy of another name, and no call can delete it
    if kind not in _KINDS or not is_queue_name(name.decode("ascii", "replace")):
        raise _damaged(field, "expected 'version', 'policy NAME' or 'operator NAME'")
    try:
        return Policy.from_json(name.decode(), _KINDS[kind], text)
    except InvalidPolicy as error:
        raise _damaged(field, str(error)) from None


def _damaged(field: bytes, reason: str) -> DataDamaged:
    name = escape(field, 200)
    return DataDamaged(
        None, f"the field {name!r} of the stored policies cannot be read: {reason}: look at it, then HDEL it"
    )
