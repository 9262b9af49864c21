"""Outages while `rqttl receive` waits: a line on stderr for people, since the command itself goes on."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rqttl.cli.common import output

#: Seconds in which no second line is told.
QUIET = 60.0


class Outages(logging.Handler):
    """Tells that Redis is away and the command tries again, once a minute. All else is told elsewhere."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._told = -QUIET

    def emit(self, record: logging.LogRecord) -> None:
        """Tell of a record if it is about another attempt, and the last line is old."""
        from rqttl._patience import AGAIN  # imports redis-py, for which the help does not wait

        if record.msg == AGAIN and time.monotonic() - self._told >= QUIET:
            self._told = time.monotonic()
            output.note(record.getMessage())


@contextmanager
def heard() -> Iterator[None]:
    """Tell of outages within this block."""
    logger, outages = logging.getLogger("rqttl"), Outages()
    logger.addHandler(outages)
    try:
        yield
    finally:
        logger.removeHandler(outages)
