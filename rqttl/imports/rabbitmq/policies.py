"""Policies and operator policies of RabbitMQ as those of rqttl."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from rqttl.errors import InvalidInput
from rqttl.imports.names import NameTable
from rqttl.imports.rabbitmq.dead_letters import DeadLetters
from rqttl.imports.rabbitmq.definitions import SourcePolicy
from rqttl.imports.rabbitmq.patterns import translated
from rqttl.imports.rabbitmq.settings import SettingsReader, read_settings
from rqttl.imports.report import Collector, Notes
from rqttl.policies.patterns import Pattern
from rqttl.policies.policy import Policy

_KINDS = {
    "queues": "",
    "all": "exchanges have no policies here",
    "classic_queues": "rqttl has one type of queue: the policy now matches every queue",
    "quorum_queues": "rqttl has one type of queue: the policy now matches every queue",
}
_NO_TARGETS = {
    "exchanges": "rqttl has no exchanges: the policy is not imported",
    "streams": "rqttl has no streams: the policy is not imported",
}
_FIELDS = frozenset({"vhost", "name", "pattern", "apply-to", "definition", "priority"})


@dataclass(frozen=True)
class TakenPolicy:
    """A policy of RabbitMQ with its pattern, and the policy of rqttl that it became, if it became one."""

    source: SourcePolicy
    pattern: Pattern
    policy: Policy | None


class PolicyReader:
    """Reads the policies of one kind in one vhost."""

    def __init__(self, sources: Mapping[str, SourcePolicy], dead_letters: DeadLetters, notes: Notes) -> None:
        self._sources = sources
        self._dead_letters = dead_letters
        self._notes = notes
        self._names = NameTable.of(sources)

    def read(self) -> list[TakenPolicy]:
        """All policies with a readable pattern, in the order of the file. Note each field of every policy."""
        taken = [self._read_policy(source) for source in self._sources.values()]
        return [policy for policy in taken if policy]

    def _read_policy(self, source: SourcePolicy) -> TakenPolicy | None:
        out = Collector(self._notes, source.subject)
        try:
            pattern, change = translated(source.pattern)
        except InvalidInput as error:
            out.left_out("pattern", source.pattern, f"the policy is not imported, nor compared with others: {error}")
            return None
        if source.apply_to in _NO_TARGETS:
            out.left_out("apply-to", source.apply_to, _NO_TARGETS[source.apply_to])
            return TakenPolicy(source, pattern, None)
        if source.apply_to not in _KINDS:
            out.left_out("apply-to", source.apply_to, "the policy is not imported: rqttl knows no such kind")
            return TakenPolicy(source, pattern, None)
        if source.name in self._names.refused:
            out.left_out("name", source.name, f"the policy is not imported: {self._names.refused[source.name]}")
            return TakenPolicy(source, pattern, None)
        self._note_fields(source, pattern, change, out)
        return TakenPolicy(source, pattern, self._policy(source, pattern, out))

    def _note_fields(self, source: SourcePolicy, pattern: Pattern, change: str, out: Collector) -> None:
        name, kind = self._names.names[source.name], _KINDS[source.apply_to]
        (out.taken if name == source.name else out.translated)("name", source.name, self._names.note(source.name))
        if change:
            out.translated("pattern", source.pattern, f"{pattern.text!r}: {change}")
        else:
            out.taken("pattern", source.pattern, "syntax=regex: found anywhere in the name, as in RabbitMQ")
        (out.translated if kind else out.taken)("apply-to", source.apply_to, kind or "queues")
        out.taken("priority", source.priority, "the same priority")
        for key in sorted(source.body.keys() - _FIELDS):
            out.left_out(key, source.body[key], "rqttl knows nothing of this name")

    def _policy(self, source: SourcePolicy, pattern: Pattern, out: Collector) -> Policy | None:
        settings = read_settings(source.definition, f"{source.place}{'.value' * source.operator}.definition")
        SettingsReader(settings, out, "").read()
        self._dead_letters.of_policy(settings, out)
        try:
            policy = Policy.read(
                self._names.names[source.name],
                pattern.text,
                out.options or {"message_ttl": None},
                priority=source.priority,
                syntax="regex",
                operator=source.operator,
            )
            # without options it may still have to keep others out, see `precedence`
            return policy if out.options else replace(policy, definition={})
        except InvalidInput as error:
            out.left_out("", None, f"the policy is not imported: {error}")
            return None


def as_file(policy: Policy) -> dict[str, object]:
    """A policy as an entry of a deployment file."""
    arguments = policy.as_arguments()
    definition: Any = arguments.pop("definition")
    kebab = {name.replace("_", "-"): value for name, value in sorted(definition.items())}
    return {**{name.replace("_", "-"): value for name, value in arguments.items()}, "definition": kebab}
