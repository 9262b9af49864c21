"""The reports of handlers about their messages. Successes are collected, so that one report has many of them."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rqttl.worker.board import Board
    from rqttl.worker.outcomes import Outcome

#: Seconds after a report within which a success waits for others, and the number of successes that wait at most.
HELD, MANY = 0.005, 64


class Reports(ABC):
    """The reports of handlers. Any thread may call these.

    A success goes to the board at once, and into a report when a handler has no further message, when `MANY` wait, or
    at the first success that comes `HELD` seconds or more after the last report. So a look at the board that comes
    later than that finds all successes, though a slow handler follows.
    """

    def __init__(self, board: Board) -> None:
        self._board = board
        self._lock = threading.Lock()
        self._succeeded: deque[int] = deque()
        self._reported_at = 0.0
        #: True in a process that a handler has forked. See `leave`.
        self.is_copy = False

    def leave(self) -> None:
        """Report nothing: this process is a copy of the one that handles messages."""
        self.is_copy = True

    def begun(self, key: int, now: float) -> None:
        """A handler begins a message."""
        self._board[2 * key] = now

    def succeeded(self, key: int, now: float) -> None:
        """A handler has ended, and its message is done."""
        self._board[2 * key + 1] = now
        self._succeeded.append(key)
        if now - self._reported_at >= HELD or len(self._succeeded) >= MANY:
            self.flush()

    def flush(self) -> None:
        """A handler waits for its next message."""
        if self._succeeded:
            self._report()

    def _take(self) -> list[int]:
        """Remove and return the keys of the successes that wait."""
        self._reported_at = time.monotonic()
        return [self._succeeded.popleft() for _ in range(len(self._succeeded))]

    @abstractmethod
    def _report(self) -> None:
        """Report the successes that wait."""

    @abstractmethod
    def ended(self, key: int, outcome: Outcome | None) -> None:
        """A handler has ended with another outcome than success; `None` if it has settled the message itself."""

    @abstractmethod
    def settled(self, key: int, outcome: Outcome) -> None:
        """A handler has settled its message, and goes on."""

    @abstractmethod
    def renewed(self, key: int, lease: int) -> None:
        """A handler renews its lease for another length."""
