"""Connections to Redis for the options of a job, and what its refusals mean to a user of the data source."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any, TypeAlias, cast

from redis.backoff import NoBackoff
from redis.connection import Connection, SSLConnection, UnixDomainSocketConnection
from redis.exceptions import AuthenticationError, ConnectionError, NoPermissionError, TimeoutError
from redis.retry import Retry

from spark_connectors.errors import (
    InvalidOption,
    NoPermission,
    NotAuthenticated,
    RefusedByRedis,
    SourceError,
    Unreachable,
)
from spark_connectors.options.options import Options
from spark_connectors.options.secret import masked

#: What a command is made of.
Words: TypeAlias = tuple[Any, ...]

#: The commands that a reader needs, as an ACL grants them.
READING = ("hmget", "hlen", "hscan", "smembers", "xlen", "xrange", "xrevrange")
CONNECT_TIMEOUT = 5.0
_FILES = ("tlsCaFile", "tlsCertFile", "tlsKeyFile")
_LONGEST_PAUSE = 10.0


def connect(options: Options) -> Connection:
    """A connection for these options, not opened yet: no hidden retries, RESP2, nothing said about the client.

    The password is read here, so this belongs where the connection is used. Raises `InvalidOption`.
    """
    address, password = options.address, options.password()
    for name in _FILES:
        if (file := options.maybe_text(name)) is not None and not Path(file).is_file():
            raise InvalidOption(f"{name}: {file!r} is no file here; driver and executors both need it")
    kind: type[Any] = Connection
    settings: dict[str, Any] = {"host": address.host, "port": address.port, "socket_keepalive": True}
    if address.path:
        kind, settings = UnixDomainSocketConnection, {"path": address.path}
    elif address.tls:
        kind = SSLConnection
        verify = options.flag("tlsVerify")
        settings |= {
            "ssl_ca_certs": options.maybe_text("tlsCaFile"), "ssl_certfile": options.maybe_text("tlsCertFile"),
            "ssl_keyfile": options.maybe_text("tlsKeyFile"), "ssl_check_hostname": verify,
            "ssl_cert_reqs": "required" if verify else "none",
        }  # fmt: skip
    timeout = options.number("socketTimeout") / 1000
    connection: Connection = kind(
        db=address.db,
        username=options.maybe_text("username"),
        password=None if password is None else password.reveal(),
        socket_timeout=timeout,
        socket_connect_timeout=min(timeout, CONNECT_TIMEOUT),
        retry=Retry(NoBackoff(), 0),
        protocol=2,
        **settings,
    )
    for name in ("driver_info", "lib_name", "lib_version"):
        # CLIENT SETINFO: a user with few rights may not say it, and the ACL log would note each attempt
        setattr(connection, name, None)
    return connection


def link_of(connection: Connection) -> socket.socket:
    """The socket of an open connection, to read replies from that redis-py need not take apart."""
    # there is no public way to what it has connected
    link: Any = connection._sock  # noqa: SLF001
    if link is None:
        raise ConnectionError("it is not connected")
    return cast("socket.socket", link)


def pauses(options: Options) -> tuple[float, ...]:
    """Seconds to wait before each further attempt to reach Redis."""
    first = options.number("retryBackoff") / 1000
    return tuple(min(_LONGEST_PAUSE, first * 2**i) for i in range(options.number("connectRetries")))


def translated(error: Exception, options: Options, words: Words = ()) -> SourceError:
    """What went wrong, for the user of the data source: which option to look at, and no secret.

    `words` is the command that was refused.
    """
    password = options.password()
    text = masked(str(error), None if password is None else password.reveal())
    user = options.maybe_text("username") or "default"
    if isinstance(error, AuthenticationError) or "NOAUTH" in text or "WRONGPASS" in text:
        return NotAuthenticated(
            f"username, passwordEnv, passwordFile: {options.address} refuses user {user!r} with this password: {text}"
        )
    if isinstance(error, NoPermissionError) or "NOPERM" in text:
        command, keys = str(words[0]).upper() if words else "it", f"{options.text('namespace')}:*"
        needed = f"Reading needs the keys {keys} and the commands {' '.join(READING)}"
        if options.use == "write":
            needed = f"Writing needs the keys {keys}; `rqttl doctor`, run as this user, says what is missing"
        return NoPermission(f"username: user {user!r} may not do {command}: {text}. {needed}")
    if isinstance(error, (ConnectionError, TimeoutError, OSError)):
        return Unreachable(f"url: {options.address} cannot be reached: {text}")
    said = " ".join(str(word)[:80] for word in words[:2])
    return RefusedByRedis(f"url: {options.address} refused {said}: {text}")
