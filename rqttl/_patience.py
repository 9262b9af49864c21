"""Going on while Redis is away: the same call again, with longer and longer pauses."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    ConnectionError,
    ReadOnlyError,
    RedisError,
    TimeoutError,
)

from rqttl._interrupt import Interrupt

T = TypeVar("T")

#: Seconds: the first pause, which is doubled after each attempt, and the longest one.
FIRST, LONGEST = 0.5, 5.0


def patiently(call: Callable[[], T], queue: str, wait: int, stop: Interrupt, logger: logging.Logger) -> T | None:
    """Call until it succeeds, while Redis is away and for `wait` ms at most. Returns `None` once `stop` is asked."""
    started, pause = time.monotonic(), FIRST
    while True:
        try:
            return call()
        except RedisError as error:
            if not is_away(error) or (time.monotonic() - started) * 1000 >= wait:
                raise
            logger.warning("queue %s: Redis is away (%s), trying again", queue, type(error).__name__)
        if stop.wait(pause):
            return None
        pause = min(2 * pause, LONGEST)


def is_away(error: RedisError) -> bool:
    """Return True for an error that ends by itself: no connection, or a server that may only be read."""
    if isinstance(error, AuthenticationError | AuthorizationError):
        return False  # these are ConnectionErrors too, but no time makes a password right
    # Redis 6.2 wraps what a script meets
    return isinstance(error, ConnectionError | TimeoutError | ReadOnlyError) or "READONLY" in str(error)
