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
from rqttl.store.connections import hosts_of
from spark_connectors.errors import InvalidOption
from spark_connectors.options import patterns
from spark_connectors.options.secret import Secret, mask, quoted

if TYPE_CHECKING:
    from spark_connectors.options.table import Option

_URL_RULE = (
    "expected redis://host:port/db, rediss://host:port/db, unix:///path?db=0, redis+cluster://host:port,host:port or "
    "redis+sentinel://host:port,host:port/service"
)
#: The schemes, and the port of a host without one.
_PORTS = {"redis": 6379, "rediss": 6379, "unix": 0, "redis+cluster": 6379, "rediss+cluster": 6379}
_PORTS |= {"redis+sentinel": 26379, "rediss+sentinel": 26379}
_OF_SENTINELS = ("sentinel_username", "sentinel_password")


@dataclass(frozen=True, slots=True)
class Address:
    """The address of Redis. `username` and `password` come from its URL."""

    scheme: str
    #: Host and port of the server, of some nodes of a cluster, or of the Sentinels of a `service`.
    places: tuple[tuple[str, int], ...]
    path: str
    db: int
    service: str = ""
    username: str | None = None
    password: Secret | None = None
    sentinel_username: str | None = None
    sentinel_password: Secret | None = None

    @property
    def tls(self) -> bool:
        """True if the connection is encrypted."""
        return self.scheme.startswith("rediss")

    @property
    def is_cluster(self) -> bool:
        """True if the places are nodes of a cluster."""
        return self.scheme.endswith("+cluster")

    def without_credentials(self) -> Address:
        """Return the address without user name and password of Redis."""
        return replace(self, username=None, password=None)

    def __str__(self) -> str:
        places = ",".join(f"{host}:{port}" for host, port in self.places)
        return (
            f"unix://{self.path}" if self.path else f"{self.scheme}://{places}{'/' * bool(self.service)}{self.service}"
        )


def _url(option: Option, text: str) -> Address:
    """Parse the URL of a server, of a cluster, or of the Sentinels of a service."""
    _check_one_address(option, text)
    try:
        parts = urlsplit(text)
        places = _places(parts)
    except ValueError:
        raise InvalidOption(f"{option.name}: {_URL_RULE}; special characters in it must be %-encoded") from None
    if parts.scheme not in _PORTS:
        scheme = parts.scheme if "://" in text and "@" not in parts.scheme else ""
        raise InvalidOption(f"{option.name}: {_URL_RULE}, got {quoted(scheme)} as scheme")
    local = parts.scheme == "unix"
    if "@" in parts.path + parts.query + parts.fragment and not local:
        raise InvalidOption(f"{option.name}: special characters in a password must be %-encoded")
    if local and (not parts.path or parts.hostname):
        raise InvalidOption(f"{option.name}: a unix:// URL has three slashes before its path")
    has_service, service, db = parts.scheme.endswith("+sentinel"), "", parts.path.strip("/")
    if has_service:
        service, _, db = db.partition("/")
        if not service:
            raise InvalidOption(f"{option.name}: {_URL_RULE}, got no service")
    query = _query(option, parts, _OF_SENTINELS if has_service else ())
    address = Address(
        scheme=parts.scheme,
        places=places,
        path=unquote(parts.path) if local else "",
        db=_database(option, query.get("db") or ("" if local else db)),
        service=unquote(service),
        username=unquote(parts.username) if parts.username else query.get("username"),
        password=_secret_of(unquote(parts.password or "") or query.get("password")),
        sentinel_username=query.get("sentinel_username"),
        sentinel_password=_secret_of(query.get("sentinel_password")),
    )
    if address.is_cluster and address.db:
        raise InvalidOption(f"{option.name}: a Redis Cluster has only database 0, got {address.db}")
    return address


def _places(parts: SplitResult) -> tuple[tuple[str, int], ...]:
    if parts.scheme == "unix":
        return ()
    if "+" in parts.scheme:
        return tuple(hosts_of(parts, _PORTS.get(parts.scheme, 0))[1])
    return ((parts.hostname or "localhost", parts.port or 6379),)


def _secret_of(text: str | None) -> Secret | None:
    return Secret(text) if text else None


def _check_one_address(option: Option, text: str) -> None:
    parts = urlsplit(text) if text.count("[") == text.count("]") else None
    commas = parts and "+" not in parts.scheme and "," in parts.netloc.rpartition("@")[2]
    if commas or re.search(r"[\s,;][\w+]+://", text):
        raise InvalidOption(
            f"{option.name}: expected the URL of one server, service or cluster; for several ones, make a union of one "
            "read for each"
        )


def _query(option: Option, parts: SplitResult, more: tuple[str, ...]) -> Mapping[str, str]:
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    if unknown := sorted(set(query) - {"db", "username", "password", *more}):
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
    "duration": _duration,
    "instant": _instant,
    "choice": _choice,
    "namespace": lambda option, text: _checked_name(option, text.strip(), check_namespace),
    "queue": lambda option, text: _checked_name(option, text.strip()),
    "queues": _queues,
    "pattern": _pattern,
    "offsets": _offsets,
}
