"""Alive and ready: two judgements about a worker, from the times of its loops. No I/O and no clock."""

from __future__ import annotations

from dataclasses import dataclass

#: Seconds within which each loop of a worker turns.
TURNS = 30.0
#: Seconds within which a loop turns that waits for Redis: its time-outs end each call.
TURNS_WHILE_AWAY = 300.0
#: Seconds within which Redis has to answer a claim: two periods of proof.
ANSWERS = 40.0


@dataclass(frozen=True, slots=True)
class Vitals:
    """The facts of one moment. Times are seconds since the last turn of a loop or since the last answer.

    `calls_redis` is true while the fetcher or the keeper may wait for Redis.
    """

    supervised: float
    fetched: float
    kept: float
    answered: float | None
    calls_redis: bool
    is_away: bool
    is_full: bool
    is_stopping: bool
    children: int
    ready_children: int

    def trouble(self) -> str:
        """Return the reason for which the worker is not alive; empty if it is. Redis has no part in it."""
        for name, seconds in (("supervision", self.supervised), ("fetcher", self.fetched), ("keeper", self.kept)):
            limit = TURNS_WHILE_AWAY if self.calls_redis and name != "supervision" else TURNS
            if seconds > limit:
                return f"the loop of the {name} has not turned for {seconds:.0f} s"
        return ""

    def obstacle(self) -> str:
        """Return the reason for which the worker cannot handle messages now; empty if it can."""
        if self.is_stopping:
            return "the worker fetches no more messages"
        if self.ready_children < self.children or not self.children:
            return f"{self.ready_children} of {self.children} child processes are ready"
        if self.is_away:
            return "Redis does not answer"
        if self.answered is None:
            return "Redis has not answered a claim yet"
        if self.answered > ANSWERS and not self.is_full:
            return f"Redis has answered no claim for {self.answered:.0f} s"
        return self.trouble()
