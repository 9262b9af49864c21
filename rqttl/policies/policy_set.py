"""All policies of a namespace at one version."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from rqttl.checks import is_queue_name
from rqttl.errors import DataDamaged, InvalidPolicy
from rqttl.options import QueueOptions
from rqttl.policies.merging import Resolution
from rqttl.policies.patterns import compile_pattern
from rqttl.policies.policy import Policy
from rqttl.text import escape, format_value


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
        compiled = [(policy, compile_pattern(policy.pattern, policy.syntax)) for policy in self.policies]
        compiled.sort(key=lambda pair: (-pair[0].priority, pair[1].rank, pair[0].name))
        return [(policy, pattern.matches) for policy, pattern in compiled]


VERSION = b"version"
_KINDS = {b"policy": False, b"operator": True}


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
