"""Checks of a JSON file of another broker. Each refusal is an `InvalidImport` that names a place in the file."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from rqttl.errors import InvalidImport
from rqttl.text import format_value, plain_text, plain_whole

#: Objects and lists inside each other.
MAX_DEPTH = 100
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_PLAIN_KEY = re.compile(r"[A-Za-z_$][A-Za-z0-9_$-]*", re.ASCII)


def load(text: object, file_kind: str, *, lists: bool = False) -> Any:
    """Read a JSON object, or a list, too. `file_kind` is the kind of the file. Raises `InvalidImport`."""
    plain = plain_text(text)
    if plain is None:
        raise InvalidImport("$", f"expected the text of {file_kind}, got {format_value(text)}")
    try:
        value = json.loads(plain.removeprefix("\ufeff"), object_pairs_hook=_without_repeats)
    except RecursionError:
        raise InvalidImport("$", f"expected at most {MAX_DEPTH} objects and lists inside each other") from None
    except InvalidImport:
        raise
    except ValueError as error:  # no JSON, or a number with too many digits
        raise InvalidImport("$", f"expected JSON: {error}") from None
    _check_depth(value)
    _check_unicode(plain, value)
    return value if lists and isinstance(value, list) else read_object(value, "$")


def at(place: str, key: str | int) -> str:
    """The place of a member of an object, or of an item of a list."""
    if isinstance(key, int):
        return f"{place}[{key}]"
    return f"{place}.{key}" if _PLAIN_KEY.fullmatch(key) and len(key) <= 80 else f"{place}[{format_value(key)}]"


def read_object(value: object, place: str) -> dict[str, Any]:
    """Check that a value is an object."""
    if isinstance(value, dict):
        return value
    raise InvalidImport(place, f"expected an object, got {describe(value)}")


def read_list(value: object, place: str) -> list[Any]:
    """Check that a value is a list."""
    if isinstance(value, list):
        return value
    raise InvalidImport(place, f"expected a list, got {describe(value)}")


def read_text(value: object, place: str) -> str:
    """Check that a value is a text."""
    if isinstance(value, str):
        return value
    raise InvalidImport(place, f"expected a text, got {describe(value)}")


def read_flag(value: object, place: str) -> bool:
    """Check that a value is true or false."""
    if isinstance(value, bool):
        return value
    raise InvalidImport(place, f"expected true or false, got {describe(value)}")


def read_whole(value: object, place: str) -> int:
    """Check that a value is a whole number."""
    number = plain_whole(value)
    if number is None:
        raise InvalidImport(place, f"expected a whole number, got {describe(value)}")
    return number


def member(table: Mapping[str, Any], key: str, place: str) -> Any:
    """A member that an object must have."""
    if key not in table:
        raise InvalidImport(place, f"expected an object with {key!r}")
    return table[key]


def optional_object(table: Mapping[str, Any], key: str, place: str) -> dict[str, Any]:
    """A member that is an object, if there is one. Null and an empty list stand for an empty object."""
    value = table.get(key)
    return {} if value is None or value == [] else read_object(value, at(place, key))


def objects(table: Mapping[str, Any], key: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of a list at the root of the file, each with its place. The list may be absent."""
    value = table.get(key)
    for i, item in enumerate([] if value is None else read_list(value, at("$", key))):
        place = at(at("$", key), i)
        yield place, read_object(item, place)


def describe(value: object) -> str:
    """A value of a JSON file, in the words of JSON."""
    if isinstance(value, (dict, list)):
        return "an object" if isinstance(value, dict) else "a list"
    return format_value(value) if isinstance(value, str) else json.dumps(value)[:80]


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for key, value in pairs:
        if key in table:
            raise InvalidImport(at("$.", key), "expected each key once in an object")
        table[key] = value
    return table


def _check_unicode(text: str, value: object) -> None:
    """Refuse halves of a character, which nothing can encode. In JSON only an escape makes one."""
    try:
        text.encode()
        if _SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise InvalidImport("$", f"expected text in Unicode: {error.reason}") from None


def _check_depth(value: object) -> None:
    """Refuse deep nesting. The work is in layers, so no depth of the file is a depth of calls."""
    layer: list[Any] = [value] if isinstance(value, (dict, list)) else []
    for _ in range(MAX_DEPTH + 1):
        layer = [
            item
            for parent in layer
            for item in (parent.values() if isinstance(parent, dict) else parent)
            if isinstance(item, (dict, list))
        ]
        if not layer:
            return
    raise InvalidImport("$", f"expected at most {MAX_DEPTH} objects and lists inside each other")
