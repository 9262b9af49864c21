"""The parsers for the texts of options, by kind. They raise `InvalidOption` or `InvalidInput`, and show no secret."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeAlias

from rqttl import units
from rqttl.checks import check_namespace, check_queue_name
from rqttl.errors import InvalidInput
from rqttl.protocol import codec
from rqttl.store.addresses import Address, read_url
from spark_connectors.errors import InvalidOption
from spark_connectors.options import patterns
from spark_connectors.options.secret import Secret, mask, quoted

if TYPE_CHECKING:
    from spark_connectors.options.table import Option


def _url(option: Option, text: str) -> Address:
    """Read the URL of a server, of a cluster, or of the Sentinels of a service."""
    try:
        address = read_url(text)
    except InvalidInput as error:
        is_of_several = re.search(r"^\w+://[^/]*,[^/@]*(/|$)|://.*://", text)
        hint = "; for several servers, make a union of one read for each" if is_of_several else ""
        raise InvalidOption(f"{error}{hint}") from None
    if address.is_embedded:
        raise InvalidOption(f"{option.name}: expected redis://, or what `rqttl server` prints, not embedded://")
    if address.options:
        names = "db, username, password or slotted"
        raise InvalidOption(f"{option.name}: expected {names} after '?', got {min(address.options)[:40]!r}")
    return address


_FLAGS = {"true": True, "false": False}
#: A sequence or a word for each queue.
Offsets: TypeAlias = dict[str, str]
#: A number of bytes, as in Spark's own settings: `k`, `m` and `g`, with or without `b`, are powers of 1,024.
_SIZE = re.compile(r"([0-9_]{1,20}) ?(?:([kmg]?)b?)", re.ASCII | re.IGNORECASE)
_SIZE_UNITS = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3}


def _text(option: Option, text: str) -> str:
    if not text or not text.isprintable():
        raise InvalidOption(f"{option.name}: expected printable text, got {quoted(text)}")
    return text


def _secret(option: Option, text: str) -> Secret:
    if not text:
        raise InvalidOption(f"{option.name}: expected text, got none")
    return Secret(text)


def _flag(option: Option, text: str) -> bool:
    if text.strip().lower() not in _FLAGS:
        raise InvalidOption(f"{option.name}: expected true or false, got {quoted(text)}")
    return _FLAGS[text.strip().lower()]


def _count(option: Option, text: str) -> int:
    digits = text.strip().replace("_", "")
    if not digits.isascii() or not digits.isdigit() or not option.minimum <= int(digits[:20]) <= option.maximum:
        raise InvalidOption(
            f"{option.name}: expected a whole number from {option.minimum} to {option.maximum}, got {quoted(text)}"
        )
    return int(digits)


def _size(option: Option, text: str) -> int:
    match = _SIZE.fullmatch(text.strip())
    digits = match[1].replace("_", "") if match else ""
    size = int(digits) * _SIZE_UNITS[match[2].lower()] if match and digits else -1
    if not option.minimum <= size <= option.maximum:
        raise InvalidOption(
            f"{option.name}: expected a number of bytes from {option.minimum} to {option.maximum}, such as 512k, 10m "
            f"or 1g, got {quoted(text)}"
        )
    return size


def _choice(option: Option, text: str) -> str:
    if text.strip().lower() not in option.choices:
        raise InvalidOption(f"{option.name}: expected one of {', '.join(option.choices)}, got {quoted(text)}")
    return text.strip().lower()


def _queues(option: Option, text: str) -> tuple[str, ...]:
    names = [name.strip() for name in text.split(",")]
    if any(word in name for name in names for word in "*#"):
        raise InvalidOption(f"{option.name}: {quoted(text)} looks like a pattern: use option queuePattern")
    return tuple(dict.fromkeys(_checked_name(option, name) for name in names))


def _checked_name(option: Option, name: str, check: Callable[[str], str] = check_queue_name) -> str:
    try:
        return check(name)
    except InvalidInput as error:
        raise InvalidOption(f"{option.name}: {mask(str(error), None)}") from None


def _pattern(option: Option, text: str) -> str:
    if (error := patterns.pattern_error(text.strip())) is not None:
        raise InvalidOption(f"{option.name}: {error}, got {quoted(text)}")
    return text.strip()


def _offsets(option: Option, text: str) -> str | Offsets:
    if text.strip().lower() in ("earliest", "latest"):
        return text.strip().lower()
    try:
        offsets = json.loads(text)
    except ValueError:
        offsets = None
    if not isinstance(offsets, dict):
        rule = 'expected earliest, latest, or JSON such as {"orders/dead": "1700000000000-100000"}'
        raise InvalidOption(f"{option.name}: {rule}, got {quoted(text)}")
    for queue, sequence in offsets.items():
        _checked_name(option, queue)
        if sequence not in ("earliest", "latest") and not (isinstance(sequence, str) and codec.is_sequence(sequence)):
            rule = f"{queue}: expected a value of the column sequence, earliest or latest"
            raise InvalidOption(f"{option.name}: {rule}, got {quoted(sequence)}")
    return offsets


#: The parser of each kind of option.
PARSERS: Mapping[str, Callable[[Option, str], object]] = {
    "url": _url,
    "text": _text,
    "path": _text,
    "secret": _secret,
    "flag": _flag,
    "count": _count,
    "size": _size,
    "duration": lambda option, text: int(units.duration(text, option.name, least=option.minimum)),
    "instant": lambda option, text: int(units.instant(text, option.name)),
    "choice": _choice,
    "namespace": lambda option, text: _checked_name(option, text.strip(), check_namespace),
    "queue": lambda option, text: _checked_name(option, text.strip()),
    "queues": _queues,
    "pattern": _pattern,
    "offsets": _offsets,
}
