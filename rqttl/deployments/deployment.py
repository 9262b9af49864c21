"""A deployment: queues with their declared options, policies, and operator policies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from rqttl.options import QueueOptions
from rqttl.policies import Policy
from rqttl.policies.policy import NONE

#: The version of the format of deployment files.
FORMAT = 1


@dataclass(frozen=True)
class Deployment:
    """The queues, policies and operator policies of a file or of a namespace, each by name.

    `namespace` is the one that they were exported from, if the file says so. Equal deployments may differ in it.
    """

    queues: Mapping[str, QueueOptions] = field(default_factory=dict)
    policies: Mapping[str, Policy] = field(default_factory=dict)
    operator_policies: Mapping[str, Policy] = field(default_factory=dict)
    namespace: str | None = field(default=None, compare=False)

    @classmethod
    def of(cls, queues: Iterable[QueueOptions], policies: Iterable[Policy], namespace: str | None = None) -> Deployment:
        """The deployment with these queues and with policies of both kinds, in the order of their names."""
        by_name = sorted(policies, key=lambda policy: policy.name)
        return cls(
            {options.queue: options for options in sorted(queues, key=lambda options: options.queue)},
            {policy.name: policy for policy in by_name if not policy.operator},
            {policy.name: policy for policy in by_name if policy.operator},
            namespace,
        )

    def as_document(self) -> dict[str, object]:
        """The content of a deployment file: names of options in kebab-case, durations with a unit."""
        return {
            "rqttl": FORMAT,
            **({} if self.namespace is None else {"namespace": self.namespace}),
            "queues": {name: kebab(options.as_arguments()) for name, options in sorted(self.queues.items())},
            "policies": {name: _policy(policy) for name, policy in sorted(self.policies.items())},
            "operator-policies": {name: _policy(policy) for name, policy in sorted(self.operator_policies.items())},
        }


def kebab(mapping: Mapping[str, object]) -> dict[str, object]:
    """A mapping with hyphens in its keys, and the word `none` for `None`."""
    return {name.replace("_", "-"): NONE if value is None else value for name, value in mapping.items()}


def _policy(policy: Policy) -> dict[str, object]:
    parts = policy.as_arguments()
    definition = parts.pop("definition")
    assert isinstance(definition, Mapping)  # noqa: S101  # for the type checker
    return {**kebab(parts), "definition": kebab(definition)}
