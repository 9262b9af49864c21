"""Outages: the errors that end by themselves, since Redis is unreachable or refuses for now, and the nodes away."""

from __future__ import annotations

import logging
import random
import re
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from redis.exceptions import (
    AskError,
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,
    ClusterDownError,
    ConnectionError,
    MasterDownError,
    NoPermissionError,
    ReadOnlyError,
    RedisError,
    TimeoutError,
    TryAgainError,
)

from rqttl.errors import ScriptsForgotten

#: The classes of all errors that may end by themselves; `is_away` chooses among their instances.
TEMPORARY = (RedisError, ScriptsForgotten)

#: The longest rest of a node in ms. No longer, since leases may end meanwhile.
LONGEST_REST = 2_000
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


def is_denied(error: BaseException) -> bool:
    """Return True if the user lacks a right, so another one may carry out the call."""
    return isinstance(error, NoPermissionError)


def is_read_only(error: BaseException | None) -> bool:
    """Return True if the server is a replica. Another server can carry out the call."""
    return isinstance(error, ReadOnlyError) or (isinstance(error, RedisError) and "READONLY" in str(error))


def doubled(pause: int) -> int:
    """Return the longest pause in ms after a pause that was in vain: it doubles, from 0.1 s to 5 s."""
    return min(max(100, 2 * pause), 5_000)


@dataclass(slots=True)
class Outage:
    """Of a node that is away: the last error, the times of the first one and of the next try (0: one has begun)."""

    error: Exception
    since: float
    next_try: float = 0.0
    pause: int = 0


class Outages(dict[Hashable, Outage]):
    """The nodes that are away, for all loops of a program. After a failed try a node rests. Any thread may call it.

    `topology` has the nodes and their names, and `clock` tells the ms. Begin and end of an outage are logged.
    """

    def __init__(self, topology: Any, clock: Callable[[], float], logger: logging.Logger, patience: float = 0) -> None:
        super().__init__()
        self._topology, self.clock, self._logger = topology, clock, logger
        #: The ms for which a call waits that no other node can serve.
        self.patience = patience * 1000
        self._name_of: Callable[[Any], str] = topology.name_of

    def failed(self, node: Hashable, error: Exception) -> bool:
        """Let a node rest, unless it does already. Returns True if it was not away."""
        now = self.clock()
        outage = self.setdefault(node, new := Outage(error, now))
        if now >= outage.next_try:
            outage.error, outage.pause = error, min(doubled(outage.pause), LONGEST_REST)
            # no secret: programs must not come back together
            outage.next_try = now + random.uniform(outage.pause / 2, outage.pause)
        if outage is new:
            trouble, name = "refuses for now" if refuses_for_now(error) else "does not answer", self._name_of(node)
            text = f"{name} {trouble}: {error}".rstrip(".") + "; trying again until it does"
            fields = {"node": name, "error": type(error).__name__, "message": str(error)}
            self._logger.warning("%s", text, extra={"event": "redis_unavailable", "fields": fields})
        return outage is new

    def answered(self, node: Hashable) -> bool:
        """End the outage of a node. Returns True if it was away."""
        was_away = self.pop(node, None) is not None
        if was_away:
            extra = {"event": "redis_recovered", "fields": {"node": self._name_of(node)}}
            self._logger.info("%s answers again", self._name_of(node), extra=extra)
        return was_away

    def rests(self, node: Hashable) -> float:
        """Return the ms until the next try of a node that is away; 0 if it may be asked now."""
        outage = self.get(node)
        return 0.0 if outage is None else max(0.0, outage.next_try - self.clock())

    def away(self) -> list[str]:
        """Return the names of the nodes that are away, without those that a cluster has no longer."""
        return sorted(map(self._name_of, self.keys() & self._topology.nodes))
