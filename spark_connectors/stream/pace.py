"""The pace of a query: pauses while nothing is new, and the wait for enough messages.

Spark asks a query without a trigger for its latest offset 100 times a second. Each answer costs a command for each
queue, so an idle query would keep Redis busy for nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable

Clock = Callable[[], float]

#: The first pause, in seconds. Pauses double up to the longest one.
_FIRST_PAUSE = 0.01
#: Bounds of the longest pause, in seconds. Between them, a longer pause keeps an idle query at this command rate.
_SHORTEST_LIMIT, _LONGEST_LIMIT = 0.05, 1.0
_COMMANDS_PER_SECOND = 2_000


class Pauses:
    """Pauses before the next question to Redis. They rise while nothing is new, and end with the first new message.

    The time between two questions counts as a pause. So a query whose trigger is slower does not wait.
    """

    def __init__(self, clock: Clock = time.monotonic, sleep: Callable[[float], object] = time.sleep) -> None:
        self._clock = clock
        self._sleep = sleep
        self._pause = 0.0
        self._asked = 0.0

    def wait(self) -> None:
        """Wait for the rest of the pause since the last question."""
        remaining = self._asked + self._pause - self._clock()
        if remaining > 0:
            self._sleep(remaining)

    def note(self, *, idle: bool, queues: int) -> None:
        """Note the answer to a question about this number of queues."""
        longest = min(_LONGEST_LIMIT, max(_SHORTEST_LIMIT, queues / _COMMANDS_PER_SECOND))
        self._pause = min(longest, max(_FIRST_PAUSE, 2 * self._pause)) if idle else 0
        self._asked = self._clock()


class BatchDelay:
    """The wait of a micro-batch for `least` messages.

    It ends `longest_ms` after the last micro-batch, or after the first question of the query.
    """

    def __init__(self, least: int, longest_ms: int, clock: Clock = time.monotonic) -> None:
        self._least = least
        self._longest = longest_ms / 1000
        self._clock = clock
        self._since: float | None = None

    def is_due(self, messages: int) -> bool:
        """True if a batch of this number of messages begins now."""
        now = self._clock()
        if self._since is None:
            self._since = now
        if not messages or (messages < self._least and now - self._since < self._longest):
            return False
        self._since = now
        return True
