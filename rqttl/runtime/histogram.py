"""A histogram of seconds, for collectors of metrics."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field

#: Upper bounds of the histograms, in seconds.
BOUNDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0)


@dataclass(slots=True)
class Histogram:
    """Measured seconds: their number below each of `BOUNDS`, the last one without a bound, and their sum."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS) + 1))
    total: float = 0.0

    def add(self, seconds: float) -> None:
        """Add a measurement."""
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.total += seconds

    def add_all(self, measured: Iterable[float]) -> None:
        """Add measurements."""
        counts, total = self.counts, 0.0
        for seconds in measured:
            counts[bisect_left(BOUNDS, seconds)] += 1
            total += seconds
        self.total += total

    def copy(self) -> Histogram:
        """Return a copy."""
        return Histogram(list(self.counts), self.total)
