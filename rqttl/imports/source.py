"""Checks of a JSON file of another broker. Each refusal is an `InvalidImport` that names a place in the file."""

import json
import re
from collections.abc import Iterator, Mapping
from fractions import Fraction
from math import ceil
from typing import Any, TypeVar

from rqttl.errors import InvalidImport
from rqttl.text import format_value, plain_text

T = TypeVar("T")

_KINDS = {dict: "an object", list: "a list", str: "a text", bool: "true or false", int: "a whole number"}
_WHOLE = re.compile(r"-?\d{1,18}", re.ASCII)
_FLAGS = {"true": True, "false": False}
_PLAIN_KEY = re.compile(r"[A-Za-z_$][A-Za-z0-9_$-]{0,79}", re.ASCII)
_DURATION = re.compile(
    r"P(?:(\d{1,12})D)?(?:T(?:(\d{1,12})H)?(?:(\d{1,12})M)?(?:(\d{1,12}(?:\.\d{1,12})?)S)?)?", re.ASCII
)
_CLOCK = re.compile(r"(?:(\d{1,12})(?:\.| days?, ))?(\d{1,2}):(\d{1,2}):(\d{1,2}(?:\.\d{1,12})?)", re.ASCII)


def load(text: object, file_kind: str) -> Any:
    """Read a JSON object or list. `file_kind` is the kind of the file. Raises `InvalidImport`."""
    plain = plain_text(text)
    if plain is None:
        raise InvalidImport("$", f"expected the text of {file_kind}, got {format_value(text)}")
    try:
        value = json.loads(plain.removeprefix("\ufeff"), object_pairs_hook=_without_repeats)
        json.dumps(value, ensure_ascii=False).encode()  # halves of a character, which nothing can encode
    except RecursionError:
        raise InvalidImport("$", "expected fewer objects and lists inside each other") from None
    except InvalidImport:
        raise
    except ValueError as error:  # no JSON, or a number with too many digits
        raise InvalidImport("$", f"expected JSON: {error}") from None
    return value


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        repeated = next(key for i, (key, _) in enumerate(pairs) if key in dict(pairs[:i]))
        raise InvalidImport(at("$.", repeated), "expected each key once in an object")
    return table


def at(place: str, key: str | int) -> str:
    """The place of a member of an object, or of an item of a list."""
    if isinstance(key, int):
        return f"{place}[{key}]"
    return f"{place}.{key}" if _PLAIN_KEY.fullmatch(key) else f"{place}[{format_value(key)}]"


def read(kind: type[T], value: object, place: str) -> T:
    """Check that a value is of a kind of JSON: a `dict`, `list`, `str`, `bool` or `int`."""
    if isinstance(value, kind) and (kind is not int or not isinstance(value, bool)):
        return value
    got = format_value(value) if isinstance(value, str) else _KINDS.get(type(value), "")
    if not isinstance(value, (str, dict, list)):
        got = json.dumps(value)[:80]
    raise InvalidImport(place, f"expected {_KINDS[kind]}, got {got}")


def member(table: Mapping[str, Any], key: str, place: str, kind: type[T], default: T | None = None) -> T:
    """A member of an object, or its default if it is missing or null."""
    if default is not None and table.get(key) is None:
        return default
    if key not in table:
        raise InvalidImport(place, f"expected an object with {key!r}")
    return read(kind, table[key], at(place, key))


def objects(table: Mapping[str, Any], key: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of a list at the root of the file, each with its place. The list may be absent."""
    for i, item in enumerate(member(table, key, "$", list, [])):
        place = at(at("$", key), i)
        yield place, read(dict, item, place)


def read_whole(value: object, place: str) -> int:
    """A whole number, which templates also write as a text."""
    return int(value) if isinstance(value, str) and _WHOLE.fullmatch(value) else read(int, value, place)


def read_flag(value: object, place: str) -> bool:
    """True or false, which templates also write as a text."""
    word = value.lower() if isinstance(value, str) else ""
    return _FLAGS[word] if word in _FLAGS else read(bool, value, place)


def read_duration(value: object, place: str) -> int:
    """The milliseconds of an ISO 8601 duration in days, hours, minutes and seconds, or of a time as `az` prints it.

    `az` prints `d.hh:mm:ss`, `hh:mm:ss` or `14 days, 0:00:00`. Parts of a millisecond are rounded up.
    """
    text = read(str, value, place)
    match = _CLOCK.fullmatch(text) or _DURATION.fullmatch(text)
    if not match or text[-1] in "PT":
        rule = "expected an ISO 8601 duration in days, hours, minutes and seconds such as 'PT30S' or 'P14D'"
        raise InvalidImport(place, f"{rule}, got {format_value(text)}")
    days, hours, minutes, seconds = (Fraction(part) for part in match.groups(default="0"))
    return ceil(1000 * (((days * 24 + hours) * 60 + minutes) * 60 + seconds))
