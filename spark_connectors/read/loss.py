"""The rule for lost messages, and their report. Pure.

A message that was acked, rejected, redriven or chosen by a purge was handled, and is not lost. The record of a queue
keeps the highest sequence that was removed unhandled. Every deleted queue leaves it in a tombstone for a week. So the
rule is exact for a query that checks at least once a week: a queue that is missing without a tombstone was forgotten by
Redis. For other queries, messages that were unread in a deleted queue count as lost.

Data that Redis has forgotten show in two more facts. The data of a namespace have a random name: another name, or none,
means other data. The number of arrivals of a queue never falls, except with the restore of an older state.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from spark_connectors.errors import DataLoss
from spark_connectors.ranges import FIRST
from spark_connectors.read.positions import QueuePosition, QueueState

_log = logging.getLogger("spark_connectors")
#: The time, in ms, for which a tombstone exists for certain: a week, less an hour for clocks that differ.
TOMBSTONE_LIFETIME = (7 * 24 - 1) * 3_600_000


@dataclass(frozen=True, slots=True)
class Loss:
    """Messages that a query has missed. A loss that nobody can verify is not `certain`."""

    text: str
    certain: bool = True

    def told_to_go_back(self, queues: str) -> Loss:
        """Return the loss with a sentence on the way on of a query that does not fail."""
        return replace(self, text=f"{self.text}. A query that goes on reads {queues} again from the first message on")


@dataclass(frozen=True, slots=True)
class Tombstone:
    """The last queue of a name that was deleted, and the last one that was deleted with unhandled messages."""

    #: The creation time of the latter queue, in ms.
    created_at: int
    #: The highest sequence of the messages in the queue when it was deleted.
    last_sequence: str
    #: The highest sequence that was removed unhandled before.
    trimmed_upto: str
    #: The creation time of the last deleted queue, in ms.
    deleted: int

    @classmethod
    def from_fields(cls, fields: Sequence[bytes | None]) -> Tombstone | None:
        """Decode the fields `TOMBSTONE_FIELDS`; `None` if there is no tombstone."""
        created_at, last, trimmed, deleted = fields
        if last is None:
            return None
        return cls(int(created_at or 0), last.decode(), (trimmed or b"").decode(), int(deleted or created_at or 0))

    def shows_loss(self, position: QueuePosition) -> bool:
        """True if a query at `position` has lost messages. It has read nothing of a queue that was created later."""
        if self.created_at != position.created_at:
            return self.created_at > position.created_at and max(self.last_sequence, self.trimmed_upto) > FIRST
        return self.last_sequence > position.after or self.trimmed_upto > max(position.after, position.known_loss)


def detect_other_data(expected: str, present: str, *, of_one_node: bool = False) -> Loss | None:
    """Compare the name of the data that a query has read with the present one. No expected name is no loss.

    On a cluster the name is `of_one_node`: queues of the others are still there.
    """
    if not expected or present == expected:
        return None
    if of_one_node:
        return Loss(
            f"the node with the names of all queues has forgotten its data: their name was {expected}, and is now "
            f"{present or 'none'}. Queues that are still there keep their positions",
            certain=False,
        )
    return Loss(
        f"Redis has forgotten the data that this query has read: their name was {expected}, and "
        f"{f'the present data have the name {present}' if present else 'there are no data with a name'}"
    )


def detect_restore(queue: str, state: QueueState, after: str, received: int) -> Loss | None:
    """Return a loss if the state of a queue is older than one in which it held `after` and had these arrivals."""
    if state.enqueued >= received and state.last_sequence >= after:
        return None
    return Loss(
        f"queue {queue!r} is in an older state than this query has seen, as after a failover or the restore of a "
        f"backup: it had received {received} messages up to {after}, and has now received {state.enqueued} up to "
        f"{state.last_sequence}. Messages that arrived in between are lost, and new ones may lie before {after}"
    )


def detect_loss(
    queue: str,
    position: QueuePosition,
    state: QueueState | None,
    tombstone: Tombstone | None = None,
    *,
    unchecked_for: int = 0,
) -> Loss | None:
    """Compare the position of a query in a queue with the present state; no state means that the queue is deleted.

    For a deleted or recreated queue, `tombstone` is the one of this name, and `unchecked_for` is the time, in ms, since
    the last check.
    """
    if state is not None and position.belongs_to(state):
        return detect_trimming(queue, position.after, position.known_loss, state)
    event = "deleted" if state is None else "deleted and created again"
    if tombstone is not None and tombstone.shows_loss(position):
        return Loss(
            f"queue {queue!r} was {event}, and unread messages after {position.after} were lost, the highest of them "
            f"{max(tombstone.last_sequence, tombstone.trimmed_upto)}"
        )
    if tombstone is not None and tombstone.deleted >= position.created_at:
        return None
    if tombstone is not None or unchecked_for <= TOMBSTONE_LIFETIME:
        return Loss(
            f"queue {queue!r} is gone, and Redis has no record of its deletion, so Redis has forgotten it. It had been "
            f"read up to {position.after}"
        )
    if position.ahead and unchecked_for > TOMBSTONE_LIFETIME:
        return Loss(
            f"queue {queue!r} was {event}. It may have held unread messages after {position.after}, {position.ahead} "
            "at most. Redis remembers the losses of a deleted queue for 7 days only, so nobody can verify this"
        )
    return Loss(
        f"queue {queue!r} was {event}. It had been read up to {position.after}. Redis remembers the losses of a "
        "deleted queue for 7 days only",
        certain=False,
    )


def detect_trimming(queue: str, after: str, known_loss: str, state: QueueState) -> Loss | None:
    """Return the loss of unread messages after `after`, other than the known one."""
    if state.trimmed_upto <= max(after, known_loss):
        return None
    return Loss(
        f"queue {queue!r}: messages after {after}, the highest of them {state.trimmed_upto}, were removed by "
        "retention, a limit or a purge before this query read them"
    )


class LossReporter:
    """Raises certain losses if the query shall fail. Logs all other losses, each text once."""

    def __init__(self, *, fail: bool) -> None:
        self._fail = fail
        #: True after a certain loss that was only logged.
        self.accepted = False
        self._logged: set[str] = set()

    def report(self, loss: Loss | None) -> None:
        """Raise `DataLoss`, or log the loss. `None` does nothing."""
        if loss is None:
            return
        if loss.certain and self._fail:
            raise DataLoss(f"{loss.text}. With failOnDataLoss=false the query goes on with the remaining messages")
        self.accepted = self.accepted or loss.certain
        if loss.text not in self._logged:
            self._logged.add(loss.text)
            _log.warning("[%s] %s", DataLoss.code, loss.text)
