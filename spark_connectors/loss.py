"""What a reader has missed: the rule, and what happens then. Pure.

Messages that were acked, rejected or redriven were handled by somebody, and are no loss. The record of a queue tells
what nobody has handled (`trimmed`), so the rule is exact while the queue lives. What a queue held when it was deleted
can be known only as far as the query had looked before; if it had read all that it knew of, that is logged, not raised.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from spark_connectors.errors import DataLoss
from spark_connectors.offsets import Mark, State

_log = logging.getLogger("spark_connectors")


@dataclass(frozen=True, slots=True)
class Loss:
    """Something that a query has missed, or may have missed where nobody can know."""

    text: str
    certain: bool = True


def judge(queue: str, mark: Mark, state: State | None) -> Loss | None:
    """What is lost of a queue to a query that has got to `mark`, now that the queue is in this state (none: gone)."""
    if state is not None and mark.continues(state):
        return trimmed(queue, mark.after, mark.missed, state)
    what = "deleted" if state is None else "deleted and made again"
    if mark.ahead:
        return Loss(
            f"queue {queue!r} was {what} while it held messages after {mark.after} that had not been read: "
            f"{mark.ahead} at most"
        )
    return Loss(
        f"queue {queue!r} was {what}. All messages that were known had been read, up to {mark.after}; whether others "
        "arrived before it was deleted cannot be known any more",
        certain=False,
    )


def trimmed(queue: str, after: str, missed: str, state: State) -> Loss | None:
    """What was removed unread beyond `after`, and beyond `missed`, which is known already."""
    if state.trimmed <= max(after, missed):
        return None
    return Loss(
        f"queue {queue!r}: messages after {after}, the highest of them {state.trimmed}, were removed by retention, a "
        "limit or a purge before this query read them"
    )


class Alarm:
    """Raises what is lost for certain if the query is to fail, and logs it otherwise, each text once."""

    def __init__(self, *, fail: bool) -> None:
        self._fail = fail
        self._told: set[str] = set()

    def tell(self, loss: Loss | None) -> None:
        """Raise `DataLoss`, or log it; nothing if nothing is lost."""
        if loss is None:
            return
        if loss.certain and self._fail:
            raise DataLoss(f"{loss.text}. With failOnDataLoss=false the query goes on with what is there")
        if loss.text not in self._told:
            self._told.add(loss.text)
            _log.warning("[%s] %s", DataLoss.code, loss.text)
