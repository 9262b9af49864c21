"""The end of commands that still work when the worker ends: SIGTERM, time to clean up, SIGKILL."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from rqttl.worker.crew import Crew
from rqttl.worker.nursery import TURN, Nursery
from rqttl.worker.supervision import COMMAND_GRACE

logger = logging.getLogger("rqttl.worker")


def end_commands(crew: Crew, nursery: Nursery, at_once: Callable[[], bool]) -> None:
    """Let all commands end, and wait for that until their time is over or `at_once` returns True.

    The exit codes of commands that end in time settle their messages.
    """
    ends_at = time.monotonic() + COMMAND_GRACE
    while not crew.is_idle and not at_once() and (now := time.monotonic()) < ends_at:
        with crew.lock:
            handed = [(place, key) for place in crew.places for key in place.tasks]
        for place, key in handed:  # again in each turn: a command may have begun since the last one
            place.cancel(key)
        nursery.turn(now, min(TURN, ends_at - now))
    if at_once():
        logger.warning("the worker ends all commands at once")
