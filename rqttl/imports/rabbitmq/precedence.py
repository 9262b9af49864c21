"""One policy for each queue, as in RabbitMQ: the word `none` in a policy keeps the options of later ones out.

RabbitMQ applies one policy of a kind to a queue. rqttl merges all that match, so each policy gets `none` for the
options that only later policies have. Pairs of policies stay as they are if their patterns have no name in common, or
if the later one is for types of queues that the earlier one leaves out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from rqttl.imports.rabbitmq.policies import TakenPolicy
from rqttl.imports.report import Notes
from rqttl.policies.policy import Policy

#: The types that each kind of a policy is for.
_APPLY = {
    "all": ("classic", "quorum", "stream"),
    "queues": ("classic", "quorum", "stream"),
    "classic_queues": ("classic",),
    "quorum_queues": ("quorum",),
}
#: A policy with one of these keys does not apply to a queue of the type.
_UNSUPPORTED = {
    "classic": frozenset(
        {
            "max-age",
            "stream-max-segment-size-bytes",
            "queue-leader-locator",
            "initial-cluster-size",
            "delivery-limit",
            "dead-letter-strategy",
            "target-group-size",
            "delayed-retry-type",
            "delayed-retry-min",
            "delayed-retry-max",
        }
    ),
    "quorum": frozenset(
        {
            "max-priority",
            "queue-mode",
            "ha-mode",
            "ha-params",
            "ha-sync-mode",
            "ha-promote-on-shutdown",
            "ha-promote-on-failure",
            "queue-master-locator",
            "max-age",
            "stream-max-segment-size-bytes",
            "initial-cluster-size",
        }
    ),
}
_PREFIX = re.compile(r"\^((?:[A-Za-z0-9_:/-]|\\[._:/-])*)([*?+{]?)", re.ASCII)


def applies(policy: TakenPolicy, kind: str) -> bool:
    """True if RabbitMQ applies a policy to queues of a type."""
    if kind not in _APPLY.get(policy.source.apply_to, ()):
        return False
    return not _UNSUPPORTED[kind] & policy.source.definition.keys()


def separated(taken: Sequence[TakenPolicy], notes: Notes) -> list[TakenPolicy]:
    """The policies of one kind in one vhost, each with `none` for the options that RabbitMQ would not add to it."""
    ranked = sorted(
        (_Ranked.of(source, source.policy) for source in taken if source.policy),
        key=lambda first: (-first.policy.priority, first.taken.pattern.rank, first.policy.name),
    )
    policies: dict[str, Policy] = {}
    for place, first in enumerate(ranked):
        later = [other.policy for other in ranked[place + 1 :] if first.hides(other)]
        options = sorted({name for policy in later for name in policy.definition})
        missing = [name for name in options if name not in first.policy.definition]
        if missing:
            text = f"none for {', '.join(missing)}: RabbitMQ applies one policy to a queue, and rqttl would merge them"
            notes.translated(first.taken.source.subject, "definition", None, text)
        definition = {**first.policy.definition, **dict.fromkeys(missing)}
        policies[first.policy.name] = replace(first.policy, definition=definition)
    return [replace(source, policy=policies[source.policy.name]) if source.policy else source for source in taken]


class _Ranked(NamedTuple):
    """A policy with the types of queues that it is for, and the text with which all names begin that it matches."""

    taken: TakenPolicy
    policy: Policy
    kinds: frozenset[str]
    prefix: str

    @classmethod
    def of(cls, taken: TakenPolicy, policy: Policy) -> _Ranked:
        kinds = frozenset(kind for kind in _UNSUPPORTED if applies(taken, kind))
        return cls(taken, policy, kinds, _prefix(taken.pattern.text))

    def hides(self, later: _Ranked) -> bool:
        """True if RabbitMQ applies this policy to each queue that both match."""
        have_names = self.prefix.startswith(later.prefix) or later.prefix.startswith(self.prefix)
        return have_names and later.kinds <= self.kinds


def _prefix(pattern: str) -> str:
    """The plain text with which every name begins that a regular expression finds; empty if there is none."""
    match = None if "|" in pattern else _PREFIX.match(pattern)
    if match is None:
        return ""
    text = re.sub(r"\\(.)", r"\1", match[1])
    return text[:-1] if match[2] else text
