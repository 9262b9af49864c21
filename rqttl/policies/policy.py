"""A policy: options for all queues whose names match a pattern."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType

from rqttl.checks import check_queue_name, whole
from rqttl.errors import InvalidInput, InvalidName, InvalidPolicy
from rqttl.options import OPTIONS, Value, by_name, written
from rqttl.policies.patterns import Pattern, Syntax, compile_pattern
from rqttl.text import format_value, load_object, plain_text
from rqttl.units import as_text

#: The least and the greatest priority, without its sign.
MAX_PRIORITY = 1_000_000
#: The text of a definition that stops an option from being inherited.
NONE = "none"
_PARTS = ("apply_to", "definition", "pattern", "priority", "syntax")


@dataclass(frozen=True)
class Policy:
    """Options for all queues whose names match `pattern`. `Policy.read` checks arguments; `Policy(...)` does not.

    `definition` maps names of options, with underscores, to values. Durations are milliseconds. `None` is the word
    `none`: no policy of this kind gives the option a value then. `operator` is true for an operator policy.
    """

    name: str
    pattern: str
    definition: Mapping[str, Value | None] = field(hash=False)
    priority: int = 0
    apply_to: str = "queues"
    syntax: Syntax = "wildcard"
    operator: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "definition", MappingProxyType(dict(sorted(self.definition.items()))))

    def __reduce__(self) -> tuple[Callable[..., Policy], tuple[str, bool, str]]:
        return Policy.from_json, (self.name, self.operator, self.as_json())

    @classmethod
    def read(
        cls,
        name: object,
        pattern: object,
        definition: object,
        *,
        priority: object = 0,
        apply_to: object = "queues",
        syntax: object = "wildcard",
        operator: bool = False,
    ) -> Policy:
        """Check the arguments of `set_policy`. Raises `InvalidPolicy`, which names policy, option, value and rule."""
        known = check_policy_name(name, operator=operator)
        try:
            compiled = compile_pattern(pattern, syntax)
            return cls(
                known,
                compiled.text,
                _definition(definition),
                whole(priority, "priority", -MAX_PRIORITY, MAX_PRIORITY),
                _apply_to(apply_to),
                compiled.syntax,
                operator,
            )
        except InvalidInput as error:
            raise InvalidPolicy(f"{_kind(operator)} {known!r}: {error}") from None

    @classmethod
    def from_json(cls, name: str, operator: bool, text: str | bytes) -> Policy:
        """Read the text of `as_json`. Raises `InvalidPolicy`."""
        source = f"{_kind(operator)} {name!r}"
        text = text.decode("utf-8", "backslashreplace") if isinstance(text, bytes) else text
        try:
            parts = load_object(text)
        except ValueError as error:
            raise InvalidPolicy(f"{source}: expected JSON, got {format_value(text)} ({error})") from None
        if tuple(sorted(parts)) != _PARTS or not isinstance(parts["definition"], dict):
            raise InvalidPolicy(f"{source}: expected JSON with {', '.join(_PARTS)}, got {format_value(text)}")
        definition = {option: written(option, value) for option, value in parts.pop("definition").items()}
        return cls.read(name, parts.pop("pattern"), definition, **parts, operator=operator)

    def as_json(self) -> str:
        """All parts except name and kind as JSON, with durations in milliseconds. Equal policies give equal texts."""
        parts = {part: getattr(self, part) for part in _PARTS} | {"definition": dict(self.definition)}
        return json.dumps(parts, sort_keys=True, separators=(",", ":"))

    def as_arguments(self) -> dict[str, object]:
        """All parts except name and kind as arguments of `set_policy`, with durations as text with a unit.

        A copy of a policy: `broker.set_policy("copy", **policy.as_arguments())`.
        """
        definition = {option: written(option, value) for option, value in self.definition.items()}
        return {
            "pattern": self.pattern,
            "definition": definition,
            "priority": self.priority,
            "apply_to": self.apply_to,
            "syntax": self.syntax,
        }

    @property
    def source(self) -> str:
        """The policy as the source of an option: `policy NAME` or `operator policy NAME`."""
        return f"{_kind(self.operator)} {self.name}"

    @property
    def field(self) -> str:
        """The field of the policy in the hash of all policies in Redis."""
        return f"{'operator' if self.operator else 'policy'} {self.name}"

    def matches(self, queue: str) -> bool:
        """True if the pattern matches the name of a queue."""
        return self.compiled.matches(queue)

    @cached_property
    def compiled(self) -> Pattern:
        """The pattern, compiled."""
        return compile_pattern(self.pattern, self.syntax)

    @cached_property
    def templates(self) -> tuple[str, ...]:
        """The targets in the definition that make another name out of the name of the queue, such as `EXP.{queue}`."""
        targets = [str(value) for option, value in self.definition.items() if OPTIONS[option].kind == "target"]
        return tuple(dict.fromkeys(text for text in targets if "{queue}" in text and text != "{queue}"))


def check_policy_name(name: object, *, operator: bool) -> str:
    """Return `name` if a policy may have it: the rule is that of queue names. Raises `InvalidPolicy`."""
    try:
        return check_queue_name(name, f"name of the {_kind(operator)}")
    except InvalidName as error:
        raise InvalidPolicy(str(error)) from None


def _kind(operator: bool) -> str:
    return "operator policy" if operator else "policy"


def _definition(definition: object) -> dict[str, Value | None]:
    if not isinstance(definition, Mapping):
        raise InvalidPolicy(f"definition: expected a mapping of options, got {format_value(definition)}")
    values: dict[str, Value | None] = {}
    for option, value in by_name(definition).items():
        stops = value is None or plain_text(value) == NONE
        values[option] = None if stops else OPTIONS[option].read(option, value)
    if not values:
        raise InvalidPolicy("definition: expected at least one option, got none")
    _check_order(values, "min_ttl", "max_ttl")
    _check_order(values, "redelivery_delay", "redelivery_max_delay")
    return values


def _check_order(values: Mapping[str, Value | None], floor: str, ceiling: str) -> None:
    low, high = values.get(floor), values.get(ceiling)
    if low is not None and high is not None and int(low) > int(high):
        raise InvalidPolicy(f"{floor}: {as_text(int(low))} is more than {ceiling}, {as_text(int(high))}")


def _apply_to(value: object) -> str:
    if plain_text(value) != "queues":
        raise InvalidPolicy(f"apply_to: expected 'queues', the only kind that exists, got {format_value(value)}")
    return "queues"
