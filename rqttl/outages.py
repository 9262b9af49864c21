"""Outages: the errors that end by themselves, since Redis is unreachable or refuses for now."""

from __future__ import annotations

import re

from redis.exceptions import (
    AskError,
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
_CLASSES = (AskError, BusyLoadingError, ClusterDownError, MasterDownError, ReadOnlyError, TryAgainError)
#: Codes of all others. Redis 6.2 wraps the error of a script, so a code may stand anywhere in the text.
_CODES = re.compile(r"(?:^|[\s-])(?:BUSY|CLUSTERDOWN|LOADING|MASTERDOWN|MISCONF|NOREPLICAS|READONLY|TRYAGAIN)\s")


def refuses_for_now(error: BaseException | None) -> bool:
    """Return True if Redis has certainly not carried out a call, and may carry it out later.

    The server is a replica or has too few of them, its disk fails, a script runs for too long, it loads its data, or a
    program keeps flushing the scripts. Full memory is no such cause: it does not end by itself.
    """
    if isinstance(error, (*_CLASSES, ScriptsForgotten)):
        return True
    return isinstance(error, RedisError) and _CODES.search(str(error)) is not None


def is_away(error: BaseException | None) -> bool:
    """Return True if the caller can only wait: there is no connection, or Redis refuses for now."""
    if isinstance(error, AuthenticationError | AuthorizationError):
        return False  # these are ConnectionErrors too, but waiting corrects no password
    return isinstance(error, ConnectionError | TimeoutError) or refuses_for_now(error)


def is_read_only(error: BaseException | None) -> bool:
    """Return True if the server is a replica. Another server can carry out the call."""
    return isinstance(error, ReadOnlyError) or (isinstance(error, RedisError) and "READONLY" in str(error))


def outage(name: str, error: Exception) -> str:
    """The line of a log about a node that is away, for loops that wait for it."""
    trouble = "refuses for now" if refuses_for_now(error) else "does not answer"
    return f"{name} {trouble}: {error}".rstrip(".") + "; trying again until it does"
