"""Repeated calls while Redis is away. Each pause is longer than the one before."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from rqttl.runtime.interrupt import Interrupt
from rqttl.runtime.timing import Timing
from rqttl.store.refusals import TEMPORARY, is_away, refuses_for_now

T = TypeVar("T")

#: The first pause, which each attempt doubles, and the longest pause, in ms.
FIRST, LONGEST = 500, 5_000
#: The text of the warning before each pause.
AGAIN = "queue %s: %s, trying again"


def patiently(
    call: Callable[[], T], queue: str, wait: int, stop: Interrupt, timing: Timing, logger: logging.Logger
) -> T | None:
    """Repeat a call while Redis is away, for `wait` ms at most. Returns its result; `None` after `stop`."""
    started, pause = timing.now(), FIRST
    while True:
        try:
            return call()
        except TEMPORARY as error:
            if not is_away(error) or timing.now() - started >= wait:
                raise
            logger.warning(AGAIN, queue, _reason(error))
        if _pause(timing, stop, pause):
            return None
        pause = min(2 * pause, LONGEST)


def _pause(timing: Timing, stop: Interrupt, ms: int) -> bool:
    """Let time pass. Returns True once `stop` is asked."""
    timing.pause(stop, lambda: ms)
    return stop.asked()


def _reason(error: Exception) -> str:
    if refuses_for_now(error):
        return f"Redis refuses for now ({error})"
    return f"Redis is away ({type(error).__name__})"
