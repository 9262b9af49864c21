"""The state of a queue, and the position of a reader in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from spark_connectors.ranges import FIRST, recorded_sequence


@dataclass(frozen=True, slots=True)
class QueueState:
    """The record of a queue at one moment."""

    #: The creation time of the queue, in ms.
    created_at: int
    #: The last sequence of the log.
    last_sequence: str
    #: The highest sequence that was removed unhandled.
    trimmed_upto: str
    #: The number of messages that the queue has ever received.
    enqueued: int

    @classmethod
    def from_fields(cls, fields: Sequence[bytes | None]) -> QueueState | None:
        """Decode the fields `STATE_FIELDS` of a record; `None` if there is no such queue."""
        version, created_at, last, trimmed, enqueued = fields
        if version is None:
            return None
        return cls(int(created_at or 0), recorded_sequence(last), recorded_sequence(trimmed), int(enqueued or 0))


@dataclass(frozen=True, slots=True)
class QueuePosition:
    """The position of a query in one queue."""

    #: The last sequence that was read.
    after: str
    #: The creation time of the queue, in ms.
    created_at: int
    #: The number of messages that the queue had received up to `after`: exact at its end, a lower bound before it.
    received: int = 0
    #: The highest sequence that had been removed unread so far, or empty. It is not reported again.
    known_loss: str = ""
    #: An upper bound for the number of messages after `after`.
    ahead: int = 0

    def dump(self) -> list[Any]:
        """Return the values for the checkpoint. Rare values come last and are left out if they are empty."""
        values = [self.after, self.created_at, self.received, self.known_loss, self.ahead]
        return values if self.ahead else values[:4] if self.known_loss else values[:3]

    def belongs_to(self, state: QueueState) -> bool:
        """True if the queue is still the same: a queue that was deleted and created again is another one."""
        return self.created_at == state.created_at

    @property
    def existed_at(self) -> int:
        """A time, in ms, at which the queue existed for certain."""
        return max(int(self.after[:13]), self.created_at)

    def max_unread(self, state: QueueState) -> int:
        """Return an upper bound for the messages after this position. Handled and lost messages count, too."""
        return max(0, state.enqueued - self.received)

    def at_end(self, state: QueueState) -> QueuePosition:
        """Return the position after all messages of the queue."""
        if state.last_sequence <= self.after:
            return self
        return QueuePosition(state.last_sequence, state.created_at, state.enqueued, self._known_loss(state))

    def advanced(self, after: str, rows: int, state: QueueState) -> QueuePosition:
        """Return the position after `rows` more messages, the last of them at `after`."""
        if after >= state.last_sequence:
            return self.at_end(state)
        position = QueuePosition(after, self.created_at, self.received + rows, self._known_loss(state))
        return replace(position, ahead=position.max_unread(state))

    def _known_loss(self, state: QueueState) -> str:
        return state.trimmed_upto if state.trimmed_upto > self.after else ""


def before_first(state: QueueState) -> QueuePosition:
    """Return the position before the first message. Messages that are already removed are no loss."""
    return QueuePosition(FIRST, state.created_at, 0, state.trimmed_upto if state.trimmed_upto > FIRST else "")


def position_after(state: QueueState, after: str) -> QueuePosition:
    """Return the position after a sequence that the user chose."""
    start = before_first(state)
    return start.at_end(state) if after >= state.last_sequence else replace(start, after=after)
