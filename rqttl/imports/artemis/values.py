"""Values of elements and attributes, by the types that Artemis gives them. Each error names the place and the value."""

from __future__ import annotations

import re
from typing import NamedTuple

from rqttl import units
from rqttl.errors import InvalidImport
from rqttl.imports.artemis.xml import Node
from rqttl.text import format_value

Setting = int | float | str | bool

_MAX_LONG = 2**63 - 1
_SIZE = re.compile(r"([+-]?\d{1,19})\s*([kmg]?)i?b?", re.ASCII | re.IGNORECASE)
_FACTORS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30}


class _Type(NamedTuple):
    form: re.Pattern[str]
    expected: str


_TYPES = {
    "plain": _Type(re.compile(r".*", re.DOTALL), "a text"),
    "whole": _Type(re.compile(r"[+-]?\d{1,19}", re.ASCII), "a whole number"),
    "decimal": _Type(
        re.compile(r"[+-]?(?:\d{1,30}(?:\.\d{0,30})?|\.\d{1,30})(?:[eE][+-]?\d{1,2})?", re.ASCII), "a number"
    ),
    "flag": _Type(re.compile("true|false", re.IGNORECASE), "true or false"),
    "size": _Type(_SIZE, "a number of bytes such as 1048576 or 10MB"),
    "full-policy": _Type(re.compile("PAGE|DROP|BLOCK|FAIL", re.IGNORECASE), "one of PAGE, DROP, BLOCK, FAIL"),
}


def read(kind: str, node: Node) -> Setting:
    """The text of an element as a value of a type: a key of `_TYPES`, named in the table of settings."""
    return read_text(kind, node.text, node.place)


def whole(text: str, place: str) -> int:
    """A whole number of 64 bits."""
    return int(read_text("whole", text, place))


def read_text(kind: str, text: str, place: str) -> Setting:
    """As `read`, for an attribute."""
    match = _TYPES[kind].form.fullmatch(text)
    value = _value(kind, match) if match else None
    if value is None or (isinstance(value, int) and abs(value) > _MAX_LONG):
        hint = "; write the value of the property" if "${" in text else ""
        raise InvalidImport(place, f"expected {_TYPES[kind].expected}, got {format_value(text)}{hint}")
    return value


def _value(kind: str, match: re.Match[str]) -> Setting:
    if kind == "size":
        return int(match[1]) * _FACTORS[match[2].lower()]
    if kind == "flag":
        return match[0].lower() == "true"
    if kind in ("whole", "decimal"):
        return int(match[0]) if kind == "whole" else float(match[0])
    return match[0].upper() if kind == "full-policy" else match[0]


def duration_text(ms: int) -> str:
    """Milliseconds as a duration of rqttl, at most its longest one."""
    return units.as_text(min(ms, units.MAX_DURATION)) if ms else "0"
