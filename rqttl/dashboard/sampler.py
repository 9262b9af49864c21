"""One reader of counters for all who look."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rqttl.broker import Broker


@dataclass(frozen=True)
class Sample:
    """The queues at one time."""

    number: int = 0
    trouble: str | None = None


class Sampler:
    """Reads the counters of queues, again and again."""

    def __init__(self, broker: Broker, pattern: str = "*") -> None:
        self._broker, self._pattern = broker, pattern
        self.sample = Sample()

    def look(self) -> None:
        """Note that somebody looks."""
