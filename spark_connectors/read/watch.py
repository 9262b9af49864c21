"""Watching what tasks read: whether any of it was removed, or its queue deleted, before it could be read."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rqttl.keys import Keyspace
from spark_connectors.ranges import Range
from spark_connectors.read.loss import TRACE, Alarm, Loss, Trace, judge, trimmed
from spark_connectors.read.marks import FIELDS, Mark, State
from spark_connectors.redis.bulk_reader import Wire

_CHUNK = 500


def now() -> int:
    """The time in ms: only to tell for how long a queue had not been looked at."""
    return int(time.time() * 1000)


@dataclass(frozen=True, slots=True)
class Span:
    """A range of a batch, with what tells a reader that something of it is gone: `born` and `missed` as in its end.

    `seen` is a time, in ms, at which the queue was there.
    """

    range: Range
    born: int
    missed: str
    seen: int

    def judge(self, after: str, state: State | None, trace: Trace | None) -> Loss | None:
        """What cannot be read any more from `after` on, of a queue that is gone or another one."""
        mark = Mark(after, self.born, 0, self.missed, self.range.rows)
        return judge(self.range.queue, mark, state, trace, unseen=now() - self.seen)


class Watcher:
    """Asks for the record of a queue with each page of a span.

    What was removed is told at once; what was lost with the queue when all is read, by `settle`.
    """

    def __init__(self, span: Span, keys: Keyspace, alarm: Alarm) -> None:
        self.words = ("HMGET", keys.key(span.range.queue, "meta"), *FIELDS)
        self.span = span
        self._alarm = alarm
        #: Behind which place the queue was not the same any more, and what it was then.
        self.gone: tuple[str, State | None] | None = None

    def told(self, reply: Any, after: str) -> None:
        """Raise or log what was removed from `after` on; note if the queue is another one."""
        state = State.of(reply)
        if state is None or state.born != self.span.born:
            self.gone = self.gone or (after, state)
        else:
            self._alarm.tell(trimmed(self.span.range.queue, after, self.span.missed, state))

    def look(self, reply: Any) -> None:
        """Note if the queue is another one, now that what lay beside its log has been read too."""
        state = State.of(reply)
        if state is None or state.born != self.span.born:
            self.gone = (self.span.range.after, state)


def settle(wire: Wire, keys: Keyspace, watchers: Sequence[Watcher], alarm: Alarm) -> None:
    """Raise or log what was lost with queues that were deleted while they were read."""
    beside = [watcher for watcher in watchers if watcher.span.range.loose and watcher.gone is None]
    for watcher, reply in zip(beside, ask(wire, [watcher.words for watcher in beside]), strict=True):
        watcher.look(reply)
    gone = [(watcher.span, *watcher.gone) for watcher in watchers if watcher.gone is not None]
    found = traces(wire, keys, [span.range.queue for span, _, _ in gone])
    for span, after, state in gone:
        alarm.tell(span.judge(after, state, found.get(span.range.queue)))


def traces(wire: Wire, keys: Keyspace, queues: Iterable[str]) -> Mapping[str, Trace]:
    """The traces of deleted queues, where there are any."""
    names = list(queues)
    found = ask(wire, [("HMGET", keys.key(name, "gone"), *TRACE) for name in names])
    all_ = {name: Trace.of(fields) for name, fields in zip(names, found, strict=True)}
    return {name: trace for name, trace in all_.items() if trace is not None}


def ask(wire: Wire, calls: Sequence[tuple[str, ...]]) -> list[Any]:
    """The replies to many commands that only read, in few round trips."""
    return [reply for i in range(0, len(calls), _CHUNK) for reply in wire.ask_all(calls[i : i + _CHUNK])]
