"""The pause before a failed message is delivered again, if its queue has no option for it."""

from __future__ import annotations

from collections.abc import Callable

#: The pause after the first failure, which each further failure doubles, and the longest pause, in ms.
FIRST, LONGEST = 1_000, 600_000
#: The part of a pause that is random, so that messages that failed together do not come back together.
JITTER = 0.25


def pause(failures: int, random: Callable[[], float]) -> int:
    """Return the pause in ms after so many failures. `random` gives numbers from 0 to 1; they only shorten it."""
    whole = min(LONGEST, FIRST << min(failures - 1, 20))
    return round(whole * (1 - JITTER * random()))
