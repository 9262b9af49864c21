"""Sending rows in pieces, a few at once, as fast as queues and Redis take them."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from rqttl import Broker, units
from rqttl._driver import Driver, driver_of
from spark_connectors.errors import OutOfMemory, QueueIsFull, SourceError
from spark_connectors.options.options import Options
from spark_connectors.redis.clients import insist
from spark_connectors.write.plan import Plan
from spark_connectors.write.report import Report

T = TypeVar("T")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 1.0
#: A queue is filled up to its depth in so many calls at least, so that nobody waits until it is empty.
_SHARE = 8


@dataclass(slots=True)
class Piece:
    """Rows of one script call: the queue that takes them, their places in their batch, and what is sent of each."""

    queue: str
    rows: Sequence[int]
    sent: Sequence[Any]


class Patience:
    """Waits for room, as `onFull` and `fullTimeout` say: a little longer each time, until something gets on."""

    def __init__(
        self, options: Options, *, clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:  # fmt: skip
        self._waits = options.text("onFull") == "wait"
        self._most = options.number("fullTimeout") / 1000
        self._clock, self._sleep = clock, sleep
        self._since: float | None = None
        self._pause = _FIRST_PAUSE

    def wait(self, why: SourceError) -> None:
        """Wait once more, or raise `why`."""
        now = self._clock()
        if self._since is None:
            self._since = now
        left = self._since + self._most - now
        if not self._waits or left <= 0:
            raise why
        # tasks that wait for the same consumers must not all come back at once
        self._sleep(min(left, self._pause * random.uniform(0.5, 1.5)))
        self._pause = min(_LONGEST_PAUSE, self._pause * 2)

    def reset(self) -> None:
        """Something got on."""
        self._since, self._pause = None, _FIRST_PAUSE


@dataclass
class Job:
    """All that the work of one task needs."""

    options: Options
    plan: Plan
    broker: Broker
    patience: Patience
    report: Report = field(default_factory=Report)

    @property
    def driver(self) -> Driver:
        """The driver of the broker, for steps that no method of the broker takes."""
        return driver_of(self.broker)

    def insist(self, call: Callable[[], T], *, repeatable: bool = True) -> T:
        """The result of a call to Redis; see `clients.insist`."""
        return insist(self.options, call, repeatable=repeatable)


class Pump:
    """Sends pieces with `send`, up to `maxInFlight` of them at once; those of one queue in their order."""

    def __init__(self, job: Job, send: Callable[[Sequence[Piece]], None]) -> None:
        self._job, self._send = job, send
        self._most = job.options.number("maxInFlight")
        self._depth = job.options.maybe_number("maxQueueDepth")
        self.size = job.options.number("batchEntries")
        if self._depth is not None:
            self.size = max(1, min(self.size, self._depth // _SHARE))

    def run(self, pieces: Sequence[Piece]) -> None:
        """Send them all. Raises `QueueIsFull` or `OutOfMemory` when patience is over."""
        left, full = list(pieces), set[str]()
        while left:
            chosen = left[: self._most] if self._depth is None else self._fitting(left, full, self._depth)
            if chosen:
                self._attempt(chosen)
                taken = set(map(id, chosen))
                left = [piece for piece in left if id(piece) not in taken]
            elif all(piece.queue in full for piece in left):
                self._job.patience.wait(self._too_full(full))
                full.clear()

    def _attempt(self, pieces: Sequence[Piece]) -> None:
        while True:
            try:
                self._send(pieces)
            except OutOfMemory as error:
                self._job.patience.wait(error)
            else:
                self._job.patience.reset()
                return

    def _fitting(self, left: Sequence[Piece], full: set[str], depth: int) -> list[Piece]:
        """The next pieces for which there is room. Queues that have none for their next one join `full`."""
        names = list(dict.fromkeys(piece.queue for piece in left if piece.queue not in full))[: self._most]
        stats = self._job.insist(lambda: self._job.broker.stats(names))
        # one that is not there refuses its rows, whatever room it has
        room = {name: depth - stats[name].ready if name in stats else depth for name in names}
        chosen: list[Piece] = []
        for piece in left:
            if len(chosen) == self._most or not room:
                break
            if piece.queue in room and room[piece.queue] >= len(piece.rows):
                room[piece.queue] -= len(piece.rows)
                chosen.append(piece)
            elif room.pop(piece.queue, None) is not None and all(one.queue != piece.queue for one in chosen):
                full.add(piece.queue)
        return chosen

    def _too_full(self, full: set[str]) -> QueueIsFull:
        options = self._job.options
        names = ", ".join(sorted(full)[:3]) + (", …" if len(full) > 3 else "")
        return QueueIsFull(
            f"maxQueueDepth: {names}: no room below {self._depth} ready messages (onFull={options.text('onFull')}, "
            f"fullTimeout={units.as_text(options.number('fullTimeout'))})"
        )
