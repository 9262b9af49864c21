"""Addresses of servers, and the parsers of the options that hold them. They raise `InvalidOption`, and show no secret.

One URL is one server. A list has commas between the URLs, and a URL may have a name: `eu=redis://eu.internal:6379/0`.
Offsets in a checkpoint and the column `server` have this name. Without one they have host, port and database, so a new
password, another order of the list and a change to TLS at the same port leave them valid.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from spark_connectors.errors import InvalidOption
from spark_connectors.options.secret import Secret, quoted

if TYPE_CHECKING:
    from spark_connectors.options.table import Option

_URL_RULE = "expected redis://host:port/db, rediss://host:port/db or unix:///path?db=0"
#: The start of an item of a list. A name also has the form of a host, a port and a database.
_ITEM = re.compile(r"(?:^|,)\s*(?:(?P<name>(?!\w+://)[^\s=,?@]{1,200})=)?(?=[a-z]\w*://)", re.ASCII | re.IGNORECASE)
_REPLICA = "replica:"


@dataclass(frozen=True, slots=True)
class Address:
    """The address of Redis. `username` and `password` come from its URL. `name` is the name of the server, or empty."""

    scheme: str
    host: str
    port: int
    path: str
    db: int
    username: str | None = None
    password: Secret | None = None
    name: str = ""

    @property
    def tls(self) -> bool:
        """True if the connection is encrypted."""
        return self.scheme == "rediss"

    @property
    def server(self) -> str:
        """The name of the server: the one that the user gave, or host, port and database. It has no secret."""
        if self.name:
            return self.name
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.path or f'{host}:{self.port}'}/{self.db}"

    def without_credentials(self) -> Address:
        """Return the address without user name and password."""
        return replace(self, username=None, password=None)

    def __str__(self) -> str:
        return f"unix://{self.path}" if self.path else f"{self.scheme}://{self.host}:{self.port}"


def parse_servers(option: Option, text: str) -> Address | tuple[Address, ...]:
    """Parse the URL of one server, or a list of several servers."""
    items = list(_ITEM.finditer(text))
    if not items or text[: items[0].start()].strip():
        return _url(option, text)
    stops = [*(item.start() for item in items[1:]), len(text)]
    addresses = tuple(
        replace(_url(option, text[item.end() : stop].strip()), name=item["name"] or "")
        for item, stop in zip(items, stops, strict=True)
    )
    counts = Counter(address.server for address in addresses)
    if twice := [name for name, count in counts.items() if count > 1]:
        raise InvalidOption(f"{option.name}: two servers have the name {twice[0]!r}")
    return addresses[0] if len(addresses) == 1 else addresses


def parse_source(option: Option, text: str) -> str | Address | tuple[Address, ...]:
    """Parse `primary`, or `replica:` and the replica of one server, or a list with the replicas of several servers."""
    if text.strip().lower() == "primary":
        return "primary"
    if not text.strip().lower().startswith(_REPLICA):
        raise InvalidOption(f"{option.name}: expected primary, or replica: and the URL of a replica")
    replicas = parse_servers(option, text.strip()[len(_REPLICA) :].strip())
    if any(address.username or address.password for address in as_tuple(replicas)):
        raise InvalidOption(
            f"{option.name}: expected a URL without user name and password: a replica has those of its server"
        )
    return replicas


def as_tuple(addresses: Address | tuple[Address, ...]) -> tuple[Address, ...]:
    """Return one address or several as a tuple."""
    return addresses if isinstance(addresses, tuple) else (addresses,)


def _url(option: Option, text: str) -> Address:
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
            f"{option.name}: expected the URL of one server, or a list of complete URLs with commas between them"
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
