"""Stored policies that this process cannot read: damaged ones, and those of a newer rqttl."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from rqttl.errors import InvalidPolicy, PoliciesDamaged
from rqttl.json_text import load_object
from rqttl.options import QueueOptions
from rqttl.policies.patterns import Pattern, compile_pattern
from rqttl.policies.policy import Policy


@dataclass(frozen=True)
class Damage:
    """A field of the stored policies that cannot be read, or all of them (`field` is `None`).

    `pattern` and `options` are set if the text has a readable pattern and names options: then the rest of the policies
    can be changed, and only the options that it names are unknown for the queues that match. Such a policy is probably
    one of a newer rqttl.
    """

    field: str | None
    reason: str
    pattern: Pattern | None = None
    options: frozenset[str] = frozenset()

    @classmethod
    def of_policy(cls, field: str, text: bytes, reason: str) -> Damage:
        """The damage of a policy, with its pattern and the names of its options if they can be read."""
        try:
            parts = load_object(text)
            definition = parts["definition"]
            pattern = compile_pattern(parts["pattern"], parts["syntax"])
        except (ValueError, TypeError, LookupError, InvalidPolicy):
            return cls(field, reason)
        if not isinstance(definition, Mapping):
            return cls(field, reason)
        return cls(field, reason, pattern, frozenset(name.replace("-", "_") for name in definition))

    @property
    def is_total(self) -> bool:
        """True if nothing is known about the queues and options of the policy."""
        return self.pattern is None

    @property
    def error(self) -> PoliciesDamaged:
        """The damage as an error."""
        return PoliciesDamaged(self.field, self.reason)

    @property
    def stand_in(self) -> Policy | None:
        """A policy of this name and pattern without options, for its deletion; `None` if it has no name."""
        kind, _, name = (self.field or "").partition(" ")
        if not name or kind not in ("policy", "operator"):
            return None
        text, syntax = (self.pattern.text, self.pattern.syntax) if self.pattern else ("#", "wildcard")
        return Policy(name, text, {}, syntax=syntax, operator=kind == "operator")

    def may_match(self, queue: str) -> bool:
        """True if the policy may give options to a queue."""
        return self.pattern is None or self.pattern.matches(queue)


def kept(
    resolved: QueueOptions,
    declared: QueueOptions,
    was_declared: QueueOptions,
    in_force: QueueOptions,
    damages: Collection[Damage],
) -> QueueOptions:
    """The resolved options of a queue, with the values in force where an unreadable policy may have given them.

    An option with a new declared value gets that value: a user changes it now.
    """
    if any(damage.is_total for damage in damages):
        names = {*resolved.non_default, *in_force.non_default}
    else:
        names = {name for damage in damages for name in damage.options}
    values = dict(resolved.non_default)
    for name in names:
        if declared.non_default.get(name) == was_declared.non_default.get(name):
            values.pop(name, None)
            values |= {name: in_force.non_default[name]} if name in in_force.non_default else {}
    return QueueOptions(declared.queue, dict(sorted(values.items())))
