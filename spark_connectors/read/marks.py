"""How far a query has got in one queue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from spark_connectors.ranges import FIRST

#: What a queue's record says of its state.
FIELDS = ("version", "born", "last", "trimmed", "enqueued")


@dataclass(frozen=True, slots=True)
class State:
    """What a queue's record says at one moment."""

    born: int
    last: str
    trimmed: str
    enqueued: int

    @classmethod
    def of(cls, fields: Sequence[bytes | None]) -> State | None:
        """From the `FIELDS` of a record; `None` if there is no such queue.

        A sequence is `0-0` there while there has been none.
        """
        version, born, last, trimmed, enqueued = fields
        return None if version is None else cls(int(born or 0), _place(last), _place(trimmed), int(enqueued or 0))


@dataclass(frozen=True, slots=True)
class Mark:
    """How far a query has got in one queue."""

    #: The last sequence that was read.
    after: str
    #: When the queue was made, in ms.
    born: int
    #: How many messages the queue had received up to `after`: exactly at its end, at least so many before.
    ordinal: int = 0
    #: The highest sequence that had been removed unread when this was noted, or empty. It is not told again.
    missed: str = ""
    #: How many messages, at most, were known to lie beyond `after`.
    ahead: int = 0

    def dump(self) -> list[Any]:
        """As Spark keeps it; what is rare is left out at the end."""
        parts = [self.after, self.born, self.ordinal, self.missed, self.ahead]
        return parts if self.ahead else parts[:4] if self.missed else parts[:3]

    def continues(self, state: State) -> bool:
        """Whether it belongs to the queue that is there now."""
        return self.born == state.born

    @property
    def seen(self) -> int:
        """A time, in ms, at which the queue was there for sure."""
        return max(int(self.after[:13]), self.born)

    def unread(self, state: State) -> int:
        """How many messages can lie between it and the end, at most. Those that were handled or lost count too."""
        return max(0, state.enqueued - self.ordinal)

    def at_end(self, state: State) -> Mark:
        """The mark when all that is there has been read."""
        return self if state.last <= self.after else Mark(state.last, state.born, state.enqueued, self._missed(state))

    def moved(self, after: str, rows: int, state: State) -> Mark:
        """The mark when `rows` messages have been read, the last of them at `after`."""
        if after >= state.last:
            return self.at_end(state)
        moved = Mark(after, self.born, self.ordinal + rows, self._missed(state))
        return replace(moved, ahead=moved.unread(state))

    def _missed(self, state: State) -> str:
        return state.trimmed if state.trimmed > self.after else ""


def beginning(state: State) -> Mark:
    """Before the first message of a queue. What was removed before anybody looked is no loss."""
    return Mark(FIRST, state.born, 0, state.trimmed if state.trimmed > FIRST else "")


def placed(state: State, after: str) -> Mark:
    """At a place that somebody named."""
    start = beginning(state)
    return start.at_end(state) if after >= state.last else replace(start, after=after)


def _place(found: bytes | None) -> str:
    text = (found or b"").decode()
    return text if len(text) == len(FIRST) else FIRST
