"""The address of Redis, and the parser of the option that holds it. It raises `InvalidOption`, and shows no secret."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from spark_connectors.errors import InvalidOption
from spark_connectors.options.secret import Secret, quoted

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


def parse_url(option: Option, text: str) -> Address:
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
