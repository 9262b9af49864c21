"""Expressions of ARM templates: the parser. `values` computes what the parser gives.

An expression stands in brackets: `[concat(parameters('namespace'), '/orders')]`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

#: Calls inside each other.
_MAX_DEPTH = 20
_TOKEN = re.compile(r"\s*(?:'((?:[^']|'')*)'|(-?\d{1,18})|([A-Za-z_][A-Za-z0-9_.]*)|([()\[\],.]))", re.ASCII)
_MEMBER = re.compile(r"\s*\.\s*([A-Za-z_][A-Za-z0-9_]*)", re.ASCII)


@dataclass(frozen=True)
class Call:
    """A call of a function, and its text."""

    function: str
    arguments: tuple[Node, ...]
    text: str


@dataclass(frozen=True)
class Member:
    """A member of an object, `value.key`, or an item of a list, `value[key]`, and its text."""

    value: Node
    key: Node
    text: str


Node = Call | Member | str | int


class NoExpression(ValueError):  # named for the event, as the errors of rqttl
    """A text in brackets is no expression."""


def expression_of(text: str) -> str | None:
    """The text between the brackets of an expression; `None` for a text that is none. `[[` begins a plain text."""
    return text[1:-1] if text.startswith("[") and text.endswith("]") and not text.startswith("[[") else None


def plain(text: str) -> str:
    """A text that is no expression, as it is meant: `[[` at its beginning stands for `[`."""
    return text[1:] if text.startswith("[[") else text


def parse(text: str) -> Node:
    """Parse the text between the brackets. Raises `NoExpression`."""
    parser = _Parser(text)
    node = parser.value(0)
    parser.end()
    return node


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.place = 0

    def value(self, depth: int) -> Node:
        if depth > _MAX_DEPTH:
            raise NoExpression(f"more than {_MAX_DEPTH} calls inside each other")
        start = self.place
        match = _TOKEN.match(self.text, self.place)
        if not match or match[4]:
            raise NoExpression(f"no value at character {self.place + 1}")
        self.place = match.end()
        if match[1] is not None:
            return match[1].replace("''", "'")
        if match[2] is not None:
            return int(match[2])
        if not self.skip("("):
            raise NoExpression(f"no '(' after {match[3]}")
        arguments = self.arguments(depth)
        node: Node = Call(match[3].lower(), arguments, self.text[start : self.place].strip())
        return self.members(node, start, depth)

    def arguments(self, depth: int) -> tuple[Node, ...]:
        if self.skip(")"):
            return ()
        arguments = [self.value(depth + 1)]
        while self.skip(","):
            arguments.append(self.value(depth + 1))
        if not self.skip(")"):
            raise NoExpression(f"no ')' at character {self.place + 1}")
        return tuple(arguments)

    def members(self, node: Node, start: int, depth: int) -> Node:
        for level in range(depth, _MAX_DEPTH):
            member = _MEMBER.match(self.text, self.place)
            if member:
                key: Node = member[1]
                self.place = member.end()
            elif self.skip("["):
                key = self.value(level + 1)
                if not self.skip("]"):
                    raise NoExpression(f"no ']' at character {self.place + 1}")
            else:
                return node
            node = Member(node, key, self.text[start : self.place].strip())
        raise NoExpression(f"more than {_MAX_DEPTH} members inside each other")

    def skip(self, sign: str) -> bool:
        match = _TOKEN.match(self.text, self.place)
        if not match or match[4] != sign:
            return False
        self.place = match.end()
        return True

    def end(self) -> None:
        if self.text[self.place :].strip():
            raise NoExpression(f"no end at character {self.place + 1}")
