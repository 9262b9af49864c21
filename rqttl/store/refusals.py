"""Errors that end by themselves: Redis cannot be reached, or it refuses for now. The one place that knows them."""

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

#: redis-py has a class for some refusals, and takes their code out of the text then.
_CLASSES = (BusyLoadingError, ClusterDownError, MasterDownError, ReadOnlyError, TryAgainError)
#: Redis 6.2 wraps what a script meets into another error, so a code may stand anywhere in the text.
_CODES = re.compile(r"(?:^|[\s-])(?:BUSY|CLUSTERDOWN|LOADING|MASTERDOWN|MISCONF|NOREPLICAS|READONLY|TRYAGAIN)\s")


def refuses_for_now(error: BaseException | None) -> bool:
    """Return True if Redis has refused a call that it may carry out later, and certainly has not carried out.

    A replica, too few replicas, a disk that fails, a script that runs for too long, data that is being loaded, scripts
    that somebody flushes again and again.
    Memory that is full is not among these: its owner has to do something.
    """
    if isinstance(error, (*_CLASSES, ScriptsForgotten)):
        return True
    return isinstance(error, RedisError) and _CODES.search(str(error)) is not None


def is_read_only(error: BaseException | None) -> bool:
    """Return True if the server is a replica, so that another server has to be asked."""
    return isinstance(error, ReadOnlyError) or (isinstance(error, RedisError) and "READONLY" in str(error))


def is_away(error: BaseException | None) -> bool:
    """Return True if there is nothing to do but wait: no connection, or a Redis that refuses for now."""
    if isinstance(error, AuthenticationError | AuthorizationError):
        return False  # these are ConnectionErrors too, but no time makes a password right
    return isinstance(error, ConnectionError | TimeoutError) or refuses_for_now(error)
