"""`operation=enqueue`: rows become messages. Repeated writes of a row store it once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, compress, groupby
from typing import TypeVar

from rqttl.errors import MessageTooLarge, QueueFull, QueueNotFound
from rqttl.flows.steps import OUTDATED, Flow, GetConfig, pipeline, with_config
from rqttl.protocol import commands
from rqttl.protocol.commands import BATCH_BYTES, Command, Ok, QueueConfig, Refused
from spark_connectors.write.report import LATE
from spark_connectors.write.rows import MessageEncoder, Messages, RowBatch
from spark_connectors.write.sender import BatchSender, CallBatch, WriteTask

T = TypeVar("T")
#: The number of arguments of a scheduled row: due time, envelope and body.
_SCHEDULED = 3


class Enqueue:
    """Stores the rows of batches. Rows of one queue keep their order, unless a call is repeated.

    Without idempotency a call is made again only if Redis has certainly stored none of its rows.
    """

    def __init__(self, task: WriteTask) -> None:
        self._task = task
        self._once = task.options.text("idempotency") == "required"
        self._window = task.options.number("idempotencyTtl") if self._once else 0
        self._sender = BatchSender(task, self._send)
        self._encoder = MessageEncoder()
        self._batch: RowBatch
        self._messages: Messages

    def write(self, batch: RowBatch) -> None:
        """Store the rows of a batch."""
        self._batch = batch
        messages = self._encoder.messages(batch, ids_needed=self._once)
        self._messages = messages
        by_queue = batch.by_queue().items()
        self._sender.send_all([call for queue, rows in by_queue for call in self._call_batches(queue, rows, messages)])

    def row_name(self, batch: RowBatch, row: int) -> str:
        """Return the message id of a row."""
        ids = batch.column("message_id")
        return repr(None if ids is None else ids[row].as_py())[:80]

    def _call_batches(self, queue: str, rows: Sequence[int], messages: Messages) -> Iterator[CallBatch]:
        """Split the rows of a queue into call batches. None of them is too large for a call."""
        config = self._config(queue)
        if config is None:
            self._refuse_missing_queue(queue, rows)
            return
        sizes = messages.sizes
        if max(sizes) > config.max_body:
            config = self._config(queue, fresh=True) or config
            large = [row for row in rows if sizes[row] > config.max_body]
            self._refuse_large(config, large)
            rows = [row for row in rows if sizes[row] <= config.max_body]
        for dues, run in _runs(messages, rows):
            arguments = [*([] if dues is None else [dues]), messages.envelopes, messages.bodies]
            start = 0
            while start < len(run):
                chunk = run[start : start + self._sender.rows]
                while len(chunk) > 1 and sum(_select(sizes, chunk)) > BATCH_BYTES:
                    chunk = chunk[: len(chunk) // 2]
                words = zip(*[_select(column, chunk) for column in arguments], strict=True)
                yield CallBatch(queue, chunk, list(chain.from_iterable(words)), len(arguments))
                start += len(chunk)

    def _send(self, calls: Sequence[CallBatch]) -> None:
        """Send calls, in one round trip if that keeps the order."""
        start = 0
        while start < len(calls):
            together = calls[start : start + self._independent(calls[start:])]
            for call, (stored, reply) in zip(together, self._replies(together), strict=True):
                if reply is None:
                    self._refuse_missing_queue(stored.queue, stored.rows)
                else:
                    self._count(stored, reply.results)
                call.sent = True
            start += len(together)

    def _independent(self, calls: Sequence[CallBatch]) -> int:
        """Count the first calls that may go together. Of a queue with limits, no call may overtake another one.

        Calls that must not be repeated are of one slot: else one node could store its part, and another one fail.
        """
        limited, far = set[str](), self._task.driver.keyspace.in_another_slot
        for i, call in enumerate(calls):
            if call.queue in limited or (not self._once and far(calls[0].queue, call.queue)):
                return i
            config = self._config(call.queue)
            if config is None or config.limited:
                limited.add(call.queue)
        return len(calls)

    def _replies(self, calls: Sequence[CallBatch]) -> Iterator[tuple[CallBatch, Ok | None]]:
        """Make calls in one round trip. Yields each call as it was stored, with its reply; `None` without a queue."""
        configs = [(self._config(call.queue), call) for call in calls]
        scripts = [self._command(config, call) for config, call in configs if config is not None]
        queues = [call.queue for call in calls]
        replies = iter(self._store(lambda: pipeline(scripts, OUTDATED), queues) if scripts else [])
        for config, call in configs:
            yield (call, None) if config is None else self._final_reply(call, next(replies))

    def _final_reply(self, call: CallBatch, reply: Ok | Refused) -> tuple[CallBatch, Ok | None]:
        """Return a call and its reply. If the queue has changed, repeat the call with the options in force."""
        if type(reply) is not Refused:
            return call, reply

        def build(config: QueueConfig) -> Command:
            nonlocal call
            call = self._fitting(config, call)
            if not call.rows:
                raise MessageTooLarge("every row of the call was refused")
            return self._command(config, call)

        try:
            repeated = self._store(lambda: with_config(call.queue, build), [call.queue])
        except (QueueNotFound, MessageTooLarge):
            # after `MessageTooLarge` the call has no rows left
            return call, None
        return call, repeated

    def _fitting(self, config: QueueConfig, call: CallBatch) -> CallBatch:
        """Refuse rows that are too large for the present options of the queue. Returns the call without them."""
        fits = [len(body) <= config.max_body for body in call.arguments[call.width - 1 :: call.width]]
        if all(fits):
            return call
        self._refuse_large(config, [row for row, fit in zip(call.rows, fits, strict=True) if not fit])
        rows = list(compress(call.rows, fits))
        kept = [fit for fit in fits for _ in range(call.width)]
        return CallBatch(call.queue, rows, list(compress(call.arguments, kept)), call.width)

    def _command(self, config: QueueConfig, call: CallBatch) -> Command:
        batch = self._messages
        if call.width == _SCHEDULED:
            return commands.schedule_encoded(config, call.arguments, has_ids=batch.has_ids, window=self._window)
        return commands.enqueue_encoded(
            config,
            call.arguments,
            has_ids=batch.has_ids,
            ids_only=batch.ids_only,
            may_be_over=batch.may_be_over,
            window=self._window,
        )

    def _config(self, queue: str, *, fresh: bool = False) -> QueueConfig | None:
        try:
            config: QueueConfig = self._task.with_retries(
                lambda: self._task.driver.step(GetConfig(queue, fresh=fresh)), [queue]
            )
        except QueueNotFound:
            return None
        return config

    def _store(self, flow: Callable[[], Flow[T]], queues: Sequence[str]) -> T:
        return self._task.store(flow, queues, repeatable=self._once)

    def _count(self, call: CallBatch, results: Sequence[bytes]) -> None:
        duplicates, refused = results.count(b"="), 0
        if min(results) < b'"':
            for row, result in zip(call.rows, results, strict=True):
                if result[:1] == b"!":
                    refused += 1
                    self._batch.refuse(row, QueueFull.code, f"queue {call.queue!r} is full: {result[1:].decode()}")
        self._task.report.count(call.queue, "stored", len(results) - duplicates - refused)
        self._task.report.count(call.queue, "duplicates", duplicates)
        if late := self._late(call, results):
            self._task.report.count(call.queue, LATE, late)

    def _late(self, call: CallBatch, results: Sequence[bytes]) -> int:
        """Count the stored rows that came after their `expires_at`. A row with a TTL of 0 is not late."""
        deadlines = self._batch.column("expires_at")
        if deadlines is None:
            return 0
        pairs = zip(call.rows, results, strict=True)
        return sum(result[:1] == b"~" and deadlines[row].is_valid for row, result in pairs)

    def _refuse_missing_queue(self, queue: str, rows: Sequence[int]) -> None:
        error = QueueNotFound(queue)
        self._refuse(rows, error.code, str(error))

    def _refuse_large(self, config: QueueConfig, rows: Sequence[int]) -> None:
        self._refuse(
            rows,
            MessageTooLarge.code,
            f"body: larger than max_message_bytes of queue {config.name!r}, {config.max_body}",
        )

    def _refuse(self, rows: Sequence[int], reason: str, cause: str) -> None:
        for row in rows:
            self._batch.refuse(row, reason, cause)


def _runs(messages: Messages, rows: Sequence[int]) -> Iterator[tuple[list[bytes] | None, Sequence[int]]]:
    """Split rows into neighbours of one kind: with their due times, or `None` for messages that arrive at once."""
    dues = messages.dues
    if dues is None:
        yield None, rows
        return
    for later, run in groupby(rows, key=lambda row: bool(dues[row])):
        yield (dues if later else None), list(run)


def _select(values: list[T], rows: Sequence[int]) -> list[T]:
    """Return the values of these rows. For a run of rows this is one slice."""
    return values[rows.start : rows.stop] if isinstance(rows, range) else [values[row] for row in rows]
