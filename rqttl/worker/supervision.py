"""The decisions about children: when to start one, and when to end a handler that takes too long. No I/O, no clock."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

#: Seconds before a new start after the second, third, ... child in a row that ended early. The first start is at once.
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
#: The number of children in a row that cannot load their handler, after which the worker ends.
UNLOADED = 3
#: Seconds of life after which the end of a child is not an early one.
SETTLED_IN = 10.0
#: Seconds between SIGTERM and SIGKILL for a handler that takes too long, and for a command that has to end.
TERM_GRACE = 5.0
#: Seconds within which a child ends a command. After that the worker ends the child.
COMMAND_GRACE = TERM_GRACE + 1
#: Seconds that a cancelled coroutine has to end before its child gets SIGTERM.
CANCEL_GRACE = 0.5


class Restarts:
    """The starts of one place for a child. A child that ends early again and again is started ever more slowly.

    A child `failed` if it ended by itself before a handler had ended.
    """

    def __init__(self) -> None:
        self._early = 0
        self._started_at = 0.0

    def started(self, now: float) -> None:
        """Record a start."""
        self._started_at = now

    def next_start(self, now: float, *, failed: bool) -> float:
        """Return the time of the next start, after the end of a child."""
        if not failed or now - self._started_at >= SETTLED_IN:
            self._early = 0
            return now
        self._early += 1
        if self._early == 1:
            return now
        return now + min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** (self._early - 2))


class Step(enum.Enum):
    """A step against a handler that takes too long."""

    CANCEL = "cancel"
    TERM = "term"
    KILL = "kill"


@dataclass(slots=True)
class Deadline:
    """The time limit of one handler: the child gets SIGTERM, and SIGKILL after that.

    If the place can end one handler alone, it is told to, and has `cancel_grace` seconds for it before these steps.
    """

    at: float
    cancel_grace: float | None
    reached: Step | None = None

    def due(self, now: float) -> Step | None:
        """Return the next step if its time has come. Each step comes once."""
        for step, time in reversed(self._steps()):
            if now >= time:
                if self.reached in self._from(step):
                    return None
                self.reached = step
                return step
        return None

    @property
    def next_at(self) -> float | None:
        """The time of the next step."""
        times = [time for step, time in self._steps() if self.reached not in self._from(step)]
        return min(times, default=None)

    def _steps(self) -> list[tuple[Step, float]]:
        if (grace := self.cancel_grace) is not None:
            kill = self.at + max(TERM_GRACE, grace)
            return [(Step.CANCEL, self.at), (Step.TERM, self.at + grace), (Step.KILL, kill)]
        return [(Step.TERM, self.at), (Step.KILL, self.at + TERM_GRACE)]

    def _from(self, step: Step) -> set[Step]:
        order = list(Step)
        return set(order[order.index(step) :])


def with_jitter(limit: float, chance: Callable[[], float]) -> float:
    """Return a limit less up to a tenth, so that children that began together do not end together."""
    return limit * (1 - chance() / 10)


class Backoff:
    """Pauses while Redis is away: the bound doubles from 0.1 s to 5 s, and the pause is random below it."""

    FIRST, LONGEST = 0.1, 5.0

    def __init__(self, chance: Callable[[], float]) -> None:
        self._chance = chance
        self._bound = self.FIRST

    def pause(self) -> float:
        """Return the seconds before the next try."""
        bound, self._bound = self._bound, min(2 * self._bound, self.LONGEST)
        return self._chance() * bound

    def reset(self) -> None:
        """Begin again: Redis has answered."""
        self._bound = self.FIRST
