"""The steps from the present state of a namespace to a deployment, and the ways in which messages can die by each.

The judgement is careful: a change is dangerous if there are messages that it can end. A dry run counts them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import EllipsisType
from typing import Literal, TypeAlias

from rqttl.deployments.deployment import Deployment
from rqttl.options import OPTIONS, QueueOptions, Value, written
from rqttl.policies import Policy
from rqttl.policies.policy import NONE

Action = Literal["create", "update", "set", "delete"]
Kind = Literal["queue", "policy", "operator policy"]
#: `...` stands for an option that is not in a definition, `None` for the word `none`.
_Declaration: TypeAlias = Value | EllipsisType | None

_PARTS = ("pattern", "syntax", "priority", "apply_to")
_TARGETS = tuple(name for name in OPTIONS if OPTIONS[name].kind == "target")
#: Options that end messages, or whole queues, sooner when they are lowered or newly set.
_ENDINGS = (
    "message_ttl",
    "default_ttl",
    "max_ttl",
    "max_length",
    "max_length_bytes",
    "expires",
    "auto_delete_on_idle",
    "max_deliveries",
)
#: Options that keep messages, or a part of them.
_KEEPERS = ("min_ttl", "never_expire", "overflow", "on_expire", *_TARGETS)


@dataclass(frozen=True)
class Step:
    """One change. `before` is `None` for something new, and `after` is `None` for something deleted.

    `dangers` names each way in which messages can die by the step.
    """

    action: Action
    kind: Kind
    name: str
    before: QueueOptions | Policy | None
    after: QueueOptions | Policy | None
    dangers: tuple[str, ...] = ()

    @property
    def destructive(self) -> bool:
        """True if messages can die by this step."""
        return bool(self.dangers)

    @property
    def changes(self) -> dict[str, tuple[object, object]]:
        """The changed options, and the changed parts of a policy, each with its values before and after.

        Durations are texts with a unit. `None` means that there is no value, and `none` is the word in a definition.
        """
        before, after = _values(self.before), _values(self.after)
        names = (*(name for name in _PARTS if name in before or name in after), *OPTIONS)
        pairs = {name: (before.get(name), after.get(name)) for name in names}
        return {name: (old, new) for name, (old, new) in pairs.items() if old != new}


@dataclass(frozen=True)
class Plan:
    """The steps in a safe order, and the `kept` objects: the file does not name them, and `prune` is false."""

    steps: tuple[Step, ...]
    kept: tuple[tuple[Kind, str], ...] = ()

    @property
    def destructive(self) -> tuple[Step, ...]:
        """The steps by which messages can die."""
        return tuple(step for step in self.steps if step.destructive)


def make_plan(desired: Deployment, present: Deployment, *, prune: bool = False) -> Plan:
    """The steps that turn `present` into `desired`. Without `prune`, everything that `desired` does not name stays.

    Policies come first, so that new queues are born with them. Deletions come last. Equal states give no steps.
    """
    deletions = (
        *_deletions("policy", desired.policies, present.policies),
        *_deletions("operator policy", desired.operator_policies, present.operator_policies),
        *_deletions("queue", desired.queues, present.queues),
    )
    steps = (
        *_policies("operator policy", desired.operator_policies, present.operator_policies),
        *_policies("policy", desired.policies, present.policies),
        *sorted(_queues(desired.queues, present.queues), key=lambda step: (step.action, step.name)),
        *(deletions if prune else ()),
    )
    return Plan(steps, () if prune else tuple((step.kind, step.name) for step in deletions))


def _values(source: QueueOptions | Policy | None) -> dict[str, object]:
    if source is None:
        return {}
    if isinstance(source, QueueOptions):
        return dict(source.as_arguments())
    definition = {name: NONE if value is None else written(name, value) for name, value in source.definition.items()}
    return {**{part: getattr(source, part) for part in _PARTS}, **definition}


def _policies(kind: Kind, desired: Mapping[str, Policy], present: Mapping[str, Policy]) -> Iterator[Step]:
    for name, policy in sorted(desired.items()):
        before = present.get(name)
        if policy != before:
            yield Step("set", kind, name, before, policy, _policy_dangers(before, policy))


def _queues(desired: Mapping[str, QueueOptions], present: Mapping[str, QueueOptions]) -> Iterator[Step]:
    for name, options in desired.items():
        before = present.get(name)
        if before is None:
            yield Step("create", "queue", name, None, options)
        elif options != before:
            yield Step("update", "queue", name, before, options, tuple(_dangers(before, options)))


def _deletions(
    kind: Kind, desired: Mapping[str, QueueOptions | Policy], present: Mapping[str, QueueOptions | Policy]
) -> Iterator[Step]:
    for name, before in sorted(present.items()):
        if name not in desired:
            dangers = _policy_dangers(before, None) if isinstance(before, Policy) else ("its messages are deleted",)
            yield Step("delete", kind, name, before, None, dangers)


def _policy_dangers(before: Policy | None, after: Policy | None) -> tuple[str, ...]:
    """The dangers of a policy that is new, changed or deleted.

    A policy with another pattern or priority is a new one for some queues, and a deleted one for others.
    """
    if before and after and any(getattr(before, part) != getattr(after, part) for part in _PARTS):
        return tuple(dict.fromkeys((*_policy_dangers(None, after), *_policy_dangers(before, None))))
    old, new = (policy.definition if policy else {} for policy in (before, after))
    gone = [name for name in (*_ENDINGS, *_KEEPERS) if name in old and name not in new]
    return (*_dangers(old, new), *(f"{name}: without this policy, messages may end sooner" for name in gone))


def _dangers(before: Mapping[str, Value | None], after: Mapping[str, Value | None]) -> Iterator[str]:
    for name in OPTIONS:
        old, new = before.get(name, ...), after.get(name, ...)
        if old != new and new is not ... and _ends_messages(name, old, new):
            yield f"{name}: {_as_text(name, old)} → {_as_text(name, new)}"


def _ends_messages(name: str, old: _Declaration, new: Value | None) -> bool:
    """True if messages can die because an option gets another value."""
    if name in _ENDINGS:
        return new is not None and (not isinstance(old, (int, float)) or float(new) < old)
    if name == "min_ttl":  # a floor gives a TTL to messages without one, and keeps others alive
        return new is None or not isinstance(old, (int, float)) or float(new) < old
    if name == "never_expire":
        return not new and old is not False
    if name == "overflow":
        return new in (None, "drop-head")
    if name == "on_expire":
        return new in (None, "drop")
    return name in _TARGETS and not new


def _as_text(name: str, value: object) -> str:
    if value is ... or value is None:
        return "unset" if value is ... else NONE
    return repr("") if value == "" else str(written(name, value))
