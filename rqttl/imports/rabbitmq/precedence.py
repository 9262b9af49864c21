"""One policy for each queue, as in RabbitMQ: the word `none` in a policy keeps the options of later ones out.

RabbitMQ applies one policy of a kind to a queue. rqttl merges all that match, so each policy gets `none` for the
options that only later policies have. So a policy without a counterpart still keeps others out. Pairs of policies stay
as they are if their patterns have no name in common.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from rqttl.imports import table
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
_PREFIX = re.compile(r"\^((?:[A-Za-z0-9_:/-]|\\[._:/-])*)([*?+{]?)", re.ASCII)


def applies(policy: TakenPolicy, kind: str) -> bool:
    """True if RabbitMQ applies a policy to queues of a type."""
    if kind not in _APPLY.get(policy.source.apply_to, ()):
        return False
    return not policy.source.definition.keys() & set(table.rows("rabbitmq unfit")[kind].alike)


def separated(taken: Sequence[TakenPolicy], notes: Notes) -> list[TakenPolicy]:
    """The policies of one kind in one vhost, each with `none` for the options that RabbitMQ would not add to it."""
    ranked = sorted(
        ((source, source.policy, _prefix(source.pattern.text)) for source in taken if source.policy),
        key=lambda first: (-first[1].priority, first[0].pattern.rank, first[1].name),
    )
    policies: dict[str, Policy | None] = {}
    for place, (source, policy, prefix) in enumerate(ranked):
        later = (other for _, other, end in ranked[place + 1 :] if prefix.startswith(end) or end.startswith(prefix))
        missing = sorted({name for other in later for name in other.definition} - policy.definition.keys())
        subject = source.source.subject
        if missing:
            text = f"none for {', '.join(missing)}: RabbitMQ applies one policy to a queue, and rqttl would merge them"
            notes.translated(subject, "definition", None, text)
        definition = {**policy.definition, **dict.fromkeys(missing)}
        policies[policy.name] = replace(policy, definition=definition) if definition else None
        if not definition:
            text = "the policy is not imported: nothing of its definition has a counterpart, and it keeps no other out"
            notes.left_out(subject, "", None, text)
    return [replace(source, policy=policies[source.policy.name]) if source.policy else source for source in taken]


def _prefix(pattern: str) -> str:
    """The plain text with which every name begins that a regular expression finds; empty if there is none."""
    match = None if "|" in pattern else _PREFIX.match(pattern)
    if match is None:
        return ""
    text = re.sub(r"\\(.)", r"\1", match[1])
    return text[:-1] if match[2] else text
