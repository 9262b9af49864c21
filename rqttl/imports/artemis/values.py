"""Values of elements and attributes, by the types that Artemis gives them. Each error names the place and the value."""

from __future__ import annotations

import re
from collections.abc import Callable

from rqttl import units
from rqttl.errors import InvalidImport
from rqttl.text import format_value

Setting = int | float | str | bool

_MAX_LONG = 2**63 - 1
_WHOLE = re.compile(r"[+-]?\d{1,19}", re.ASCII)
_DECIMAL = re.compile(r"[+-]?(?:\d{1,30}(?:\.\d{0,30})?|\.\d{1,30})(?:[eE][+-]?\d{1,2})?", re.ASCII)
_SIZE = re.compile(r"([+-]?\d{1,19})\s*([kmg]?)i?b?", re.ASCII | re.IGNORECASE)
_FACTORS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30}


def _refused(place: str, expected: str, text: str) -> InvalidImport:
    property_hint = "; write the value of the property" if "${" in text else ""
    return InvalidImport(place, f"expected {expected}, got {format_value(text)}{property_hint}")


def whole(text: str, place: str) -> int:
    """A whole number of 64 bits."""
    if not _WHOLE.fullmatch(text) or not -_MAX_LONG <= int(text) <= _MAX_LONG:
        raise _refused(place, "a whole number", text)
    return int(text)


def decimal(text: str, place: str) -> float:
    """A number, also with a fraction."""
    if not _DECIMAL.fullmatch(text):
        raise _refused(place, "a number", text)
    return float(text)


def flag(text: str, place: str) -> bool:
    """`true` or `false`, in any case."""
    if text.lower() not in ("true", "false"):
        raise _refused(place, "true or false", text)
    return text.lower() == "true"


def size(text: str, place: str) -> int:
    """A number of bytes. `K`, `MB`, `GiB` and the like are powers of 1024."""
    match = _SIZE.fullmatch(text)
    number = int(match[1]) * _FACTORS[match[2].lower()] if match else 0
    if match is None or not -_MAX_LONG <= number <= _MAX_LONG:
        raise _refused(place, "a number of bytes such as 1048576 or 10MB", text)
    return number


def plain(text: str, _: str) -> str:
    """Any text."""
    return text


def one_of(*words: str) -> Callable[[str, str], str]:
    """A reader of one of some words, in any case."""

    def read(text: str, place: str) -> str:
        if text.upper() not in words:
            raise _refused(place, f"one of {', '.join(words)}", text)
        return text.upper()

    return read


def duration_text(ms: int) -> str:
    """Milliseconds as a duration of rqttl, at most its longest one."""
    return units.as_text(min(ms, units.MAX_DURATION)) if ms else "0"
