"""The state of a reaper at one moment, and two judgements about it: alive and ready. No I/O and no clock."""

from __future__ import annotations

from dataclasses import dataclass

from rqttl.reaper.report import Totals
from rqttl.runtime.histogram import Histogram

#: Seconds within which the loop of a reaper turns, also while it looks at very many queues.
TURNS = 300.0


@dataclass(frozen=True, slots=True)
class ReaperSnapshot:
    """The numbers of a reaper. `turned` is the age of the last turn of its loop, in seconds.

    `last_pass` is the end of its last pass over all queues, in seconds since 1970; `None` before the first one.
    """

    totals: Totals
    lags: Histogram
    queues: int
    last_pass: float | None
    turned: float
    is_away: bool

    def trouble(self) -> str:
        """Return the reason for which the reaper is not alive; empty if it is. Redis has no part in it."""
        return f"the loop of the reaper has not turned for {self.turned:.0f} s" if self.turned > TURNS else ""

    def obstacle(self) -> str:
        """Return the reason for which the reaper cannot sweep now; empty if it can."""
        if self.is_away:
            return "Redis does not answer"
        if self.last_pass is None:
            return "the reaper has not looked at all queues yet"
        return self.trouble()
