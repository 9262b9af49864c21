"""The steps from the present state of a namespace to a deployment, and the danger of each step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from rqttl.deployments.danger import policy_dangers, queue_dangers
from rqttl.deployments.deployment import Deployment
from rqttl.options import OPTIONS, QueueOptions, written
from rqttl.policies import Policy
from rqttl.policies.policy import NONE

Action = Literal["create", "update", "set", "delete"]
Kind = Literal["queue", "policy", "operator policy"]


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
    queues = list(_queues(desired.queues, present.queues))
    steps = (
        *_policies("operator policy", desired.operator_policies, present.operator_policies),
        *_policies("policy", desired.policies, present.policies),
        *(step for step in queues if step.action == "create"),
        *(step for step in queues if step.action == "update"),
        *(deletions if prune else ()),
    )
    return Plan(steps, () if prune else tuple((step.kind, step.name) for step in deletions))


_PARTS = ("pattern", "syntax", "priority", "apply_to")


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
            yield Step("set", kind, name, before, policy, policy_dangers(before, policy))


def _queues(desired: Mapping[str, QueueOptions], present: Mapping[str, QueueOptions]) -> Iterator[Step]:
    for name, options in sorted(desired.items()):
        before = present.get(name)
        if before is None:
            yield Step("create", "queue", name, None, options)
        elif options != before:
            yield Step("update", "queue", name, before, options, queue_dangers(before, options))


def _deletions(
    kind: Kind, desired: Mapping[str, QueueOptions | Policy], present: Mapping[str, QueueOptions | Policy]
) -> Iterator[Step]:
    for name, before in sorted(present.items()):
        if name not in desired:
            dangers = policy_dangers(before, None) if isinstance(before, Policy) else ("its messages are deleted",)
            yield Step("delete", kind, name, before, None, dangers)
