"""Policies and operator policies of RabbitMQ as those of rqttl.

RabbitMQ applies one policy of a kind to a queue: the first by priority whose keys the type of the queue has. rqttl
merges all that match, and knows no types. So each policy gets the word `none` for the options that only later policies
have, and a policy without a counterpart still keeps others out. Pairs of policies stay as they are if their patterns
have no name in common. What differs all the same is noted at the queue.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rqttl.errors import InvalidInput
from rqttl.imports.notes import NameTable, Notes, rows
from rqttl.imports.rabbitmq.definitions import Queue, Setting, SourcePolicy, settings_of
from rqttl.policies.patterns import Pattern, compile_pattern
from rqttl.policies.policy import Policy, PolicySet

#: Takes the settings of a definition.
ReadDefinition = Callable[[Mapping[str, Setting], Notes], None]

_ONE_TYPE = "rqttl has one type of queue: the policy now matches every queue"
#: The values of `apply-to` of policies that are imported: the types of queues, and how they differ.
_KINDS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "queues": (("classic", "quorum", "stream"), ""),
    "all": (("classic", "quorum", "stream"), "it acts on topics, too, as on queues: TTL, limits of what waits"),
    "classic_queues": (("classic",), _ONE_TYPE),
    "quorum_queues": (("quorum",), _ONE_TYPE),
}
_FIELDS = frozenset({"vhost", "name", "pattern", "apply-to", "definition", "priority"})
#: `^(?!amq\.).*`: all names that do not begin with a plain text.
_NOT_AT_START = re.compile(r"\^\(\?!((?:[A-Za-z0-9_:/-]|\\[._:/-]|\.)+)\)(?:\.[*+])?\$?", re.ASCII)
_PREFIX = re.compile(r"\^((?:[A-Za-z0-9_:/-]|\\[._:/-])*)([*?+{]?)", re.ASCII)


@dataclass(frozen=True)
class TakenPolicy:
    """A policy of RabbitMQ with its pattern, and the policy of rqttl that it became, if it became one."""

    source: SourcePolicy
    pattern: Pattern
    policy: Policy | None


class TakenPolicies:
    """The policies of one kind in one vhost."""

    def __init__(self, sources: Mapping[str, SourcePolicy], read_definition: ReadDefinition, notes: Notes) -> None:
        names = NameTable.of(sources)
        read = [_read(source, names, read_definition, notes.about(source.subject)) for source in sources.values()]
        taken = _separated([policy for policy in read if policy], notes)
        self.policies = [policy.policy for policy in taken if policy.policy]
        # the order of the file decides among equal priorities, as long as RabbitMQ does not say more
        self._taken = sorted(taken, key=lambda policy: -policy.source.priority)
        self._set = PolicySet(0, tuple(self.policies))

    def as_file(self) -> dict[str, dict[str, object]]:
        """The policies as entries of a deployment file."""
        entries = {}
        for policy in self.policies:
            parts: dict[str, Any] = policy.as_arguments()
            parts["definition"] = _kebab(dict(sorted(parts["definition"].items())))
            entries[policy.name] = _kebab(parts)
        return entries

    def applied(self, queue: Queue, name: str, notes: Notes) -> Mapping[str, Setting]:
        """The definition that RabbitMQ applies to a queue, with a note if rqttl, where it has this name, differs."""
        places = [place for place, policy in enumerate(self._taken) if policy.pattern.matches(queue.name)]
        fitting = [policy for policy in (self._taken[place] for place in places) if _applies(policy, queue.kind)]
        first = fitting[0] if fitting else None
        operator = bool(self._taken and self._taken[0].source.operator)
        acting = next(iter(self._set.matching(name, operator)), None)
        setting, source = "operator policy" if operator else "policy", first.source.name if first else None
        equal = [one.source.name for one in fitting[1:] if one.source.priority == fitting[0].source.priority]
        if equal:
            text = f"RabbitMQ applies {source!r} or {equal[0]!r}: both have the same priority"
            notes.translated(setting, source, text)
        if (first.policy.name if first and first.policy else None) != (acting.name if acting else None):
            here = f"here {acting.name!r} acts" if acting else "none acts here"
            notes.translated(setting, source, f"RabbitMQ applies {repr(source) if first else 'none'}; {here}")
        return settings_of(first.source.definition, f"{first.source.place}.definition") if first else {}

    def of_exchange(self, name: str) -> Mapping[str, Any]:
        """The definition that RabbitMQ applies to an exchange."""
        sources = (one.source for one in self._taken if one.pattern.matches(name))
        return next((one.definition for one in sources if one.apply_to in ("all", "exchanges")), {})


def _kebab(table: Mapping[str, object]) -> dict[str, object]:
    return {name.replace("_", "-"): value for name, value in table.items()}


def _read(source: SourcePolicy, names: NameTable, read_definition: ReadDefinition, notes: Notes) -> TakenPolicy | None:
    """A policy with a readable pattern. Notes each of its fields."""
    try:
        pattern, change = translated(source.pattern)
    except InvalidInput as error:
        notes.lost("pattern", source.pattern, f"the policy is not imported, nor compared with others: {error}")
        return None
    if source.apply_to not in _KINDS:
        text = f"the policy is not imported: rqttl has no {source.apply_to.replace('_', ' ')}"
        notes.lost("apply-to", source.apply_to, text)
        return TakenPolicy(source, pattern, None)
    name, (_, difference) = names.take(source.name, "policy", notes), _KINDS[source.apply_to]
    if name is None:
        return TakenPolicy(source, pattern, None)
    if change:
        notes.translated("pattern", source.pattern, f"{pattern.text!r}: {change}")
    else:
        notes.taken("pattern", source.pattern, "syntax=regex: found anywhere in the name, as in RabbitMQ")
    notes.add("translated" if difference else "taken", "apply-to", source.apply_to, difference or "queues")
    notes.taken("priority", source.priority, "the same priority")
    for key in sorted(source.body.keys() - _FIELDS):
        notes.left_out(key, source.body[key], "rqttl knows nothing of this name")
    read_definition(settings_of(source.definition, f"{source.place}.definition"), notes)
    options, priority = notes.options or {"message_ttl": None}, source.priority
    try:
        policy = Policy.read(name, pattern.text, options, priority=priority, syntax="regex", operator=source.operator)
    except InvalidInput as error:
        notes.lost("", None, f"the policy is not imported: {error}")
        return TakenPolicy(source, pattern, None)
    # without options it may still have to keep others out
    return TakenPolicy(source, pattern, policy if notes.options else replace(policy, definition={}))


def _applies(policy: TakenPolicy, kind: str) -> bool:
    """True if RabbitMQ applies a policy to queues of a type."""
    types, _ = _KINDS.get(policy.source.apply_to, ((), ""))
    return kind in types and not policy.source.definition.keys() & set(rows("rabbitmq unfit")[kind].alike)


def _separated(taken: Sequence[TakenPolicy], notes: Notes) -> list[TakenPolicy]:
    """The policies, each with `none` for the options that RabbitMQ would not add to it."""
    ranked = sorted(
        ((source, source.policy, _prefix(source.pattern.text)) for source in taken if source.policy),
        key=lambda first: (-first[1].priority, first[0].pattern.rank, first[1].name),
    )
    policies: dict[str, Policy | None] = {}
    for place, (source, policy, prefix) in enumerate(ranked):
        later = (other for _, other, end in ranked[place + 1 :] if prefix.startswith(end) or end.startswith(prefix))
        missing = sorted({name for other in later for name in other.definition} - policy.definition.keys())
        about = notes.about(source.source.subject)
        if missing:
            text = f"none for {', '.join(missing)}: RabbitMQ applies one policy to a queue, and rqttl would merge them"
            about.translated("definition", None, text)
        definition = {**policy.definition, **dict.fromkeys(missing)}
        policies[policy.name] = replace(policy, definition=definition) if definition else None
        if not definition:
            text = "the policy is not imported: nothing of its definition has a counterpart, and it keeps no other out"
            about.left_out("", None, text)
    return [replace(source, policy=policies[source.policy.name]) if source.policy else source for source in taken]


def _prefix(pattern: str) -> str:
    """The plain text with which every name begins that a regular expression finds; empty if there is none."""
    match = None if "|" in pattern else _PREFIX.match(pattern)
    if match is None:
        return ""
    text = re.sub(r"\\(.)", r"\1", match[1])
    return text[:-1] if match[2] else text


def translated(pattern: str) -> tuple[Pattern, str]:
    """A pattern (PCRE) in rqttl (RE2), and the words about a change of it. Both search anywhere, and case counts.

    Raises `InvalidPolicy` if RE2 lacks a part of it.
    """
    if not pattern:
        return compile_pattern("^", "regex"), "it is empty, and matches every name"
    match = _NOT_AT_START.fullmatch(pattern)
    if not match:
        return compile_pattern(pattern, "regex"), ""
    unlike = ""
    for sign in reversed(re.findall(r"\\.|.", match[1])):  # a dot without a backslash is any character
        inner, plain = f"(?:{unlike})" if unlike else "", re.escape(sign[-1])
        if sign == ".":
            unlike = f"$|.{inner}" if inner else "$"
        else:
            unlike = f"$|[^{plain}]" + (f"|{plain}{inner}" if inner else "")
    return compile_pattern(f"^(?:{unlike})", "regex"), "it matches the same names; RE2 has no look-ahead"
