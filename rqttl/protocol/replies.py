"""Readers for replies to plain commands of Redis. Each raises a Python error for a reply of another shape."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from rqttl.errors import ContractError
from rqttl.text import format_value

T = TypeVar("T")
#: Commands whose names have two words.
_CONTAINERS = frozenset(("ACL", "CONFIG", "SCRIPT"))
_OTHER_SHAPE = (TypeError, ValueError, LookupError, AttributeError)


def command_name(words: Sequence[Any]) -> str:
    """The name of a plain command, which may have two words."""
    return " ".join(words[:2]) if words[0] in _CONTAINERS else str(words[0])


def shaped(name: str, read: Callable[[Any], T], reply: Any) -> T:
    """Read the reply of the command `name`. Raises `ContractError` for a reply of another shape."""
    try:
        return read(reply)
    except _OTHER_SHAPE as error:
        raise ContractError(f"{name}: unexpected reply {format_value(reply)}") from error


def number(reply: Any) -> int:
    """Read a whole number."""
    if type(reply) is not int:
        raise TypeError("no number")
    return reply


def data(reply: Any) -> bytes:
    """Read bytes."""
    if type(reply) is not bytes:
        raise TypeError("no bytes")
    return reply


def sequence(reply: Any) -> list[Any]:
    """Read a list."""
    if type(reply) is not list:
        raise TypeError("no list")
    return reply


def moment(reply: Any) -> tuple[int, int]:
    """Read the reply to `TIME`: seconds and microseconds."""
    seconds, micros = sequence(reply)
    return int(seconds), int(micros)


def milliseconds(reply: Any) -> int:
    """Read the reply to `TIME` in whole milliseconds."""
    seconds, micros = moment(reply)
    return seconds * 1000 + micros // 1000


def page(reply: Any) -> tuple[int, list[bytes]]:
    """Read one page of a scan: the cursor and the names."""
    cursor, names = sequence(reply)
    return int(cursor), [data(name) for name in names]


def pairs(reply: Any) -> dict[bytes, Any]:
    """Read names and values: a list of both in turn, or with RESP3 a mapping."""
    if isinstance(reply, Mapping):
        return dict(reply)
    words = sequence(reply)
    return dict(zip(words[::2], words[1::2], strict=True))


def info_fields(reply: Any) -> dict[str, int | float | str]:
    """Read the fields of `INFO`."""
    lines = (line.partition(":") for line in data(reply).decode("utf-8", "replace").splitlines())
    return {name: _value(value) for name, colon, value in lines if colon and not name.startswith("#")}


def _value(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
