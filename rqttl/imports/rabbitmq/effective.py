"""The policy that RabbitMQ applies to a queue, and whether rqttl applies it, too.

RabbitMQ applies one policy and one operator policy to a queue: the first by priority whose keys the type of the queue
has. Here types do not count, so the first one that matches acts: see `precedence`.
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
        # the order of the file decides among equal priorities, as long as RabbitMQ does not say more
        self._taken = sorted(taken, key=lambda policy: -policy.source.priority)
        self._matcher = Matcher([policy.pattern for policy in self._taken])
        self._set = PolicySet(0, tuple(policy.policy for policy in taken if policy.policy))
        self._operator = operator

    def of(self, queue: Queue, name: str) -> Effect:
        """The effect on a queue, which has this name in rqttl."""
        places = self._matcher.places(queue.name)
        merged = self._set.matching(name, self._operator)
        return self._compare(queue.kind, [self._taken[place] for place in places], merged)

    def _compare(self, kind: str, matching: Sequence[TakenPolicy], merged: Sequence[Policy]) -> Effect:
        fitting = [policy for policy in matching if applies(policy, kind)]
        first = fitting[0] if fitting else None
        words = []
        equal = [p.source.name for p in fitting[1:] if first and p.source.priority == first.source.priority]
        if first and equal:
            words.append(f"RabbitMQ applies {first.source.name!r} or {equal[0]!r}: both have the same priority")
        own = first.policy if first else None
        acting = merged[0] if merged else None
        if (own and own.name) != (acting and acting.name):
            applied = f"applies {first.source.name!r}" if first else "applies none"
            words.append(
                f"RabbitMQ {applied}; here {acting.name!r} acts" if acting else f"RabbitMQ {applied}; none acts here"
            )
        return Effect(first, tuple(words))
