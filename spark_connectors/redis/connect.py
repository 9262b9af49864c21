"""Connections to Redis for the options of a job, and the errors of the data source for the refusals of Redis."""

from __future__ import annotations

import builtins
import random
import re
import socket
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, cast

from redis.backoff import NoBackoff
from redis.connection import Connection, SSLConnection, UnixDomainSocketConnection
from redis.exceptions import (
    AskError,
    AuthenticationError,
    BusyLoadingError,
    ClusterCrossSlotError,
    ConnectionError,
    InvalidResponse,
    NoPermissionError,
    ResponseError,
    TimeoutError,
)
from redis.retry import Retry

from rqttl.outages import TEMPORARY, is_away, is_read_only, refuses_for_now
from rqttl.store.sentinel import PrimaryConnection, ThreadService, service_at
from spark_connectors.errors import (
    InvalidOption,
    NoPermission,
    NotAuthenticated,
    RefusedByRedis,
    RefusedForNow,
    SourceError,
    Unreachable,
    UntrustedCertificate,
)
from spark_connectors.options.options import Options
from spark_connectors.options.secret import mask

T = TypeVar("T")

#: One command with its arguments.
Command: TypeAlias = tuple[Any, ...]

#: The commands that a reader needs, as an ACL grants them.
READ_COMMANDS = ("hmget", "hlen", "hscan", "smembers", "xlen", "xrange", "xrevrange", "zrange")
CONNECT_TIMEOUT = 5.0
_FILES = ("tlsCaFile", "tlsCertFile", "tlsKeyFile")
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 10.0
#: Reasons of OpenSSL that no later attempt mends: the certificate or the key of one side, or a refused handshake.
_CERTIFICATE = re.compile(
    r"\[(?:SSL|X509): \w*(?:CERTIFICATE|UNKNOWN_CA|ACCESS_DENIED|HANDSHAKE_FAILURE|DECRYPT_ERROR|KEY_VALUES_MISMATCH)"
    r"|\[SSL\] PEM lib"
)
#: Texts of OpenSSL about a peer that does not speak TLS.
_NO_TLS = re.compile("WRONG_VERSION_NUMBER|EOF|RECORD_LAYER", re.IGNORECASE)


class _TlsConnection(SSLConnection):
    """A connection over TLS whose handshake ends with the connect time-out."""

    def _wrap_socket_with_ssl(self, sock: socket.socket) -> Any:
        sock.settimeout(self.socket_connect_timeout)
        hint = "a port without TLS needs a url that begins with redis://"
        try:
            wrapped = super()._wrap_socket_with_ssl(sock)  # type: ignore[no-untyped-call]
        except builtins.TimeoutError:
            raise TimeoutError(f"no answer to the TLS handshake; {hint}") from None
        except ssl.SSLError as error:
            if _CERTIFICATE.search(str(error)) or not _NO_TLS.search(str(error)):
                raise
            raise ConnectionError(f"{error}; {hint}") from None
        except ConnectionResetError as error:
            raise ConnectionError(f"{error}; {hint}") from None
        wrapped.settimeout(self.socket_timeout)
        return wrapped

    def alert(self) -> str:
        """Return the alert with which the server refuses this client after the handshake; empty if there is none.

        This opens another connection, and sends nothing on it. So no failure of a write hides the alert.
        """
        silent: socket.socket | None = None
        try:
            silent = cast("socket.socket", self._connect())  # type: ignore[no-untyped-call]
            silent.settimeout(self.socket_connect_timeout)
            silent.recv(1)
        except (OSError, *TEMPORARY) as error:
            return str(error) if _CERTIFICATE.search(str(error)) else ""
        finally:
            if silent is not None:
                silent.close()
        return ""


def _greet(connection: _TlsConnection) -> None:
    """Open a session, and wait for a reply of the server.

    In TLS 1.3 the server judges the certificate of the client after the handshake. So a client that is refused meets
    an alert, or only the end of the connection, at its first command.
    """
    version = cast("ssl.SSLSocket", socket_of(connection)).version()
    try:
        connection.on_connect()  # type: ignore[no-untyped-call]
        connection.send_command("PING")  # type: ignore[no-untyped-call]
        # any reply will do: the next command meets the same refusal, and its error names that command
        with suppress(ResponseError, AuthenticationError, BusyLoadingError):
            connection.read_response()
    except (AuthenticationError, BusyLoadingError):
        raise  # these are ConnectionErrors too, but the server has answered
    except ConnectionError as error:
        if version == "TLSv1.3" and not _CERTIFICATE.search(str(error)) and (alert := connection.alert()):
            raise ConnectionError(alert) from None
        raise


class _TlsPrimaryConnection(PrimaryConnection, _TlsConnection):
    """A connection over TLS to the primary of a service."""


def service_of(options: Options) -> ThreadService | None:
    """Make the service of Sentinel that the address names, for the connections of one reader or broker."""
    if not options.address.service:
        return None
    password = options.password_of_sentinels()
    settings = {**_tls_settings(options), "password": None if password is None else password.reveal()}
    return service_at(options.address, settings, ThreadService)


def connect(
    options: Options,
    *,
    service: ThreadService | None = None,
    place: tuple[str, int] | None = None,
    timeout: float | None = None,
) -> Connection:
    """Make a connection, which opens at its first command: RESP2, without retries, without CLIENT SETINFO.

    It is to the server of `url`, to the primary of a `service`, or to the node at a `place`. The password is read here,
    so the process that uses the connection must call this. Raises `InvalidOption`.
    """
    address, password = options.address, options.password()
    kind: type[Any] = _TlsConnection if address.has_tls else Connection
    settings: dict[str, Any] = {"socket_keepalive": True, **_tls_settings(options)}
    if address.has_tls:
        settings["redis_connect_func"] = _greet
    if address.path:
        kind, settings = UnixDomainSocketConnection, {"path": address.path}
    elif service is not None:
        kind = _TlsPrimaryConnection if address.has_tls else PrimaryConnection
        settings["service"] = service
    else:
        settings["host"], settings["port"] = place or address.places[0]
    timeout = options.number("socketTimeout") / 1000 if timeout is None else timeout
    connection: Connection = kind(
        db=address.database,
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


def _tls_settings(options: Options) -> dict[str, Any]:
    for name in _FILES:
        if (file := options.optional_text(name)) is not None and not Path(file).is_file():
            raise InvalidOption(f"{name}: {file!r} is not a file on this machine; driver and executors both need it")
    if not options.address.has_tls:
        return {}
    verify = options.flag("tlsVerify")
    return {
        "ssl_ca_certs": options.optional_text("tlsCaFile"),
        "ssl_certfile": options.optional_text("tlsCertFile"),
        "ssl_keyfile": options.optional_text("tlsKeyFile"),
        "ssl_check_hostname": verify,
        "ssl_cert_reqs": "required" if verify else "none",
    }


def socket_of(connection: Connection) -> socket.socket:
    """Return the socket of an open connection, to read replies that redis-py shall not parse."""
    # redis-py has no public name for it
    link: Any = connection._sock  # noqa: SLF001
    if link is None:
        raise ConnectionError("the connection is closed")
    return cast("socket.socket", link)


def with_retries(
    options: Options, call: Callable[[], T], failed: Callable[[], None] = lambda: None, command: Command = ()
) -> T:
    """Make a call, and repeat it while Redis does not answer or refuses for now, up to `connectRetries` times.

    `failed` runs after each failure. Other refusals of Redis, and certificates that do not verify, raise the result of
    `as_source_error` at once; `command` is for its text.
    """
    retries = options.number("connectRetries")
    for i in range(retries + 1):
        try:
            return call()
        except (*TEMPORARY, OSError) as error:
            failed()
            is_temporary = not _is_about_certificate(error, options) and (isinstance(error, OSError) or is_away(error))
            if i == retries or not is_temporary:
                raise as_source_error(error, options, command) from None
        time.sleep(min(_LONGEST_PAUSE, _FIRST_PAUSE * 2**i) * random.uniform(0.5, 1))
    raise AssertionError("the last attempt returns or raises")


def _is_about_certificate(error: Exception, options: Options) -> bool:
    broken = isinstance(error, (ConnectionError, OSError))
    return broken and options.address.has_tls and _CERTIFICATE.search(str(error)) is not None


def as_source_error(error: Exception, options: Options, command: Command = ()) -> SourceError:
    """Convert an error of redis-py. The new text names the option to look at, and shows no secret.

    `command` is the command that Redis refused, or a description of a call in words.
    """
    password = options.password()
    text = mask(str(error), None if password is None else password.reveal())
    call = " ".join(str(word)[:80] for word in command[:2]) or "a command"
    if isinstance(error, AuthenticationError) or "NOAUTH" in text or "WRONGPASS" in text:
        user = options.optional_text("username") or "default"
        return NotAuthenticated(
            f"username, passwordEnv, passwordFile: {options.address} refuses user {user!r} with this password: {text}"
        )
    if isinstance(error, NoPermissionError) or "NOPERM" in text:
        return _no_permission(options, call, text)
    if isinstance(error, (AskError, ClusterCrossSlotError)) and not options.address.is_cluster:
        return wrong_topology(options)
    if is_read_only(error):
        return RefusedForNow(
            f"url: {options.address} is a replica, also after {options['connectRetries']} retries, and takes no "
            f"writes: give the address of its primary ({text})"
        )
    if refuses_for_now(error):
        return RefusedForNow(
            f"connectRetries: {options.address} refuses {call} for now, also after {options['connectRetries']} "
            f"retries: {text}"
        )
    if _is_about_certificate(error, options):
        return _certificate_error(options, text)
    if isinstance(error, (ConnectionError, TimeoutError, InvalidResponse, OSError)):
        return Unreachable(f"url: {options.address} cannot be reached: {text}{_plain_hint(error, options)}")
    return RefusedByRedis(f"url: {options.address} refused {call}: {text}")


def _certificate_error(options: Options, text: str) -> SourceError:
    if "_ALERT_" in text:
        file = options.optional_text("tlsCertFile")
        client = "without a certificate" if file is None else f"with the certificate {file!r}"
        return UntrustedCertificate(f"tlsCertFile, tlsKeyFile: {options.address} refuses a client {client}: {text}")
    if "VERIFY_FAILED" in text:
        return UntrustedCertificate(f"tlsCaFile: {options.address} has a certificate that does not verify: {text}")
    return InvalidOption(f"tlsCaFile, tlsCertFile, tlsKeyFile: one of these files cannot be used: {text}")


def wrong_topology(options: Options) -> InvalidOption:
    """Make the error for a node of a cluster that a job knows as one server."""
    return InvalidOption(f"url: {options.address} is a node of a Redis Cluster: use redis+cluster:// for it")


def _no_permission(options: Options, call: str, text: str) -> NoPermission:
    user, keys = options.optional_text("username") or "default", f"{options.text('namespace')}:*"
    needed = f"Reading needs the keys {keys} and the commands {' '.join(READ_COMMANDS)}"
    if options.use == "write":
        needed = f"Writing needs the keys {keys}; `rqttl doctor`, run as this user, names the missing rights"
    return NoPermission(f"username: user {user!r} may not run {call}: {text}. {needed}")


def _plain_hint(error: Exception, options: Options) -> str:
    """Return a hint for a server that answers a plain client with bytes of TLS, or with the end of the connection."""
    broken = isinstance(error, InvalidResponse) or re.search("closed|reset", str(error), re.IGNORECASE)
    hint = "; if this port speaks TLS, the url has to begin with rediss://"
    return hint if broken and not options.address.has_tls and not options.address.path else ""
