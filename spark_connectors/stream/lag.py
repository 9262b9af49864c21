"""The lag of a stream: the messages that it has not read yet. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from spark_connectors.read.positions import QueueState, before_first
from spark_connectors.stream.offsets import Offset


@dataclass(slots=True)
class Lag:
    """The messages after the end of the last batch, as last read; after a freeze only older ones.

    Messages that have left the middle of a queue may count, so it is an upper bound.
    """

    #: The end of the last batch; its start if there was nothing to read.
    reached: Offset
    #: The states of the queues that it could read.
    states: Mapping[str, QueueState]
    #: By queue, the most messages that were unread before it, where that is known.
    rows: Mapping[str, int] = field(default_factory=dict)

    def messages(self) -> int:
        """Return the largest number of unread messages."""
        total = 0
        for name, state in self.states.items():
            position = self.reached.positions.get(name)
            if position is None or not position.belongs_to(state):
                position = before_first(state)
            if position.after < state.last_sequence:
                total += min(position.max_unread(state), self.rows.get(name, state.enqueued))
        return total
