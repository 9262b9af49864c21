"""The calls of a write task: a few at once, as fast as queues and Redis accept them."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from rqttl import Broker, NotReplicated, units
from rqttl.flows.steps import Flow, Pipeline, Step, drive
from rqttl.outages import TEMPORARY
from rqttl.protocol.commands import Command, why_unconfirmed
from rqttl.store.driver import RedisDriver, driver_of
from spark_connectors.errors import OutOfMemory, QueueIsFull, SourceError
from spark_connectors.logs import log_text
from spark_connectors.options.options import Options
from spark_connectors.redis.broker import with_retries
from spark_connectors.redis.connect import as_source_error
from spark_connectors.write.plan import Plan
from spark_connectors.write.report import Report

T = TypeVar("T")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 1.0
#: The most rows of a script call, and the most calls at once.
_CALL_ROWS, _CALLS_AT_ONCE = 250, 4
#: The smallest number of calls that fill a queue to its depth. One large call would have to wait for an empty queue.
_CALLS_PER_DEPTH = 8


@dataclass(slots=True)
class CallBatch:
    """The rows of one script call: the target queue, the row numbers, and the arguments of each row, `width` of them.

    `sent` is true once all rows have an outcome: then the call is not made again.
    """

    queue: str
    rows: Sequence[int]
    arguments: Sequence[Any]
    width: int = 2
    sent: bool = False


class Stored:
    """Carries out a flow, and notes whether one of its scripts was carried out. `perform` performs one step of it."""

    def __init__(self, perform: Callable[[Step], Any]) -> None:
        self._perform = perform
        self.any = False
        self._lost: NotReplicated | None = None

    def carry_out(self, flow: Flow[T]) -> T:
        """Carry out the flow. Raises `NotReplicated` at its end if a call was not confirmed."""
        result = drive(flow, self._step)
        if self._lost is not None:
            raise self._lost
        return result

    def _step(self, step: Step) -> Any:
        answer = self._perform(step)
        calls = step.commands if isinstance(step, Pipeline) else [step] if isinstance(step, Command) else ()
        for call, reply in zip(calls, answer if isinstance(step, Pipeline) else [answer], strict=False):
            self.any = self.any or reply[0] == b"ok"
            if call.durability and reply[0] == b"ok" and (why := why_unconfirmed(reply[1])):
                self._lost = NotReplicated(call.queue, call.durability, why)
        return answer


class Backpressure:
    """Waits for room in a full queue or in the memory of Redis, as long as `fullTimeout` says.

    Each pause is longer than the one before, until a call succeeds.
    """

    def __init__(
        self,
        options: Options,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._timeout, self._limit = options.number("fullTimeout") / 1000, units.as_text(options.number("fullTimeout"))
        self._clock, self._sleep = clock, sleep
        self._since: float | None = None
        self._pause, self._told = _FIRST_PAUSE, False

    def wait(self, error: SourceError) -> None:
        """Wait once more, or raise `error`."""
        now = self._clock()
        if self._since is None:
            self._since = now
        left = self._since + self._timeout - now
        if left <= 0:
            raise type(error)(f"{error} (fullTimeout={self._limit})")
        if self._pause == _LONGEST_PAUSE and not self._told:
            self._told = True
            log_text(logging.WARNING, f"{error}. The task waits for it for up to {self._limit} (fullTimeout)")
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
        return with_retries(self.options, call, repeatable=repeatable, command=self._described(queues))

    def store(self, flow: Callable[[], Flow[T]], queues: Sequence[str], *, repeatable: bool) -> T:
        """Carry out a flow that stores rows, with retries.

        A flow that is not `repeatable` begins again only if Redis has stored none of its rows. So a failure after a
        script has stored some ends the task, also if Redis only refuses the rest for now.
        """

        def attempt() -> T:
            stored = Stored(self.driver.step)
            try:
                return stored.carry_out(flow())
            except TEMPORARY as error:
                if repeatable or not stored.any:
                    raise
                cause = as_source_error(error, self.options, self._described(queues))
                raise type(cause)(
                    f"{cause}. A part of the call is stored, so without idempotency it is not made again"
                ) from None

        return self.with_retries(attempt, queues, repeatable=repeatable)

    def _described(self, queues: Iterable[str]) -> tuple[str, str]:
        names = list(dict.fromkeys(queues))
        return self.plan.operation, f"with queue {', '.join(map(repr, names[:3]))}{', …' if len(names) > 3 else ''}"


class BatchSender:
    """Sends call batches with `send`, up to `_CALLS_AT_ONCE` of them at once. Batches of one queue keep their order.

    `send` marks each batch that is sent. If Redis has no memory for the others, it gets only those again.
    """

    def __init__(self, task: WriteTask, send: Callable[[Sequence[CallBatch]], None]) -> None:
        self._task, self._send = task, send
        self._depth = task.options.optional_number("maxQueueDepth")
        #: The largest number of rows of a call batch.
        self.rows = _CALL_ROWS
        if self._depth is not None:
            self.rows = max(1, min(self.rows, self._depth // _CALLS_PER_DEPTH))

    def send_all(self, batches: Sequence[CallBatch]) -> None:
        """Send all batches. Raises `QueueIsFull` or `OutOfMemory` at the end of `fullTimeout`."""
        left, full = list(batches), set[str]()
        while left:
            sendable = left[:_CALLS_AT_ONCE] if self._depth is None else self._fitting(left, full, self._depth)
            if sendable:
                self._attempt(sendable)
                left = [batch for batch in left if not batch.sent]
            elif all(batch.queue in full for batch in left):
                self._task.backpressure.wait(self._queue_is_full(full))
                full.clear()

    def _attempt(self, batches: Sequence[CallBatch]) -> None:
        while True:
            try:
                self._send([batch for batch in batches if not batch.sent])
            except OutOfMemory as error:
                self._task.backpressure.wait(error)
            else:
                self._task.backpressure.reset()
                return

    def _fitting(self, left: Sequence[CallBatch], full: set[str], depth: int) -> list[CallBatch]:
        """Return the next batches for which there is room. Queues without room for their next batch join `full`."""
        names = list(dict.fromkeys(batch.queue for batch in left if batch.queue not in full))[:_CALLS_AT_ONCE]
        stats = self._task.with_retries(lambda: self._task.broker.stats(names), names)
        # a missing queue has all room: the call refuses its rows
        room = {name: depth - stats[name].ready if name in stats else depth for name in names}
        fitting: list[CallBatch] = []
        for batch in left:
            if len(fitting) == _CALLS_AT_ONCE or not room:
                break
            if batch.queue in room and room[batch.queue] >= len(batch.rows):
                room[batch.queue] -= len(batch.rows)
                fitting.append(batch)
            elif room.pop(batch.queue, None) is not None and all(other.queue != batch.queue for other in fitting):
                full.add(batch.queue)
        return fitting

    def _queue_is_full(self, full: set[str]) -> QueueIsFull:
        names = ", ".join(sorted(full)[:3]) + (", …" if len(full) > 3 else "")
        return QueueIsFull(f"maxQueueDepth: {names}: no room below {self._depth} ready messages")
