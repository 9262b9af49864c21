"""Values of ARM templates: expressions of `concat`, `format`, `parameters` and `variables` become values.

Another function gives no value. In a text, such a part is put in marks, so the rest of the text stays readable: a queue
keeps its name when only the name of its namespace is unknown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rqttl.errors import InvalidImport
from rqttl.imports.servicebus.expressions import Call, Member, Node, NoExpression, expression_of, parse, plain
from rqttl.imports.source import at, optional_object, read_object

#: Marks of an unknown part of a text: characters for private use, which no name has.
OPEN, BETWEEN, CLOSE = "\ue000", "\ue001", "\ue002"
#: Characters of a text that expressions make.
_LONGEST = 10_000
#: Expressions that lead from one to the next.
_MAX_CHAIN = 12
_HOLE = re.compile(r"\{\{|\}\}|\{(\d{1,3})(?:,[^{}]*)?(?::[^{}]*)?\}", re.ASCII)
_UNKNOWN = re.compile(f"{OPEN}([^{OPEN}{BETWEEN}{CLOSE}]*){BETWEEN}([^{OPEN}{BETWEEN}{CLOSE}]*){CLOSE}")


@dataclass(frozen=True)
class Unknown:
    """A value that only a deployment to Azure computes, with the expression and the reason."""

    text: str
    reason: str


class Values:
    """The parameters and variables of one template."""

    def __init__(self, template: Mapping[str, Any], place: str, assigned: Mapping[str, object]) -> None:
        self._parameters = optional_object(template, "parameters", place)
        self._variables = optional_object(template, "variables", place)
        self._from_caller = {name.lower(): value for name, value in assigned.items()}
        self._names = {
            "parameters": {name.lower(): name for name in self._parameters},
            "variables": {name.lower(): name for name in self._variables},
        }
        self._place = place
        self._known: dict[tuple[str, str], object] = {}
        self._open: list[tuple[str, str]] = []

    def resolve(self, value: object) -> object:
        """A value, with its expression computed if it has one. `Unknown` if that needs a deployment."""
        if not isinstance(value, str):
            return value
        text = expression_of(value)
        if text is None:
            return plain(value)
        try:
            return self._compute(parse(text))
        except NoExpression as error:
            return Unknown(text, f"the expression cannot be read: {error}")

    def text(self, value: object) -> object:
        """As `resolve`, with unknown parts of a text in marks."""
        resolved = self.resolve(value)
        return _marked(resolved) if isinstance(resolved, Unknown) else resolved

    def named(self, kind: str, name: str) -> object:
        """The value of a parameter or variable."""
        return self._named(Call(kind, (name,), f"{kind}('{name}')"))

    def is_secret(self, name: str) -> bool:
        """Return whether the type of a parameter forbids to show its value."""
        parameter = self._parameters.get(name)
        return isinstance(parameter, dict) and str(parameter.get("type")).lower().startswith("secure")

    def _compute(self, node: Node) -> object:
        if isinstance(node, Member):
            return self._member(node)
        if not isinstance(node, Call):
            return node
        if node.function in ("parameters", "variables"):
            return self._named(node)
        arguments = [self._compute(argument) for argument in node.arguments]
        if node.function == "concat" and arguments and all(_is_part(argument) for argument in arguments):
            return _bounded(node, "".join(_as_text(argument) for argument in arguments))
        if node.function == "format" and arguments and isinstance(arguments[0], str):
            return _format(node, arguments[0], arguments[1:])
        return Unknown(node.text, f"the import does not compute {node.function}()")

    def _member(self, node: Member) -> object:
        value, key = self._compute(node.value), self._compute(node.key)
        if isinstance(value, Unknown):
            return Unknown(node.text, value.reason)
        if isinstance(value, dict) and isinstance(key, str) and key in value:
            return self.resolve(value[key])
        if isinstance(value, list) and isinstance(key, int) and 0 <= key < len(value):
            return self.resolve(value[key])
        return Unknown(node.text, "there is no such member")

    def _named(self, node: Call) -> object:
        kind = node.function
        if len(node.arguments) != 1 or not isinstance(node.arguments[0], str):
            return Unknown(node.text, f"{kind}() takes one name")
        name = node.arguments[0].lower()
        entry = (kind, name)
        if entry not in self._known:
            if entry in self._open:
                raise InvalidImport(self._where(kind, name), "expected a value that does not refer to itself")
            if len(self._open) >= _MAX_CHAIN:
                raise InvalidImport(self._where(kind, name), f"expected at most {_MAX_CHAIN} values that lead to it")
            self._open.append(entry)
            self._known[entry] = self._parameter(node, name) if kind == "parameters" else self._variable(node, name)
            self._open.pop()
        return self._known[entry]

    def _parameter(self, node: Call, name: str) -> object:
        if name in self._from_caller:
            return self._from_caller[name]
        if name not in self._names["parameters"]:
            return Unknown(node.text, "the template has no such parameter")
        place, known = self._where("parameters", name), self._names["parameters"][name]
        parameter = read_object(self._parameters[known], place)
        if "defaultValue" not in parameter:
            return Unknown(node.text, f"the parameter {known!r} has no default value: give it one with --parameter")
        return self.resolve(parameter["defaultValue"])

    def _variable(self, node: Call, name: str) -> object:
        if name not in self._names["variables"]:
            return Unknown(node.text, "the template has no such variable")
        return self.resolve(self._variables[self._names["variables"][name]])

    def _where(self, kind: str, name: str) -> str:
        return at(f"{self._place}.{kind}", self._names[kind].get(name, name))


def unknown_part(text: str) -> str:
    """The first unknown part of a text with its reason; empty if the text is known."""
    match = _UNKNOWN.search(text)
    return f"[{match[1]}]: {match[2]}" if match else ""


def readable(text: str) -> str:
    """A text with the expressions of its unknown parts in brackets."""
    return _UNKNOWN.sub(r"[\1]", text)


def split(text: str) -> list[str]:
    """The segments of a name between slashes. A slash in an unknown part does not count."""
    segments, start = [], 0
    unknown = [match.span() for match in _UNKNOWN.finditer(text)]
    for slash in re.finditer("/", text):
        if not any(first < slash.start() < last for first, last in unknown):
            segments.append(text[start : slash.start()])
            start = slash.end()
    return [*segments, text[start:]]


def _marked(unknown: Unknown) -> str:
    inner = [re.sub(f"[{OPEN}{BETWEEN}{CLOSE}]", "", part) for part in (unknown.text, unknown.reason)]
    return f"{OPEN}{inner[0]}{BETWEEN}{inner[1]}{CLOSE}"


def _is_part(value: object) -> bool:
    return isinstance(value, (str, int, Unknown))


def _as_text(value: object) -> str:
    if isinstance(value, Unknown):
        return _marked(value)
    return str(value) if not isinstance(value, bool) else "True" if value else "False"


def _bounded(node: Call, text: str) -> object:
    return text if len(text) <= _LONGEST else Unknown(node.text, f"the text has more than {_LONGEST:,} characters")


def _format(node: Call, template: str, values: list[object]) -> object:
    def fill(match: re.Match[str]) -> str:
        return match[0][0] if match[1] is None else _as_text(values[int(match[1])])

    if not all(_is_part(value) for value in values):
        return Unknown(node.text, "format() takes texts and numbers")
    if any(match[1] and int(match[1]) >= len(values) for match in _HOLE.finditer(template)):
        return Unknown(node.text, "format() has fewer values than its text names")
    return _bounded(node, _HOLE.sub(fill, template))
