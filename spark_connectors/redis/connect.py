"""Connections to Redis for the options of a job, and the errors of the data source for the refusals of Redis."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, cast

from redis.backoff import NoBackoff
from redis.connection import Connection, SSLConnection, UnixDomainSocketConnection
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    ConnectionError,
    NoPermissionError,
    RedisError,
    TimeoutError,
)
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
from spark_connectors.options.secret import mask

T = TypeVar("T")

#: One command with its arguments.
Command: TypeAlias = tuple[Any, ...]

#: The commands that a reader needs, as an ACL grants them.
READ_COMMANDS = ("hmget", "hlen", "hscan", "smembers", "xlen", "xrange", "xrevrange")
CONNECT_TIMEOUT = 5.0
_FILES = ("tlsCaFile", "tlsCertFile", "tlsKeyFile")
_LONGEST_PAUSE = 10.0


def connect(options: Options) -> Connection:
    """Make a connection, which opens at its first command: RESP2, without retries, without CLIENT SETINFO.

    The password is read here, so the process that uses the connection must call this. Raises `InvalidOption`.
    """
    address, password = options.address, options.password()
    for name in _FILES:
        if (file := options.optional_text(name)) is not None and not Path(file).is_file():
            raise InvalidOption(f"{name}: {file!r} is no file on this machine; driver and executors both need it")
    kind: type[Any] = Connection
    settings: dict[str, Any] = {"host": address.host, "port": address.port, "socket_keepalive": True}
    if address.path:
        kind, settings = UnixDomainSocketConnection, {"path": address.path}
    elif address.tls:
        kind = SSLConnection
        verify = options.flag("tlsVerify")
        settings |= {
            "ssl_ca_certs": options.optional_text("tlsCaFile"),
            "ssl_certfile": options.optional_text("tlsCertFile"),
            "ssl_keyfile": options.optional_text("tlsKeyFile"),
            "ssl_check_hostname": verify,
            "ssl_cert_reqs": "required" if verify else "none",
        }
    timeout = options.number("socketTimeout") / 1000
    connection: Connection = kind(
        db=address.db,
        username=options.optional_text("username"),
        password=None if password is None else password.reveal(),
        socket_timeout=timeout,
        socket_connect_timeout=min(timeout, CONNECT_TIMEOUT),
        retry=Retry(NoBackoff(), 0),
        protocol=2,
        **settings,
    )
    for name in ("driver_info", "lib_name", "lib_version"):
        # a user with few rights may not run CLIENT SETINFO, and the ACL log would note each attempt
        setattr(connection, name, None)
    return connection


def socket_of(connection: Connection) -> socket.socket:
    """Return the socket of an open connection, to read replies that redis-py shall not parse."""
    # redis-py has no public name for it
    link: Any = connection._sock  # noqa: SLF001
    if link is None:
        raise ConnectionError("the connection is closed")
    return cast("socket.socket", link)


def with_retries(options: Options, call: Callable[[], T], failed: Callable[[], None] = lambda: None) -> T:
    """Make a call, and repeat it while Redis does not answer, up to `connectRetries` times.

    `failed` runs after each failure. Refusals of Redis raise the result of `as_source_error` at once.
    """
    first, retries = options.number("retryBackoff") / 1000, options.number("connectRetries")
    for i in range(retries + 1):
        try:
            return call()
        except RedisError as error:
            failed()
            temporary = isinstance(error, (ConnectionError, TimeoutError, BusyLoadingError))
            if i == retries or not temporary or isinstance(error, AuthenticationError):
                raise as_source_error(error, options) from None
        except OSError as error:
            failed()
            if i == retries:
                raise as_source_error(error, options) from None
        time.sleep(min(_LONGEST_PAUSE, first * 2**i) * random.uniform(0.5, 1))
    raise AssertionError("the last attempt returns or raises")


def as_source_error(error: Exception, options: Options, command: Command = ()) -> SourceError:
    """Convert an error of redis-py. The new text names the option to look at, and shows no secret.

    `command` is the command that Redis refused.
    """
    password = options.password()
    text = mask(str(error), None if password is None else password.reveal())
    user = options.optional_text("username") or "default"
    if isinstance(error, AuthenticationError) or "NOAUTH" in text or "WRONGPASS" in text:
        return NotAuthenticated(
            f"username, passwordEnv, passwordFile: {options.address} refuses user {user!r} with this password: {text}"
        )
    if isinstance(error, NoPermissionError) or "NOPERM" in text:
        name, keys = str(command[0]).upper() if command else "a command", f"{options.text('namespace')}:*"
        needed = f"Reading needs the keys {keys} and the commands {' '.join(READ_COMMANDS)}"
        if options.use == "write":
            needed = f"Writing needs the keys {keys}; `rqttl doctor`, run as this user, names the missing rights"
        return NoPermission(f"username: user {user!r} may not run {name}: {text}. {needed}")
    if isinstance(error, (ConnectionError, TimeoutError, OSError)):
        return Unreachable(f"url: {options.address} cannot be reached: {text}")
    call = " ".join(str(word)[:80] for word in command[:2])
    return RefusedByRedis(f"url: {options.address} refused {call}: {text}")
