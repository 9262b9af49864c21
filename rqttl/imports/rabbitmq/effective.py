"""The policy that RabbitMQ applies to a queue, and the difference if rqttl merges all policies that match.

RabbitMQ applies one policy and one operator policy to a queue: the first by priority whose keys the type of the queue
has. rqttl takes each option from the first policy that has it. `precedence` makes both alike where it can.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rqttl.imports.rabbitmq.definitions import Queue
from rqttl.imports.rabbitmq.policies import TakenPolicy
from rqttl.imports.rabbitmq.precedence import applies
from rqttl.policies.matching import Matcher
from rqttl.policies.policy import Policy
from rqttl.policies.policy_set import PolicySet


@dataclass(frozen=True)
class Effect:
    """The policy that RabbitMQ applies to a queue, and the words about each difference in rqttl."""

    policy: TakenPolicy | None
    differences: tuple[str, ...]


class Effects:
    """Compares both systems for the policies of one kind in one vhost."""

    def __init__(self, taken: Sequence[TakenPolicy], *, operator: bool) -> None:
        self._noun = "operator policy" if operator else "policy"
        # the order of the file decides among equal priorities, as long as RabbitMQ does not say more
        self._taken = sorted(taken, key=lambda policy: -policy.source.priority)
        self._matcher = Matcher([policy.pattern for policy in self._taken])
        self._set = PolicySet(0, tuple(policy.policy for policy in taken if policy.policy))
        self._operator = operator
        self._known: dict[tuple[str, tuple[int, ...], tuple[str, ...]], Effect] = {}

    def of(self, queue: Queue, name: str) -> Effect:
        """The effect on a queue, which has this name in rqttl."""
        places = tuple(self._matcher.places(queue.name))
        merged = self._set.matching(name, self._operator)
        key = (queue.kind, places, tuple(policy.name for policy in merged))
        if key not in self._known:
            self._known[key] = self._compare(queue.kind, [self._taken[place] for place in places], merged)
        return self._known[key]

    def _compare(self, kind: str, matching: Sequence[TakenPolicy], merged: Sequence[Policy]) -> Effect:
        fitting = [policy for policy in matching if applies(policy, kind)]
        first = fitting[0] if fitting else None
        words = []
        equal = [p.source.name for p in fitting[1:] if first and p.source.priority == first.source.priority]
        if first and equal:
            words.append(f"RabbitMQ applies {first.source.name!r} or {equal[0]!r}: both have the same priority")
        own = first.policy if first else None
        if own and own.name not in [policy.name for policy in merged]:
            words.append(f"{self._noun} {own.name!r} does not match the name that the queue has in rqttl")
        applied = f"RabbitMQ applies {first.source.name!r} only" if first else f"RabbitMQ applies no {self._noun}"
        seen: set[str] = set()
        for policy in merged:
            options = [name for name, value in policy.definition.items() if value is not None]
            differing = [name for name in options if (name in seen) is (policy is own)]
            seen.update(policy.definition)
            source = f"come from {self._noun} {policy.name!r}" if policy is not own else "come from policies above it"
            if differing:
                words.append(f"{applied}; here {', '.join(differing)} would {source}")
        return Effect(first, tuple(words))
