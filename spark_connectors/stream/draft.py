"""The draft of a batch on one server: all that its plan needs to know before a limit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from spark_connectors.read.positions import QueuePosition, QueueState
from spark_connectors.stream.lag import Lag
from spark_connectors.stream.offsets import Offset


@dataclass(frozen=True, slots=True)
class BatchDraft:
    """The queues of the next batch, before a limit: where they begin, and how they are now."""

    start: Offset
    birth: str
    #: The start without the positions that do not hold any more, and the names of their queues.
    known: Offset
    turned_back: frozenset[str]
    positions: Mapping[str, QueuePosition]
    states: Mapping[str, QueueState]
    #: The lag, which the plan of the batch brings up to date.
    lag: Lag
