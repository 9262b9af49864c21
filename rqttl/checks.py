"""Checks of arguments that several calls share. Each raises `InvalidInput` with the name of the argument."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rqttl.errors import InvalidInput
from rqttl.text import format_value, plain_whole

#: The most bytes of the description of a failure or a death.
MAX_DESCRIPTION_BYTES = 4_096


def whole(value: object, name: str, least: int = 1, most: int | None = None) -> int:
    """Check a whole number. Raises `InvalidInput` with `name`."""
    number = plain_whole(value)
    if number is None or number < least or (most is not None and number > most):
        upto = "on" if most is None else f"to {most}"
        raise InvalidInput(f"{name}: expected a whole number from {least} {upto}, got {format_value(value, int)}")
    return number


def items(value: object, argument: str, expected: str) -> list[Any]:
    """The items of an iterable. Raises `InvalidInput` for text, for bytes and for a value that is no iterable."""
    if isinstance(value, (str, bytes, bytearray, memoryview)) or not isinstance(value, Iterable):
        raise InvalidInput(f"{argument}: expected {expected}, got {format_value(value)}")
    return list(value)


def cut_description(text: str) -> str:
    """Return a description cut to its limit. Characters that UTF-8 cannot hold are escaped."""
    encoded = text[:MAX_DESCRIPTION_BYTES].encode(errors="backslashreplace")
    return encoded[:MAX_DESCRIPTION_BYTES].decode(errors="ignore")
