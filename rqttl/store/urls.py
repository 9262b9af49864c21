"""URLs of Redis: their check, and the pools that they make. Sync and asyncio clients share them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from urllib.parse import SplitResult, unquote_to_bytes, urlsplit

import redis
import redis.asyncio
from redis.exceptions import RedisError

from rqttl.errors import InvalidInput
from rqttl.store.exchanges import SOCKET_TIMEOUT
from rqttl.text import format_value

#: The time-outs of a connection in seconds.
TIME_OUTS: Mapping[str, float] = {"socket_timeout": SOCKET_TIMEOUT, "socket_connect_timeout": 5.0}
SSL = (redis.SSLConnection, redis.asyncio.SSLConnection)
_SCHEMES = ("redis", "rediss", "unix")

Pool = TypeVar("Pool")


def pool_for(url: str, from_url: Callable[[str], Pool]) -> Pool:
    """A pool for a URL, which `from_url` makes. Raises `InvalidInput`, which never shows the URL."""
    scheme, separator, address = url.partition("://") if isinstance(url, str) else ("", "", "")
    if scheme not in _SCHEMES or not separator:
        got = f"{scheme[:20]!r} as scheme" if separator and scheme.isalnum() else "none of them"
        got = got if isinstance(url, str) else format_value(url)
        raise InvalidInput(f"url: expected redis://, rediss://, unix:// or embedded://, got {got}")
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018  # reading it is the check
        _check_encoding(parts)
        if "@" in address and "@" not in parts.netloc and scheme != "unix":
            raise ValueError  # an unencoded / ? or # in the password: redis-py would take a part of it for the host
        if scheme != "unix" and not re.fullmatch(r"/?[0-9]*/?", parts.path):
            raise ValueError  # redis-py would quietly use database 0
        pool = from_url(url)
        made: Any = pool  # the two classes of pools have no common base
        if scheme == "unix":
            # redis-py would read bytes that are no text as replacement characters
            made.connection_kwargs["path"] = os.fsdecode(unquote_to_bytes(os.fsencode(parts.path)))
        made.connection_class(**made.connection_kwargs)  # not opened: its constructor checks the options of the URL
        return pool
    except (ValueError, TypeError, RedisError):
        # the text of these errors holds parts of the URL, the password among them
        raise InvalidInput(
            "url: not a valid Redis URL, or one with an unknown option or a database that is no number "
            "(a password with special characters must be %-encoded)"
        ) from None


def address(pool: Any) -> str:
    """The URL of the server of a pool, without a password."""
    settings: Mapping[str, Any] = pool.connection_kwargs
    if "path" in settings:
        return f"unix://{settings['path']}"
    scheme = "rediss" if issubclass(pool.connection_class, SSL) else "redis"
    return f"{scheme}://{settings.get('host', 'localhost')}:{settings.get('port', 6379)}/{settings.get('db', 0)}"


def _check_encoding(parts: SplitResult) -> None:
    """Raise `UnicodeError`, a `ValueError`, for bytes that are no text. Only a path may have such bytes."""
    os.fsencode(parts.path)
    f"{parts.netloc}{parts.query}".encode()
    (parts.hostname or "").encode("idna")
