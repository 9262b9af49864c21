"""The number of messages to fetch for the handlers of a place, by the time that they take. No I/O and no clock."""

from __future__ import annotations

from rqttl.worker.board import KEYS

#: Seconds of work that a place has at hand at most. A handler that takes longer has no second message at hand.
AT_HAND = 0.05
#: The number of messages for each slot of faster handlers at least, and for all slots of a place at most.
BRISK_SHARE, DEEPEST = 2, 500
#: The weight of the newest measurement in the average.
NEWEST = 0.05


class Pace:
    """The average time of handlers. Without a `fixed` number for each slot it decides about the messages of a place.

    A message at hand waits for its handler under a lease, so slow handlers have no second one. Fast handlers would
    otherwise wait for the next message most of the time.
    """

    def __init__(self, fixed: int | None = None) -> None:
        self._fixed = fixed
        self._mean: float | None = None

    @property
    def is_fixed(self) -> bool:
        """True if the user has given the number for each slot."""
        return self._fixed is not None

    def measured(self, seconds: float, number: int = 1) -> None:
        """Record the times of so many handlers: `seconds` is their sum."""
        mean = seconds / number
        self._mean = mean if self._mean is None else mean + (1 - NEWEST) ** number * (self._mean - mean)

    def depth(self, slots: int) -> int:
        """Return the number of messages for a place with so many slots, those in its handlers included."""
        if self._fixed is not None:
            return min(KEYS, slots * self._fixed)
        if self._mean is None or self._mean >= AT_HAND:
            return slots
        deepest = max(DEEPEST, BRISK_SHARE * slots)
        fitting = deepest if self._mean * deepest <= AT_HAND * slots else int(slots * AT_HAND / self._mean)
        return min(KEYS, max(BRISK_SHARE * slots, fitting))
