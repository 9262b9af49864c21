"""The calls of a write task: a few at once, as fast as queues and Redis accept them."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from rqttl import Broker, units
from rqttl.store.driver import RedisDriver, driver_of
from spark_connectors.errors import OutOfMemory, QueueIsFull, SourceError
from spark_connectors.options.options import Options
from spark_connectors.redis.broker import with_retries
from spark_connectors.write.plan import Plan
from spark_connectors.write.report import Report

T = TypeVar("T")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 1.0
#: The smallest number of calls that fill a queue to its depth. One large call would have to wait for an empty queue.
_CALLS_PER_DEPTH = 8


@dataclass(slots=True)
class CallBatch:
    """The rows of one script call: the target queue, the row numbers, and the arguments of each row."""

    queue: str
    rows: Sequence[int]
    arguments: Sequence[Any]


class Backpressure:
    """Waits for room in a full queue or in the memory of Redis, as `onFull` and `fullTimeout` say.

    Each pause is longer than the one before, until a call succeeds.
    """

    def __init__(
        self,
        options: Options,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._waits = options.text("onFull") == "wait"
        self._timeout = options.number("fullTimeout") / 1000
        self._clock, self._sleep = clock, sleep
        self._since: float | None = None
        self._pause = _FIRST_PAUSE

    def wait(self, error: SourceError) -> None:
        """Wait once more, or raise `error`."""
        now = self._clock()
        if self._since is None:
            self._since = now
        left = self._since + self._timeout - now
        if not self._waits or left <= 0:
            raise error
        # tasks that wait for the same consumers must not all come back at once
        self._sleep(min(left, self._pause * random.uniform(0.5, 1.5)))
        self._pause = min(_LONGEST_PAUSE, self._pause * 2)

    def reset(self) -> None:
        """Begin anew after a successful call."""
        self._since, self._pause = None, _FIRST_PAUSE


@dataclass
class WriteTask:
    """The objects that the work of one task needs."""

    options: Options
    plan: Plan
    broker: Broker
    backpressure: Backpressure
    report: Report = field(default_factory=Report)

    @property
    def driver(self) -> RedisDriver:
        """The driver of the broker, for steps that no method of the broker offers."""
        return driver_of(self.broker)

    def with_retries(self, call: Callable[[], T], queues: Iterable[str], *, repeatable: bool = True) -> T:
        """Make a call to Redis that concerns these queues; see `redis.broker.with_retries`."""
        names = list(dict.fromkeys(queues))
        named = ", ".join(map(repr, names[:3])) + (", …" if len(names) > 3 else "")
        return with_retries(
            self.options, call, repeatable=repeatable, command=(self.plan.operation, f"with queue {named}")
        )


class BatchSender:
    """Sends call batches with `send`, up to `maxInFlight` of them at once. Batches of one queue keep their order."""

    def __init__(self, task: WriteTask, send: Callable[[Sequence[CallBatch]], None]) -> None:
        self._task, self._send = task, send
        self._max_in_flight = task.options.number("maxInFlight")
        self._depth = task.options.optional_number("maxQueueDepth")
        #: The largest number of rows of a call batch.
        self.rows = task.options.number("batchEntries")
        if self._depth is not None:
            self.rows = max(1, min(self.rows, self._depth // _CALLS_PER_DEPTH))

    def send_all(self, batches: Sequence[CallBatch]) -> None:
        """Send all batches. Raises `QueueIsFull` or `OutOfMemory` at the end of `fullTimeout`."""
        left, full = list(batches), set[str]()
        while left:
            sendable = left[: self._max_in_flight] if self._depth is None else self._fitting(left, full, self._depth)
            if sendable:
                self._attempt(sendable)
                sent = set(map(id, sendable))
                left = [batch for batch in left if id(batch) not in sent]
            elif all(batch.queue in full for batch in left):
                self._task.backpressure.wait(self._queue_is_full(full))
                full.clear()

    def _attempt(self, batches: Sequence[CallBatch]) -> None:
        while True:
            try:
                self._send(batches)
            except OutOfMemory as error:
                self._task.backpressure.wait(error)
            else:
                self._task.backpressure.reset()
                return

    def _fitting(self, left: Sequence[CallBatch], full: set[str], depth: int) -> list[CallBatch]:
        """Return the next batches for which there is room. Queues without room for their next batch join `full`."""
        names = list(dict.fromkeys(batch.queue for batch in left if batch.queue not in full))[: self._max_in_flight]
        stats = self._task.with_retries(lambda: self._task.broker.stats(names), names)
        # a missing queue has all room: the call refuses its rows
        room = {name: depth - stats[name].ready if name in stats else depth for name in names}
        fitting: list[CallBatch] = []
        for batch in left:
            if len(fitting) == self._max_in_flight or not room:
                break
            if batch.queue in room and room[batch.queue] >= len(batch.rows):
                room[batch.queue] -= len(batch.rows)
                fitting.append(batch)
            elif room.pop(batch.queue, None) is not None and all(other.queue != batch.queue for other in fitting):
                full.add(batch.queue)
        return fitting

    def _queue_is_full(self, full: set[str]) -> QueueIsFull:
        options = self._task.options
        names = ", ".join(sorted(full)[:3]) + (", …" if len(full) > 3 else "")
        return QueueIsFull(
            f"maxQueueDepth: {names}: no room below {self._depth} ready messages (onFull={options.text('onFull')}, "
            f"fullTimeout={units.as_text(options.number('fullTimeout'))})"
        )
