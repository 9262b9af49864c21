"""The line for an error of Redis, without the text of scripts. The line names the remedy.

Redis 6.2 wraps an error within a script into another one, so errors are recognized by their text, not by their class.
"""

from __future__ import annotations

import re
import socket
from contextlib import suppress
from typing import TYPE_CHECKING

from rqttl.cli.common.exits import REFUSED, UNREACHABLE, RedisFailure
from rqttl.protocol import replies
from rqttl.units import as_size

if TYPE_CHECKING:
    from rqttl.store.store import Store

_CHECK = "check --url or $RQTTL_URL"
_NO_TLS = f"the server does not speak TLS: use redis:// instead of rediss://, or {_CHECK}"
#: Seconds for a handshake, before a server is asked without TLS.
_HANDSHAKE = 1.0
#: The place of an error in a script, as Redis 6.2 writes it, and as Redis since 7.0 does.
_OF_SCRIPT = re.compile(
    r"Error running script \(call to \w+\): |@user_script: ?\d+: |,? ?script: [0-9a-f]{40}, on @user_script:\d+\.?"
)
#: Text of redis-py around the words of the system.
_OF_SOCKET = re.compile(r"^Error (-?\d+|while reading from .*?:) |\(\d+, '|'\)$")
_RIGHT = re.compile(r"no permissions to run the '([^']+)' command", re.IGNORECASE)

#: A pattern in an error, the exit code, and the line.
_KNOWN: tuple[tuple[str, int, str], ...] = (
    ("read only replica", REFUSED, "this Redis is a read-only replica: name its primary in --url or $RQTTL_URL"),
    (
        "MISCONF|unable to persist|errors writing to the AOF",
        REFUSED,
        "Redis cannot save its data, so it takes no writes: look at its log and its disk",
    ),
    (
        "NOREPLICAS|Not enough good replicas",
        REFUSED,
        "Redis has fewer replicas than min-replicas-to-write asks for, so it takes no writes",
    ),
    ("loading the dataset", UNREACHABLE, "Redis is loading its data: try again in a moment"),
    ("max number of clients", UNREACHABLE, "Redis takes no more connections (maxclients): close some, or raise it"),
    ("DB index is out of range|invalid DB index", UNREACHABLE, f"Redis has no database of this number: {_CHECK}"),
    (
        "HELLO must be called|Authentication required|NOAUTH",
        UNREACHABLE,
        "Redis wants a password: give it in --url or $RQTTL_URL, before the host, as :PASSWORD@",
    ),
    (
        "WRONGPASS|invalid username-password|invalid password|called without any password configured",
        UNREACHABLE,
        f"Redis does not take this user and password: {_CHECK}",
    ),
    ("Protocol error, got", UNREACHABLE, f"the server speaks another protocol than Redis: {_CHECK}"),
    (
        "WRONG_VERSION_NUMBER|record layer failure",
        UNREACHABLE,
        _NO_TLS,
    ),
    (
        "CERTIFICATE_VERIFY_FAILED",
        UNREACHABLE,
        "the certificate of Redis is not trusted: name its authority's in the URL, with ?ssl_ca_certs=FILE",
    ),
)


def explain(error: Exception, store: Store | None = None) -> tuple[int, str] | None:
    """Exit code and line of an error of redis-py; None for any other error. `store` gives facts for the line."""
    from redis import exceptions  # slow to load, and most errors are about the command line

    if not isinstance(error, exceptions.RedisError):
        return None
    message = str(error)
    if _matches("OOM command|used memory > 'maxmemory'|out of memory", message):
        return REFUSED, f"Redis is out of memory{_maxmemory(store)}: consume, purge, or raise it"
    if missing := _missing_right(message):
        return REFUSED, f"Redis refuses {_user(store)}: {missing}; `rqttl doctor` says which rights this user needs"
    hung_up = _matches("while writing|closed by server|reset by peer", message)
    if hung_up:
        message = _greeting(store) or message
    for pattern, code, line in _KNOWN:
        if _matches(pattern, message):
            return code, line
    if isinstance(error, (exceptions.ConnectionError, exceptions.TimeoutError)):
        reason = _OF_SOCKET.sub("", message).rstrip(".").replace(". ", ": ") or type(error).__name__
        tls = " (a port with TLS wants rediss://)" if hung_up and _is_plain_tcp(store) else ""
        return UNREACHABLE, f"Redis does not answer: {reason}{tls}; {_CHECK}"
    return REFUSED, f"Redis refused: {without_script(message)}"


def check_tls(store: Store) -> None:
    """Raise `RedisFailure` if a server that should speak TLS answers a plain `PING`.

    Redis without TLS waits for the rest of a handshake that it cannot read, so a client learns nothing for 30 s.
    """
    from redis.connection import SSLConnection
    from redis.exceptions import RedisError

    pool = store.connections.pool
    if not issubclass(pool.connection_class, SSLConnection):
        return
    host, port = pool.connection_kwargs.get("host", "localhost"), pool.connection_kwargs.get("port", 6379)
    hello = {"socket_timeout": _HANDSHAKE, "socket_connect_timeout": _HANDSHAKE, "retry": None}
    connection = pool.connection_class(**{**pool.connection_kwargs, **hello})
    try:
        connection.connect()
    except (RedisError, OSError):  # the command itself meets the error, and tells it
        with suppress(OSError), socket.create_connection((host, port), _HANDSHAKE) as sock:
            sock.sendall(b"PING\r\n")
            if sock.recv(1) in (b"+", b"-"):
                raise RedisFailure(UNREACHABLE, _NO_TLS) from None
    finally:
        connection.disconnect()


def without_script(message: str) -> str:
    """The text of an error without the place in a script."""
    return _OF_SCRIPT.sub("", message).strip().removeprefix("-")


def _matches(pattern: str, message: str) -> bool:
    return re.search(pattern, message, re.IGNORECASE) is not None


def _missing_right(message: str) -> str:
    """The missing right of a user, in words; empty if the error is about something else."""
    if right := _RIGHT.search(message):
        return f"the right for {right[1].upper()} is missing"
    if _matches("can't run this command", message):
        return "the right for a command that scripts use is missing"
    if _matches("access (at least )?one of the keys|access a key", message):
        return "the right for keys of this namespace is missing"
    if _matches("can't publish|access one of the channels|permissions to .*channel", message):
        return "the right for the channel that wakes reapers is missing"
    return "a right is missing" if _matches("NOPERM|no permissions", message) else ""


def _maxmemory(store: Store | None) -> str:
    """The memory limit of Redis, in brackets; empty if it is unknown."""
    from redis import exceptions

    if store is None:
        return ""
    try:
        (reply,) = store.execute([("INFO", "memory")])
        limit = replies.info_fields(reply).get("maxmemory")
    except exceptions.RedisError:
        return ""  # the line does without it
    return f" (maxmemory {_as_configured(limit)})" if isinstance(limit, int) and limit else ""


def _as_configured(size: int) -> str:
    """A size in the units of redis.conf, where 1 MB is 1,048,576 bytes, if it is a whole number of one."""
    for unit, factor in (("GB", 2**30), ("MB", 2**20), ("KB", 2**10)):
        if size % factor == 0:
            return f"{size // factor} {unit}"
    return as_size(size)


def _user(store: Store | None) -> str:
    name = store.connections.pool.connection_kwargs.get("username") if store is not None else None
    return f"user {name!r}" if name else "this user"


def _is_plain_tcp(store: Store | None) -> bool:
    from redis.connection import SSLConnection, UnixDomainSocketConnection

    kind = store.connections.pool.connection_class if store is not None else UnixDomainSocketConnection
    return not issubclass(kind, (SSLConnection, UnixDomainSocketConnection))


def _greeting(store: Store | None) -> str:
    """The first words of the server. Redis sends none, or its reason for closing the connection."""
    if store is None:
        return ""
    pool = store.connections.pool
    try:
        with pool.connection_class(**pool.connection_kwargs)._connect() as sock:  # noqa: SLF001  # without a word of ours
            sock.settimeout(0.5)
            greeting: bytes = sock.recv(200)
    except OSError:
        return ""
    return greeting.decode(errors="replace")
