"""Repeated calls while Redis is away. Each pause is longer than the one before."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from rqttl.runtime.interrupt import Interrupt
from rqttl.store.refusals import TEMPORARY, is_away, refuses_for_now

T = TypeVar("T")

#: The first pause, which each attempt doubles, and the longest pause, in seconds.
FIRST, LONGEST = 0.5, 5.0
#: The text of the warning before each pause.
AGAIN = "queue %s: %s, trying again"


def patiently(call: Callable[[], T], queue: str, wait: int, stop: Interrupt, logger: logging.Logger) -> T | None:
    """Repeat a call while Redis is away, for `wait` ms at most. Returns its result; `None` after `stop`."""
    started, pause = time.monotonic(), FIRST
    while True:
        try:
            return call()
        except TEMPORARY as error:
            if not is_away(error) or (time.monotonic() - started) * 1000 >= wait:
                raise
            logger.warning(AGAIN, queue, _reason(error))
        if stop.wait(pause):
            return None
        pause = min(2 * pause, LONGEST)


def _reason(error: Exception) -> str:
    if refuses_for_now(error):
        return f"Redis refuses for now ({error})"
    return f"Redis is away ({type(error).__name__})"
