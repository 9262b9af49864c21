"""URLs, and the addresses that they name: every front reads its URL here. Nothing connects, no text has a password."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, unquote_to_bytes, urlsplit

import redis
import redis.asyncio

from rqttl.embedded.folder import SCHEME, folder_of
from rqttl.errors import InvalidInput
from rqttl.text import format_value, plain_text

Place = tuple[str, int]

SSL = (redis.SSLConnection, redis.asyncio.SSLConnection)
#: The schemes, and the port of a host without one.
_PORTS = {"redis": 6379, "rediss": 6379, "redis+cluster": 6379, "rediss+cluster": 6379, "unix": 6379}
_PORTS |= {"redis+sentinel": 26379, "rediss+sentinel": 26379}
#: What follows the scheme, by its end.
_FORMS = {"": "host:port", "cluster": "host:port,host:port", "sentinel": "host:port,host:port/service[/database]"}


@dataclass(frozen=True)
class Address:
    """Where a server, the Sentinels of a service or some nodes of a cluster are, and who the client is."""

    scheme: str
    places: tuple[Place, ...] = (("localhost", 6379),)
    #: Of a socket; or of the folder of an embedded server, `None` for the default one.
    path: str | None = None
    service: str | None = None
    database: int = 0
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    sentinel_user: str | None = None
    sentinel_password: str | None = field(default=None, repr=False)
    #: See `rqttl.connect`.
    slotted: bool = False
    #: Settings of redis-py, as texts.
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, pool: Any) -> Address:
        """The address of the connections of a pool: of a service the first Sentinel."""
        settings: Mapping[str, Any] = pool.connection_kwargs
        service, path = settings.get("service"), settings.get("path")
        first = settings if service is None else service.sentinels[0]
        has_tls = isinstance(pool.connection_class, type) and issubclass(pool.connection_class, SSL)
        scheme = "unix" if path else f"redis{'s' * has_tls}{'+sentinel' * (service is not None)}"
        place: Any = first.get("host"), int(first.get("port") or 6379)
        name = None if service is None else service.name
        return cls(scheme, (place,), path, name, int(settings.get("db") or 0), settings.get("username"))

    @property
    def host(self) -> str:
        """The first host."""
        return self.places[0][0]

    @property
    def port(self) -> int:
        """Its port."""
        return self.places[0][1]

    @property
    def has_tls(self) -> bool:
        """True if connections are encrypted."""
        return self.scheme.startswith("rediss")

    @property
    def is_cluster(self) -> bool:
        """True if the places are nodes of a cluster."""
        return self.scheme.endswith("+cluster")

    @property
    def is_embedded(self) -> bool:
        """True for an embedded server."""
        return self.scheme == "embedded"

    @property
    def place(self) -> str:
        """`host:port`, or the path of a socket."""
        return self.path or f"{self.host}:{self.port}"

    def __str__(self) -> str:
        """Return it as a URL with the first place, without a password."""
        if self.path is not None:
            return f"unix://{self.path}"
        name = "" if self.service is None else f"{self.service}/"
        return f"{self.scheme}://{self.host or 'localhost'}:{self.port}/{name}{self.database}"


def read_url(url: object) -> Address:
    """Read a URL. Raises `InvalidInput`, which names the part that is wrong, and shows no user and no password."""
    text = plain_text(url) or ""
    if text.startswith(SCHEME):
        return Address("embedded", path=folder_of(text))
    parts, given = _split(url, text)
    is_local, service, path = parts.scheme == "unix", None, parts.path
    if parts.scheme.endswith("+sentinel"):
        service, _, path = path.removeprefix("/").partition("/")
        if not service:
            raise InvalidInput(f"url: service: expected {parts.scheme}://{_FORMS['sentinel']}")
    if is_local and (not path or parts.hostname):
        raise InvalidInput("url: path: expected unix:///path, with three slashes")
    slotted = given.pop("slotted", "false").lower()
    if slotted not in ("true", "false"):
        raise InvalidInput("url: slotted: expected true or false")
    user, password = (given.pop(name, None) for name in ("username", "password"))
    return Address(
        parts.scheme,
        _places(parts),
        os.fsdecode(unquote_to_bytes(os.fsencode(path))) if is_local else None,
        service and unquote(service),
        _database(parts.scheme, given.pop("db", ""), "" if is_local else path.strip("/")),
        unquote(parts.username or "") or user,
        unquote(parts.password or "") or password,
        slotted=slotted == "true",
        sentinel_user=given.pop("sentinel_username", None) if service else None,
        sentinel_password=given.pop("sentinel_password", None) if service else None,
        options=given,
    )


def _split(url: object, text: str) -> tuple[SplitResult, dict[str, str]]:
    """The parts of a URL, and its options."""
    scheme, separator, rest = text.partition("://")
    if not separator or scheme not in _PORTS:
        got = f"{scheme[:20]!r} as scheme" if separator and scheme.isalnum() else "none of them"
        got = got if isinstance(url, str) else format_value(url)
        meant = {"redis-cluster": "redis+cluster://", "redis-sentinel": "redis+sentinel://"}.get(scheme)
        if re.fullmatch(r"[\w.-]+(:\d+)?(/\d*)?", text):
            meant = "redis://HOST:PORT"
        got += f"; did you mean {meant}?" if meant else ""
        raise InvalidInput(
            f"url: expected redis://, rediss://, redis+sentinel://, redis+cluster://, unix:// or embedded://, got {got}"
        )
    if scheme != "unix" and "@" in re.sub("^[^/?#]*", "", rest):
        # an unencoded / ? or # in a password: the host would be a part of it
        raise InvalidInput("url: user, password: special characters must be %-encoded, as must each @ behind the host")
    try:
        parts = urlsplit(text)
        _ = f"{parts.netloc}{parts.query}".encode(), os.fsencode(parts.path)  # only a path may have bytes
    except UnicodeError:
        raise InvalidInput("url: expected text, and other bytes %-encoded") from None
    except ValueError:
        raise InvalidInput("url: host: only an IPv6 address is between [ and ]") from None
    try:
        pairs = parse_qsl(parts.query, strict_parsing=bool(parts.query))
    except ValueError:
        raise InvalidInput("url: options: expected name=value after '?', with & in between") from None
    return parts, dict(reversed(pairs))  # the first one of a name counts


def _places(parts: SplitResult) -> tuple[Place, ...]:
    kind, texts, places = parts.scheme.partition("+")[2], parts.netloc.rpartition("@")[2].split(","), []
    if not kind and len(texts) > 1:
        raise InvalidInput("url: host: expected one; several need redis+cluster:// or redis+sentinel://")
    for text in texts:
        try:
            host = unquote(urlsplit(f"//{text}").hostname or "") or ("" if kind else "localhost")
            host.encode("idna")
        except ValueError:
            host = ""
        if not host:
            raise InvalidInput(f"url: host: expected {parts.scheme}://{_FORMS[kind]}")
        try:
            places.append((host, urlsplit(f"//{text}").port or _PORTS[parts.scheme]))
        except ValueError:
            raise InvalidInput("url: port: expected a number up to 65535") from None
    return tuple(places)


def _database(scheme: str, given: str, named: str) -> int:
    if not re.fullmatch("[0-9]{0,9},[0-9]{0,9}", f"{given},{named}"):
        raise InvalidInput("url: database: expected a number after the address, or nothing")
    number = int(given or named or 0)
    if number and scheme.endswith("+cluster"):
        raise InvalidInput(f"url: a Redis Cluster has only database 0, got {number}")
    return number
