"""Repeated calls while Redis is away. Each pause is longer than the one before."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from rqttl.runtime.interrupt import Interrupt, Timing
from rqttl.store.refusals import TEMPORARY, is_away, refuses_for_now

T = TypeVar("T")

#: The first pause, which each attempt doubles, and the longest pause, in ms.
FIRST, LONGEST = 500, 5_000
#: The text of the warning before each pause.
AGAIN = "queue %s: %s, trying again"


class Patience:
    """Decides after each failed attempt of a call that is repeated while Redis is away, for `wait` ms at most.

    No clock and no sleep: sync and asyncio consumers share it.
    """

    def __init__(self, queue: str, wait: int, started: int, logger: logging.Logger) -> None:
        self._queue = queue
        self._ends = started + wait
        self._pause = FIRST
        self._logger = logger

    def pause_after(self, error: Exception, now: int) -> int:
        """Return the ms to wait before the next attempt. Raises the error if there is none."""
        if not is_away(error) or now >= self._ends:
            raise error
        refused = refuses_for_now(error)
        reason = f"Redis refuses for now ({error})" if refused else f"Redis is away ({type(error).__name__})"
        self._logger.warning(AGAIN, self._queue, reason)
        pause, self._pause = self._pause, min(2 * self._pause, LONGEST)
        return pause


def patiently(
    call: Callable[[], T], queue: str, wait: int, stop: Interrupt, timing: Timing, logger: logging.Logger
) -> T | None:
    """Repeat a call while Redis is away, for `wait` ms at most. Returns its result; `None` after `stop`."""
    patience = Patience(queue, wait, timing.now(), logger)
    while True:
        try:
            return call()
        except TEMPORARY as error:
            pause = patience.pause_after(error, timing.now())
        timing.pause(stop, partial(float, pause))
        if stop.asked():
            return None
