"""What Redis refuses, and why it cannot be reached, as one line that says what to do. No text of a script is in it.

Redis 6.2 wraps an error that a script meets into another one, so errors are told by their text, not by their class.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from rqttl import _replies
from rqttl.cli.common import text

if TYPE_CHECKING:
    from rqttl._redis import Store

REFUSED, UNREACHABLE = 3, 4

_CHECK = "check --url or $RQTTL_URL"
#: How Redis 6.2, and Redis since 7.0, say in which line of which script something was refused.
_OF_SCRIPT = re.compile(
    r"Error running script \(call to \w+\): |@user_script: ?\d+: |,? ?script: [0-9a-f]{40}, on @user_script:\d+\.?"
)
#: What redis-py writes around the words of the system.
_OF_SOCKET = re.compile(r"^Error (-?\d+|while reading from .*?:) |\(\d+, '|'\)$")
_RIGHT = re.compile(r"no permissions to run the '([^']+)' command", re.IGNORECASE)

#: What is found in an error, the exit code, and what to say.
_KNOWN: tuple[tuple[str, int, str], ...] = (
    ("read only replica", REFUSED, "this Redis is a read-only replica: name its primary in --url or $RQTTL_URL"),
    ("MISCONF|unable to persist|errors writing to the AOF", REFUSED,
     "Redis cannot save its data, so it takes no writes: look at its log and its disk"),
    ("NOREPLICAS|Not enough good replicas", REFUSED,
     "Redis has fewer replicas than min-replicas-to-write asks for, so it takes no writes"),
    ("loading the dataset", UNREACHABLE, "Redis is loading its data: try again in a moment"),
    ("max number of clients", UNREACHABLE,
     "Redis takes no more connections (maxclients): close some, or raise it"),
    ("DB index is out of range|invalid DB index", UNREACHABLE,
     f"Redis has no database of this number: {_CHECK}"),
    ("HELLO must be called|Authentication required|NOAUTH", UNREACHABLE,
     "Redis wants a password: give it in --url or $RQTTL_URL, before the host, as :PASSWORD@"),
    ("WRONGPASS|invalid username-password|invalid password|called without any password configured", UNREACHABLE,
     f"Redis does not take this user and password: {_CHECK}"),
    ("Protocol error, got", UNREACHABLE, f"the server speaks another protocol than Redis: {_CHECK}"),
    ("WRONG_VERSION_NUMBER|record layer failure", UNREACHABLE,
     f"the server does not speak TLS: use redis:// instead of rediss://, or {_CHECK}"),
    ("CERTIFICATE_VERIFY_FAILED", UNREACHABLE,
     "the certificate of Redis is not trusted: name its authority's in the URL, with ?ssl_ca_certs=FILE"),
)  # fmt: skip


def explain(error: Exception, store: Store | None = None) -> tuple[int, str] | None:
    """Exit code and line of an error of redis-py; None for any other. `store` may be asked for what the line names."""
    from redis import exceptions  # only now: it takes long, and most errors are about what was typed

    if not isinstance(error, exceptions.RedisError):
        return None
    said = str(error)
    if _found("OOM command|used memory > 'maxmemory'|out of memory", said):
        return REFUSED, f"Redis is out of memory{_maxmemory(store)}: consume, purge, or raise it"
    if missing := _missing_right(said):
        return REFUSED, f"Redis refuses {_user(store)}: {missing}; `rqttl doctor` says which rights this user needs"
    hung_up = _found("while writing|closed by server|reset by peer", said)
    if hung_up:
        said = _greeting(store) or said
    for pattern, code, line in _KNOWN:
        if _found(pattern, said):
            return code, line
    if isinstance(error, (exceptions.ConnectionError, exceptions.TimeoutError)):
        told = _OF_SOCKET.sub("", said).rstrip(".").replace(". ", ": ") or type(error).__name__
        tls = " (a port with TLS wants rediss://)" if hung_up and _is_plain_tcp(store) else ""
        return UNREACHABLE, f"Redis does not answer: {told}{tls}; {_CHECK}"
    return REFUSED, f"Redis refused: {without_script(said)}"


def without_script(said: str) -> str:
    """The text of an error without the script and the line in which Redis met it."""
    return _OF_SCRIPT.sub("", said).strip().removeprefix("-")


def _found(pattern: str, said: str) -> bool:
    return re.search(pattern, said, re.IGNORECASE) is not None


def _missing_right(said: str) -> str:
    """The missing right of a user, in words; empty if the error is about something else."""
    if right := _RIGHT.search(said):
        return f"the right for {right[1].upper()} is missing"
    if _found("can't run this command", said):
        return "the right for a command that scripts use is missing"
    if _found("access (at least )?one of the keys", said):
        return "the right for keys of this namespace is missing"
    if _found("can't publish|access one of the channels|permissions to .*channel", said):
        return "the right for the channel that wakes reapers is missing"
    return "a right is missing" if _found("NOPERM|no permissions", said) else ""


def _maxmemory(store: Store | None) -> str:
    """The memory limit of Redis, in brackets; empty if Redis does not tell."""
    from redis import exceptions

    if store is None:
        return ""
    try:
        limit = store.call(_replies.facts, "INFO", "memory").get("maxmemory")
    except exceptions.RedisError:
        return ""  # the line does without it
    return f" (maxmemory {_as_configured(limit)})" if isinstance(limit, int) and limit else ""


def _as_configured(size: int) -> str:
    """A size in the units of redis.conf, where 1 MB is 1,048,576 bytes, if it is a whole number of one."""
    for unit, factor in (("GB", 2**30), ("MB", 2**20), ("KB", 2**10)):
        if size % factor == 0:
            return f"{size // factor} {unit}"
    return text.size(size)


def _user(store: Store | None) -> str:
    name = store.connections.pool.connection_kwargs.get("username") if store is not None else None
    return f"user {name!r}" if name else "this user"


def _is_plain_tcp(store: Store | None) -> bool:
    from redis.connection import SSLConnection, UnixDomainSocketConnection

    kind = store.connections.pool.connection_class if store is not None else UnixDomainSocketConnection
    return not issubclass(kind, (SSLConnection, UnixDomainSocketConnection))


def _greeting(store: Store | None) -> str:
    """What the server says before it is asked. Redis says nothing, or why it closes the connection."""
    if store is None:
        return ""
    pool = store.connections.pool
    try:
        with pool.connection_class(**pool.connection_kwargs)._connect() as sock:  # noqa: SLF001  # without a word of ours
            sock.settimeout(0.5)
            said: bytes = sock.recv(200)
    except OSError:
        return ""
    return said.decode(errors="replace")
