"""All policies of a namespace at one version."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from rqttl.errors import DataDamaged, InvalidPolicy
from rqttl.names import is_queue_name
from rqttl.options import QueueOptions
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
    keeps nothing about single queues. `damaged` has the fields that this process cannot read, each with the reason:
    perhaps a newer rqttl has written them. While there is one, options in force stay, and no other policy changes.
    """

    version: int = 0
    policies: tuple[Policy, ...] = ()
    damaged: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        unique = {(policy.operator, policy.name): policy for policy in self.policies}
        object.__setattr__(self, "policies", tuple(unique[key] for key in sorted(unique)))

    @classmethod
    def from_fields(cls, fields: Mapping[bytes, bytes]) -> PolicySet:
        """Read the hash of policies in Redis. Fields that cannot be read are `damaged`."""
        if not fields:
            return cls()
        policies: list[Policy] = []
        damaged: dict[str, str] = {}
        for name, text in sorted(fields.items()):
            if name != VERSION:
                read = _policy(name, text)
                if isinstance(read, Policy):
                    policies.append(read)
                else:
                    damaged[escape(name, 200)] = read
        version = fields.get(VERSION)
        if version is not None and is_version(version):
            return cls(int(version), tuple(policies), damaged)
        known = None if version is None else version.decode("utf-8", "backslashreplace")
        damaged["version"] = f"expected a whole number, got {format_value(known)}"
        return cls(UNKNOWN, tuple(policies), damaged)

    @property
    def errors(self) -> list[DataDamaged]:
        """An error for each field that cannot be read."""
        return [
            DataDamaged(None, f"the field {field!r} of the stored policies cannot be read: {reason}")
            for field, reason in self.damaged.items()
        ]

    def get(self, name: str, operator: bool = False) -> Policy | None:
        """The policy of this name and kind; `None` if there is none."""
        return self._by_name.get((operator, name))

    def find(self, name: str, operator: bool = False) -> Policy | None:
        """`get` that finds damaged policies, too: one without options takes the place of such a policy."""
        key = f"{'operator' if operator else 'policy'} {name}"
        return self.get(name, operator) or (_stand_in(key) if key in self.damaged else None)

    def lost_in(self, after: PolicySet) -> list[Policy]:
        """The policies of this set that are others in a later set, or are not there."""
        mended = [field for field in self.damaged if field not in after.damaged]
        return [
            *(policy for policy in self.policies if policy not in after.policies),
            *(stand_in for field in mended if (stand_in := _stand_in(field))),
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

        Raises `DataDamaged` if another field cannot be read: the effect of the change is unknown then.
        """
        stored, removed = tuple(stored), tuple(removed)
        if not stored and not removed:
            return self
        kept = {(policy.operator, policy.name): policy for policy in self.policies}
        for policy in removed:
            kept.pop((policy.operator, policy.name), None)
        kept |= {(policy.operator, policy.name): policy for policy in stored}
        mended = {policy.field for policy in (*stored, *removed)}
        for name, error in zip(self.damaged, self.errors, strict=True):
            if name not in mended:
                raise error
        after = PolicySet(self.version + 1, tuple(kept.values()))
        return self if after.policies == self.policies and not self.damaged else after

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


def _stand_in(field: str) -> Policy | None:
    """A policy without options for any queue, in the place of one that cannot be read; `None` for another field."""
    kind, _, name = field.partition(" ")
    return Policy(name, "#", {}, operator=_KINDS[kind]) if kind in _KINDS and is_queue_name(name) else None


def _policy(field: bytes, text: bytes) -> Policy | str:
    """The policy in a field, or the reason why it cannot be read."""
    kind, _, name = field.decode("utf-8", "backslashreplace").partition(" ")
    if kind not in _KINDS:
        return "expected 'version', 'policy NAME' or 'operator NAME'"
    if not is_queue_name(name):  # no release stores such a policy, and no call can delete it
        return f"{format_value(name)} is no name of a policy"
    try:
        return Policy.from_json(name, _KINDS[kind], text)
    except InvalidPolicy as error:
        return str(error)
