"""What a reader has missed: the rule, and what happens then. Pure.

Messages that were acked, rejected or redriven were handled by somebody, and are no loss. What went unhandled is told by
the record of a queue while it lives (`trimmed`), and by its trace for a week after it was deleted. So the rule is exact
for whoever looks once in a week; for others, what was known to be unread in a queue that is gone counts as lost.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from spark_connectors.errors import DataLoss
from spark_connectors.read.marks import Mark, State

_log = logging.getLogger("spark_connectors")
#: What a trace says.
TRACE = ("born", "held", "trimmed")
#: For how many ms a trace is there for sure: a week, less an hour in which clocks may differ.
KEPT = (7 * 24 - 1) * 3_600_000


@dataclass(frozen=True, slots=True)
class Loss:
    """Something that a query has missed, or may have missed where nobody can know."""

    text: str
    certain: bool = True


@dataclass(frozen=True, slots=True)
class Trace:
    """The last queue of a name that was deleted with a loss.

    When it was made, the highest place of the messages in it, and the highest that had been removed unhandled before.
    """

    born: int
    held: str
    trimmed: str

    @classmethod
    def of(cls, fields: Sequence[bytes | None]) -> Trace | None:
        """From the fields `TRACE`; `None` if there is no trace."""
        born, held, trimmed_ = fields
        return None if held is None else cls(int(born or 0), held.decode(), (trimmed_ or b"").decode())

    def misses(self, mark: Mark) -> bool:
        """Whether a query that has got to `mark` has lost something. Of a queue made later it has read nothing."""
        if self.born != mark.born:
            return self.born > mark.born
        return self.held > mark.after or self.trimmed > max(mark.after, mark.missed)


def judge(queue: str, mark: Mark, state: State | None, trace: Trace | None = None, *, unseen: int = 0) -> Loss | None:
    """What is lost of a queue to a query that has got to `mark`, now that the queue is in this state (none: gone).

    Where it is gone or another one, `trace` is what there is, and `unseen` for how many ms nobody had looked.
    """
    if state is not None and mark.continues(state):
        return trimmed(queue, mark.after, mark.missed, state)
    what = "deleted" if state is None else "deleted and made again"
    if trace is not None and trace.misses(mark):
        return Loss(
            f"queue {queue!r} was {what}, and messages after {mark.after} that had not been read were lost, "
            f"the highest of them {max(trace.held, trace.trimmed)}"
        )
    if trace is not None and trace.born == mark.born:
        return None
    if mark.ahead and unseen > KEPT:
        return Loss(
            f"queue {queue!r} was {what}. What became of the messages after {mark.after} that had not been read, "
            f"{mark.ahead} at most, cannot be known any more: what was lost with a queue is remembered for 7 days"
        )
    return Loss(
        f"queue {queue!r} was {what}. It had been read up to {mark.after}, and nothing is remembered as lost with it, "
        "which rqttl does for 7 days",
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
