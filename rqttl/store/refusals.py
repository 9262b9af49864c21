"""Errors that end by themselves: Redis is unreachable, or it refuses for now. This is the only list of them."""

from __future__ import annotations

import re

from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,
    ClusterDownError,
    ConnectionError,
    MasterDownError,
    ReadOnlyError,
    RedisError,
    TimeoutError,
    TryAgainError,
)

from rqttl.errors import ScriptsForgotten

#: The classes of all errors that may end by themselves; `is_away` chooses among their instances.
TEMPORARY = (RedisError, ScriptsForgotten)

#: Refusals with a class in redis-py. Their texts lack the code.
_CLASSES = (BusyLoadingError, ClusterDownError, MasterDownError, ReadOnlyError, TryAgainError)
#: Codes of all others. Redis 6.2 wraps the error of a script, so a code may stand anywhere in the text.
_CODES = re.compile(r"(?:^|[\s-])(?:BUSY|CLUSTERDOWN|LOADING|MASTERDOWN|MISCONF|NOREPLICAS|READONLY|TRYAGAIN)\s")

#: Texts of a TLS handshake that fails again. A time-out is among them: Redis without TLS answers no handshake.
_HANDSHAKE = re.compile("CERTIFICATE_VERIFY_FAILED|WRONG_VERSION_NUMBER|record layer failure|handshake .*timed out")


def is_tls_failure(error: BaseException) -> bool:
    """Return True if the server speaks no TLS, or its certificate is not trusted. The cause may be the context."""
    return _HANDSHAKE.search(f"{error} {error.__context__}") is not None


def refuses_for_now(error: BaseException | None) -> bool:
    """Return True if Redis has certainly not carried out a call, and may carry it out later.

    The causes: the server is a replica or has too few replicas, its disk fails, a script runs for too long, it loads
    its data, or a program flushes the scripts again and again. Full memory is no such cause, because it does not end by
    itself.
    """
    if isinstance(error, (*_CLASSES, ScriptsForgotten)):
        return True
    return isinstance(error, RedisError) and _CODES.search(str(error)) is not None


def is_read_only(error: BaseException | None) -> bool:
    """Return True if the server is a replica. Another server can carry out the call."""
    return isinstance(error, ReadOnlyError) or (isinstance(error, RedisError) and "READONLY" in str(error))


def is_away(error: BaseException | None) -> bool:
    """Return True if the caller can only wait: there is no connection, or Redis refuses for now."""
    if isinstance(error, AuthenticationError | AuthorizationError):
        return False  # these are ConnectionErrors too, but waiting corrects no password
    return isinstance(error, ConnectionError | TimeoutError) or refuses_for_now(error)
