"""The servers that are away, for a query with `onServerLost=skip`."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from spark_connectors.logs import log_text
from spark_connectors.read.servers import SERVER_LOST, naming

#: Seconds before a server that is away is asked again. They double up to the longest pause.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 10.0


class ServerIsAway(Exception):
    """A server went away, and the query goes on without it."""


@dataclass(slots=True)
class _Absence:
    pause: float
    ask_at: float


class Absences:
    """Keeps the servers that are away. A server that is away is asked again after a pause, by one attempt."""

    def __init__(self, *, skips: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._skips = skips
        self._clock = clock
        self._away: dict[str, _Absence] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the servers that are away."""
        return tuple(sorted(self._away))

    @contextmanager
    def guard(self, server: str) -> Iterator[None]:
        """Raise `ServerIsAway` for a lost server, if the query skips it. Put its name into all other errors."""
        try:
            with naming(server):
                yield
        except SERVER_LOST as error:
            if not self._skips:
                raise
            self._note(server, str(error))
            raise ServerIsAway(str(error)) from None

    def is_present(self, server: str, probe: Callable[[], object]) -> bool:
        """True if a server is there. A server that was away is asked with `probe`, at the end of its pause."""
        absence = self._away.get(server)
        if absence is None:
            return True
        if self._clock() < absence.ask_at:
            return False
        try:
            with naming(server):
                probe()
        except SERVER_LOST as error:
            self._note(server, str(error))
            return False
        del self._away[server]
        log_text(logging.WARNING, f"server {server!r} is back; the query reads it from its position on")
        return True

    def _note(self, server: str, text: str) -> None:
        before = self._away.get(server)
        if before is None:
            log_text(
                logging.WARNING,
                f"{text.rstrip('.')}. The query goes on without the server, whose position stays (onServerLost=skip)",
            )
        pause = _FIRST_PAUSE if before is None else min(_LONGEST_PAUSE, 2 * before.pause)
        self._away[server] = _Absence(pause, self._clock() + pause)
