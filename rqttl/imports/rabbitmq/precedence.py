"""One policy for each queue, as in RabbitMQ: the word `none` in a policy keeps the options of later ones out.

RabbitMQ applies one policy of a kind to a queue. rqttl merges all that match, so each policy gets `none` for the
options that only later policies have. So a policy without a counterpart still keeps others out. Pairs of policies stay
as they are if their patterns have no name in common, or if the later one is for types of queues that the earlier one
leaves out, and the earlier one matches such queues.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from rqttl.imports import table
from rqttl.imports.rabbitmq.definitions import Queue
from rqttl.imports.rabbitmq.policies import TakenPolicy
from rqttl.imports.report import Notes
from rqttl.policies.matching import Matcher
from rqttl.policies.policy import Policy

#: The types that each kind of a policy is for.
_APPLY = {
    "all": ("classic", "quorum", "stream"),
    "queues": ("classic", "quorum", "stream"),
    "classic_queues": ("classic",),
    "quorum_queues": ("quorum",),
}
_TYPES = ("classic", "quorum")
_PREFIX = re.compile(r"\^((?:[A-Za-z0-9_:/-]|\\[._:/-])*)([*?+{]?)", re.ASCII)


def applies(policy: TakenPolicy, kind: str) -> bool:
    """True if RabbitMQ applies a policy to queues of a type."""
    if kind not in _APPLY.get(policy.source.apply_to, ()):
        return False
    return not policy.source.definition.keys() & set(table.rows("rabbitmq unfit")[kind].alike)


def separated(taken: Sequence[TakenPolicy], queues: Iterable[Queue], notes: Notes) -> list[TakenPolicy]:
    """The policies of one kind in one vhost, each with `none` for the options that RabbitMQ would not add to it."""
    types = _types(taken, queues)
    ranked = sorted(
        (_Ranked.of(source, source.policy, met) for source, met in zip(taken, types, strict=True) if source.policy),
        key=lambda first: (-first.policy.priority, first.taken.pattern.rank, first.policy.name),
    )
    policies: dict[str, Policy | None] = {}
    for place, first in enumerate(ranked):
        later = [other.policy for other in ranked[place + 1 :] if first.hides(other)]
        options = sorted({name for policy in later for name in policy.definition})
        missing = [name for name in options if name not in first.policy.definition]
        subject = first.taken.source.subject
        if missing:
            text = f"none for {', '.join(missing)}: RabbitMQ applies one policy to a queue, and rqttl would merge them"
            notes.translated(subject, "definition", None, text)
        definition = {**first.policy.definition, **dict.fromkeys(missing)}
        policies[first.policy.name] = replace(first.policy, definition=definition) if definition else None
        if not definition:
            text = "the policy is not imported: nothing of its definition has a counterpart, and it keeps no other out"
            notes.left_out(subject, "", None, text)
    return [replace(source, policy=policies[source.policy.name]) if source.policy else source for source in taken]


def _types(taken: Sequence[TakenPolicy], queues: Iterable[Queue]) -> list[frozenset[str]]:
    """The types of the queues that each policy matches; classic if it matches none yet."""
    met: list[set[str]] = [set() for _ in taken]
    matcher = Matcher([policy.pattern for policy in taken])
    for queue in queues:
        for place in matcher.places(queue.name):
            met[place].add(queue.kind)
    return [frozenset(kinds or {"classic"}) for kinds in met]


class _Ranked(NamedTuple):
    """A policy with the types of queues that it is for, and the text with which all names begin that it matches."""

    taken: TakenPolicy
    policy: Policy
    kinds: frozenset[str]
    met: frozenset[str]
    prefix: str

    @classmethod
    def of(cls, taken: TakenPolicy, policy: Policy, met: frozenset[str]) -> _Ranked:
        kinds = frozenset(kind for kind in _TYPES if applies(taken, kind))
        return cls(taken, policy, kinds, met, _prefix(taken.pattern.text))

    def hides(self, later: _Ranked) -> bool:
        """True if RabbitMQ applies this policy to the queues that both match.

        A policy without options is here for that alone: it hides the later one if that is so for a type of queues.
        """
        have_names = self.prefix.startswith(later.prefix) or later.prefix.startswith(self.prefix)
        always = later.kinds & self.met <= self.kinds
        return have_names and (always or (not self.policy.definition and bool(self.kinds & self.met)))


def _prefix(pattern: str) -> str:
    """The plain text with which every name begins that a regular expression finds; empty if there is none."""
    match = None if "|" in pattern else _PREFIX.match(pattern)
    if match is None:
        return ""
    text = re.sub(r"\\(.)", r"\1", match[1])
    return text[:-1] if match[2] else text
