"""Notes on outages while `rqttl receive` waits. The command goes on."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rqttl.cli.common import output

#: Seconds after a note without another one.
QUIET = 60.0


class Outages(logging.Handler):
    """A log handler for new attempts while Redis is away: a note, once a minute. It drops all other records."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._noted = -QUIET

    def emit(self, record: logging.LogRecord) -> None:
        """Print a note for a new attempt, if the last note is old."""
        from rqttl.consuming.patience import AGAIN  # slow to load: it needs redis-py

        if record.msg == AGAIN and time.monotonic() - self._noted >= QUIET:
            self._noted = time.monotonic()
            output.note(record.getMessage())


@contextmanager
def noting_outages() -> Iterator[None]:
    """Print notes on outages within this block."""
    logger, outages = logging.getLogger("rqttl"), Outages()
    logger.addHandler(outages)
    try:
        yield
    finally:
        logger.removeHandler(outages)
