"""How the texts of options are read, one function for each kind. They raise `InvalidOption` and show no secret."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from rqttl import codec, units
from rqttl.errors import InvalidInput
from rqttl.keys import check_namespace, check_queue_name
from spark_connectors.errors import InvalidOption
from spark_connectors.options import patterns
from spark_connectors.options.secret import Secret, masked, shown

if TYPE_CHECKING:
    from spark_connectors.options.table import Option

_URL_RULE = "expected redis://host:port/db, rediss://host:port/db or unix:///path?db=0"
_FLAGS = {"true": True, "false": False}


@dataclass(frozen=True, slots=True)
class Address:
    """Where Redis is. `username` and `password` are what its URL held; options take them over."""

    scheme: str
    host: str
    port: int
    path: str
    db: int
    username: str | None = None
    password: Secret | None = None

    @property
    def tls(self) -> bool:
        """Whether the connection is encrypted."""
        return self.scheme == "rediss"

    def bare(self) -> Address:
        """The address alone."""
        return replace(self, username=None, password=None)

    def __str__(self) -> str:
        return f"unix://{self.path}" if self.path else f"{self.scheme}://{self.host}:{self.port}"


def _url(option: Option, text: str) -> Address:
    try:
        parts = urlsplit(text)
        port = parts.port or 6379
    except ValueError:
        raise InvalidOption(f"{option.name}: {_URL_RULE}; special characters in it must be %-encoded") from None
    if parts.scheme not in ("redis", "rediss", "unix"):
        scheme = parts.scheme if "://" in text and "@" not in parts.scheme else ""
        raise InvalidOption(f"{option.name}: {_URL_RULE}, got {shown(scheme)} as scheme")
    local = parts.scheme == "unix"
    if "@" in parts.path + parts.query + parts.fragment and not local:
        raise InvalidOption(f"{option.name}: special characters in a password must be %-encoded")
    if local and (not parts.path or parts.hostname):
        raise InvalidOption(f"{option.name}: a unix:// URL has three slashes before its path")
    database, said = _query(option, parts)
    return Address(
        scheme=parts.scheme,
        host="" if local else parts.hostname or "localhost",
        port=0 if local else port,
        path=unquote(parts.path) if local else "",
        db=_database(option, database or ("" if local else parts.path.strip("/"))),
        username=unquote(parts.username) if parts.username else said.get("username"),
        password=Secret(found) if (found := unquote(parts.password or "") or said.get("password")) else None,
    )


def _query(option: Option, parts: SplitResult) -> tuple[str, Mapping[str, str]]:
    said = dict(parse_qsl(parts.query, keep_blank_values=True))
    if unknown := sorted(set(said) - {"db", "username", "password"}):
        raise InvalidOption(f"{option.name}: {unknown[0][:40]!r} cannot be said in it; there are options for the rest")
    return said.get("db", ""), said


def _database(option: Option, text: str) -> int:
    if not text:
        return 0
    if not text.isascii() or not text.isdigit() or len(text) > 6:
        raise InvalidOption(f"{option.name}: expected the number of a database behind the address")
    return int(text)


def _text(option: Option, text: str) -> str:
    if not text or not text.isprintable():
        raise InvalidOption(f"{option.name}: expected printable text, got {shown(text)}")
    return text


def _secret(option: Option, text: str) -> Secret:
    if not text:
        raise InvalidOption(f"{option.name}: expected text, got none")
    return Secret(text)


def _flag(option: Option, text: str) -> bool:
    if text.strip().lower() not in _FLAGS:
        raise InvalidOption(f"{option.name}: expected true or false, got {shown(text)}")
    return _FLAGS[text.strip().lower()]


def _count(option: Option, text: str) -> int:
    plain = text.strip().replace("_", "")
    if not plain.isascii() or not plain.isdigit() or not option.least <= int(plain[:20]) <= option.most:
        raise InvalidOption(
            f"{option.name}: expected a whole number from {option.least} to {option.most}, got {shown(text)}"
        )
    return int(plain)


def _duration(option: Option, text: str) -> int:
    try:
        return int(units.duration(text, option.name, least=option.least))
    except InvalidInput as error:
        raise InvalidOption(str(error)) from None


def _instant(option: Option, text: str) -> int:
    try:
        return int(units.instant(text, option.name))
    except InvalidInput as error:
        raise InvalidOption(str(error)) from None


def _choice(option: Option, text: str) -> str:
    if text.strip().lower() not in option.choices:
        raise InvalidOption(f"{option.name}: expected one of {', '.join(option.choices)}, got {shown(text)}")
    return text.strip().lower()


def _namespace(option: Option, text: str) -> str:
    return _named(option, lambda: check_namespace(text.strip()))


def _queue(option: Option, text: str) -> str:
    return _named(option, lambda: check_queue_name(text.strip()))


def _queues(option: Option, text: str) -> tuple[str, ...]:
    names = [name.strip() for name in text.split(",")]
    if any(word in name for name in names for word in "*#"):
        raise InvalidOption(f"{option.name}: {shown(text)} looks like a pattern: use option queuePattern")
    return tuple(dict.fromkeys(_named(option, lambda name=name: check_queue_name(name)) for name in names))  # type: ignore[misc]  # bound at once


def _named(option: Option, check: Callable[[], str]) -> str:
    try:
        return check()
    except InvalidInput as error:
        raise InvalidOption(f"{option.name}: {masked(str(error), None)}") from None


def _pattern(option: Option, text: str) -> str:
    if (wrong := patterns.fault(text.strip())) is not None:
        raise InvalidOption(f"{option.name}: {wrong}, got {shown(text)}")
    return text.strip()


def _offsets(option: Option, text: str) -> str | dict[str, str]:
    rule = 'expected earliest, latest, or JSON such as {"orders.dead": "1700000000000-100000"}'
    if text.strip().lower() in ("earliest", "latest"):
        return text.strip().lower()
    try:
        places = json.loads(text)
    except ValueError:
        places = None
    if not isinstance(places, dict):
        raise InvalidOption(f"{option.name}: {rule}, got {shown(text)}")
    for queue, place in places.items():
        _named(option, lambda queue=queue: check_queue_name(queue))  # type: ignore[misc]  # bound at once
        if place not in ("earliest", "latest") and not codec.is_sequence(place):
            rule = f"{queue}: expected a value of the column sequence, earliest or latest"
            raise InvalidOption(f"{option.name}: {rule}, got {shown(place)}")
    return places


#: The reader of each kind of option.
READ: Mapping[str, Callable[[Option, str], object]] = {
    "url": _url, "text": _text, "path": _text, "secret": _secret, "flag": _flag, "count": _count,
    "duration": _duration, "instant": _instant, "choice": _choice, "namespace": _namespace, "queue": _queue,
    "queues": _queues, "pattern": _pattern, "offsets": _offsets,
}  # fmt: skip
