"""All policies of a namespace at one version."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from rqttl.errors import InvalidPolicy
from rqttl.names import is_queue_name
from rqttl.options import QueueOptions
from rqttl.policies.damage import Damage
from rqttl.policies.matching import Matcher
from rqttl.policies.merging import Ranked
from rqttl.policies.patterns import compile_pattern
from rqttl.policies.policy import Policy
from rqttl.policies.resolution import Resolution
from rqttl.text import escape, format_value

_Ordered = tuple[list[Policy], Matcher]
_Known = dict[tuple[int, ...], Ranked]
#: Combinations of matching policies that a set keeps.
_REMEMBERED = 1024


@dataclass(frozen=True)
class PolicySet:
    """All policies and operator policies of a namespace. `version` rises with each change of them.

    A set never changes. It compiles each pattern once, and merges the policies once that match the same queues. It
    keeps nothing about single queues. `damaged` has the stored policies that this process cannot read. They give no
    options here, and no other policy is ignored because of them.
    """

    version: int = 0
    policies: tuple[Policy, ...] = ()
    damaged: tuple[Damage, ...] = ()

    def __post_init__(self) -> None:
        unique = {(policy.operator, policy.name): policy for policy in self.policies}
        object.__setattr__(self, "policies", tuple(unique[key] for key in sorted(unique)))

    @classmethod
    def from_fields(cls, fields: Mapping[bytes, bytes]) -> PolicySet:
        """Read the hash of policies in Redis. Fields that cannot be read are `damaged`."""
        if not fields:
            return cls()
        read = [_policy(field, text) for field, text in sorted(fields.items()) if field != VERSION]
        version = fields.get(VERSION)
        policies = tuple(policy for policy in read if isinstance(policy, Policy))
        damaged = tuple(policy for policy in read if isinstance(policy, Damage))
        if version is not None and is_version(version):
            return cls(int(version), policies, damaged)
        text = None if version is None else version.decode("utf-8", "backslashreplace")
        damage = Damage("version", f"expected a whole number, got {format_value(text)}")
        return cls(UNKNOWN, policies, (*damaged, damage))

    def get(self, name: str, operator: bool = False) -> Policy | None:
        """The policy of this name and kind; `None` if there is none."""
        return self._by_name.get((operator, name))

    def find(self, name: str, operator: bool = False) -> Policy | None:
        """`get` that finds damaged policies, too: a stand-in without options takes the place of such a policy."""
        stand_ins = {(other.operator, other.name): other for damage in self.damaged if (other := damage.stand_in)}
        return self.get(name, operator) or stand_ins.get((operator, name))

    def lost_in(self, after: PolicySet) -> list[Policy]:
        """The policies of this set that are others in a later set, or are not there. Damaged ones have stand-ins."""
        mended = [damage.stand_in for damage in self.damaged if damage not in after.damaged]
        return [
            *(policy for policy in self.policies if policy not in after.policies),
            *(stand_in for stand_in in mended if stand_in),
        ]

    def with_policy(self, policy: Policy) -> PolicySet:
        """The next version: with this policy, in the place of an older one of its name and kind."""
        return PolicySet(self.version + 1, (*self.policies, policy), self.damaged)

    def without(self, name: str, operator: bool = False) -> PolicySet:
        """The next version: without the policy of this name and kind. Without such a policy, this set."""
        policy = self.get(name, operator)
        if policy is None:
            return self
        return PolicySet(self.version + 1, tuple(p for p in self.policies if p is not policy), self.damaged)

    def changed(self, stored: Iterable[Policy], removed: Iterable[Policy] = ()) -> PolicySet:
        """The next version: with some policies stored, and without others. Without a difference, this set.

        Raises `PoliciesDamaged` if this set has damage that leaves the effect of the change unknown. A change that
        stores or removes the damaged policy itself is good.
        """
        stored, removed = tuple(stored), tuple(removed)
        if not stored and not removed:
            return self
        kept = {(policy.operator, policy.name): policy for policy in self.policies}
        for policy in removed:
            kept.pop((policy.operator, policy.name), None)
        kept |= {(policy.operator, policy.name): policy for policy in stored}
        mended = {policy.field for policy in (*stored, *removed)}
        damaged = tuple(damage for damage in self.damaged if damage.field not in mended)
        for damage in damaged:
            if damage.is_total:
                raise damage.error
        after = PolicySet(self.version + 1, tuple(kept.values()), damaged)
        return self if (after.policies, damaged) == (self.policies, self.damaged) else after

    def damages(self, queue: str) -> list[Damage]:
        """The damaged policies that may match a queue name."""
        return [damage for damage in self.damaged if damage.may_match(queue)]

    def matching(self, queue: str, operator: bool = False) -> Ranked:
        """The policies of one kind that match a queue name: by priority, then specific patterns first, then by name."""
        policies, matcher = self._ordered[operator]
        places = tuple(matcher.places(queue))
        known = self._ranked[operator]
        if places not in known:
            if len(known) >= _REMEMBERED:
                known.clear()
            known[places] = Ranked(policies[place] for place in places)
        return known[places]

    def resolve(self, declared: QueueOptions) -> Resolution:
        """The options in force of a queue with these declared options."""
        queue = declared.queue
        return Resolution(declared, self.matching(queue, False), self.matching(queue, True), self._templates)

    @cached_property
    def _by_name(self) -> dict[tuple[bool, str], Policy]:
        return {(policy.operator, policy.name): policy for policy in self.policies}

    @cached_property
    def _templates(self) -> tuple[Policy, ...]:
        return tuple(policy for policy in self.policies if policy.templates)

    @cached_property
    def _ranked(self) -> tuple[_Known, _Known]:
        """Policies and operator policies that match some queue, by their places in the order of their kind."""
        return {}, {}

    @cached_property
    def _ordered(self) -> tuple[_Ordered, _Ordered]:
        """The policies and the operator policies in their order, with their patterns."""
        return _order(p for p in self.policies if not p.operator), _order(p for p in self.policies if p.operator)


VERSION = b"version"
#: The version of a set whose version cannot be read. No record of a queue names it.
UNKNOWN = -1
_KINDS = {"policy": False, "operator": True}


def is_version(text: bytes) -> bool:
    """True if a text is the version of a set of policies."""
    return text.isdigit() and len(text) <= 16


def _order(policies: Iterable[Policy]) -> _Ordered:
    compiled = [(policy, compile_pattern(policy.pattern, policy.syntax)) for policy in policies]
    compiled.sort(key=lambda pair: (-pair[0].priority, pair[1].rank, pair[0].name))
    return [policy for policy, _ in compiled], Matcher([pattern for _, pattern in compiled])


def _policy(field: bytes, text: bytes) -> Policy | Damage:
    kind, _, name = field.decode("utf-8", "backslashreplace").partition(" ")
    field_name = escape(field, 200)
    if kind not in _KINDS:
        return Damage.of_policy(field_name, text, "expected 'version', 'policy NAME' or 'operator NAME'")
    if not is_queue_name(name):  # no release stores such a policy, and no call can delete it
        return Damage(field_name, f"{format_value(name)} is no name of a policy")
    try:
        return Policy.from_json(name, _KINDS[kind], text)
    except InvalidPolicy as error:
        return Damage.of_policy(field_name, text, str(error))
