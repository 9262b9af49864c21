"""The parsers for the texts of options, one for each kind. They raise `InvalidOption`, and show no secret."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from rqttl import units
from rqttl.checks import check_namespace, check_queue_name
from rqttl.errors import InvalidInput
from rqttl.protocol import codec
from spark_connectors.errors import InvalidOption
from spark_connectors.options import patterns
from spark_connectors.options.secret import Secret, mask, quoted

if TYPE_CHECKING:
    from spark_connectors.options.table import Option

_URL_RULE = "expected redis://host:port/db, rediss://host:port/db or unix:///path?db=0"


@dataclass(frozen=True, slots=True)
class Address:
    """The address of Redis. `username` and `password` come from its URL."""

    scheme: str
    host: str
    port: int
    path: str
    db: int
    username: str | None = None
    password: Secret | None = None

    @property
    def tls(self) -> bool:
        """True if the connection is encrypted."""
        return self.scheme == "rediss"

    def without_credentials(self) -> Address:
        """Return the address without user name and password."""
        return replace(self, username=None, password=None)

    def __str__(self) -> str:
        return f"unix://{self.path}" if self.path else f"{self.scheme}://{self.host}:{self.port}"


def _url(option: Option, text: str) -> Address:
    """Parse the URL of a server."""
    _check_one_server(option, text)
    try:
        parts = urlsplit(text)
        port = parts.port or 6379
    except ValueError:
        raise InvalidOption(f"{option.name}: {_URL_RULE}; special characters in it must be %-encoded") from None
    if parts.scheme not in ("redis", "rediss", "unix"):
        scheme = parts.scheme if "://" in text and "@" not in parts.scheme else ""
        raise InvalidOption(f"{option.name}: {_URL_RULE}, got {quoted(scheme)} as scheme")
    local = parts.scheme == "unix"
    if "@" in parts.path + parts.query + parts.fragment and not local:
        raise InvalidOption(f"{option.name}: special characters in a password must be %-encoded")
    if local and (not parts.path or parts.hostname):
        raise InvalidOption(f"{option.name}: a unix:// URL has three slashes before its path")
    query = _query(option, parts)
    return Address(
        scheme=parts.scheme,
        host="" if local else parts.hostname or "localhost",
        port=0 if local else port,
        path=unquote(parts.path) if local else "",
        db=_database(option, query.get("db") or ("" if local else parts.path.strip("/"))),
        username=unquote(parts.username) if parts.username else query.get("username"),
        password=Secret(password) if (password := unquote(parts.password or "") or query.get("password")) else None,
    )


def _check_one_server(option: Option, text: str) -> None:
    parts = urlsplit(text) if text.count("[") == text.count("]") else None
    host = parts.netloc.rpartition("@")[2] if parts else ""
    if "," in host or re.search(r"[\s,;]\w+://", text):
        raise InvalidOption(
            f"{option.name}: expected the URL of one server; for several ones, make a union of one read for each"
        )


def _query(option: Option, parts: SplitResult) -> Mapping[str, str]:
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    if unknown := sorted(set(query) - {"db", "username", "password"}):
        raise InvalidOption(f"{option.name}: expected db, username or password after '?', got {unknown[0][:40]!r}")
    return query


def _database(option: Option, text: str) -> int:
    if not text:
        return 0
    if not text.isascii() or not text.isdigit() or len(text) > 6:
        raise InvalidOption(f"{option.name}: expected the number of a database after the address")
    return int(text)


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


def _duration(option: Option, text: str) -> int:
    try:
        return int(units.duration(text, option.name, least=option.minimum))
    except InvalidInput as error:
        raise InvalidOption(str(error)) from None


def _instant(option: Option, text: str) -> int:
    try:
        return int(units.instant(text, option.name))
    except InvalidInput as error:
        raise InvalidOption(str(error)) from None


def _choice(option: Option, text: str) -> str:
    if text.strip().lower() not in option.choices:
        raise InvalidOption(f"{option.name}: expected one of {', '.join(option.choices)}, got {quoted(text)}")
    return text.strip().lower()


def _namespace(option: Option, text: str) -> str:
    return _checked_name(option, lambda: check_namespace(text.strip()))


def _queue(option: Option, text: str) -> str:
    return _checked_name(option, lambda: check_queue_name(text.strip()))


def _queues(option: Option, text: str) -> tuple[str, ...]:
    names = [name.strip() for name in text.split(",")]
    if any(word in name for name in names for word in "*#"):
        raise InvalidOption(f"{option.name}: {quoted(text)} looks like a pattern: use option queuePattern")
    return tuple(dict.fromkeys(_checked_name(option, lambda name=name: check_queue_name(name)) for name in names))  # type: ignore[misc]  # bound at once


def _checked_name(option: Option, check: Callable[[], str]) -> str:
    try:
        return check()
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
        _checked_name(option, lambda queue=queue: check_queue_name(queue))  # type: ignore[misc]  # bound at once
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
    "duration": _duration,
    "instant": _instant,
    "choice": _choice,
    "namespace": _namespace,
    "queue": _queue,
    "queues": _queues,
    "pattern": _pattern,
    "offsets": _offsets,
}
