"""`operation=redrive` and `operation=purge`: dead letters go back to the queue of their death, or are removed.

One that is deleted, leased or delayed counts as `unavailable`. A repeated write of the same rows meets those of the
first write as unavailable, so nothing is moved or removed twice.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

from rqttl.checks import check_queue_name
from rqttl.errors import InvalidInput, QueueFull, QueueNotFound
from rqttl.flows.steps import NOT_THERE, pipeline
from rqttl.protocol import codec, commands
from rqttl.protocol.commands import Refused
from rqttl.types import Death, RedriveResult
from spark_connectors.write.rows import RowBatch
from spark_connectors.write.sender import BatchSender, CallBatch, WriteTask

#: The number of dead letters that one round trip peeks at.
_PEEKS_AT_ONCE = 50
History: TypeAlias = tuple[Death, ...]
#: The reason and the cause of each outcome that leaves the dead letter in its queue.
_REFUSALS = {
    "full": (QueueFull.code, "queue {queue!r} is full: {limit}"),
    "no_origin": (QueueNotFound.code, "queue {queue!r}, where it died, does not exist any more"),
    "same_queue": ("same_queue", "it died in queue {queue!r} itself"),
}
#: The causes that differ if the column `source` names the target.
_CAUSES_OF_SOURCE = {
    "no_origin": "queue {queue!r} of column source does not exist",
    "same_queue": "column source names queue {queue!r}, which it is in",
}
#: The causes of a column `source` without a value, and of a dead letter without deaths.
_NO_TARGET = {
    True: "column source is null, so there is no queue to put it back into",
    False: "it never died, so there is no queue to put it back into",
}


class _LetterOperation:
    """The common part of both operations."""

    def __init__(self, task: WriteTask) -> None:
        self._task = task
        self._sender = BatchSender(task, self._send)
        self._batch: RowBatch

    def write(self, batch: RowBatch) -> None:
        """Move or remove the dead letters of a batch."""
        self._batch = batch
        batch.refuse_nulls("sequence")
        sequences = batch.values("sequence") or []
        for row, sequence in enumerate(sequences):
            if sequence is not None and not codec.is_sequence(sequence):
                batch.refuse(row, "invalid_sequence", f"expected a value of the reader's column, got {sequence[:80]!r}")
        calls = []
        for queue, rows in batch.by_queue().items():
            calls += self._call_batches(queue, rows, sequences)
        self._sender.send_all(calls)

    def row_name(self, batch: RowBatch, row: int) -> str:
        """Return queue and sequence of a dead letter."""
        queues, sequences = batch.column("queue"), batch.column("sequence")
        queue = self._task.plan.queue if queues is None else queues[row].as_py()
        return f"{str(queue)[:80]}/{'' if sequences is None else str(sequences[row].as_py())[:40]}"

    def _split(self, queue: str, rows: Sequence[int], arguments: Sequence[object]) -> list[CallBatch]:
        size = self._sender.rows
        return [CallBatch(queue, rows[i : i + size], arguments[i : i + size]) for i in range(0, len(rows), size)]

    def _call_batches(self, queue: str, rows: Sequence[int], sequences: Sequence[str]) -> list[CallBatch]:
        raise NotImplementedError

    def _send(self, calls: Sequence[CallBatch]) -> None:
        raise NotImplementedError


class Purge(_LetterOperation):
    """Removes letters."""

    def _call_batches(self, queue: str, rows: Sequence[int], sequences: Sequence[str]) -> list[CallBatch]:
        return self._split(queue, rows, [sequences[row] for row in rows])

    def _send(self, calls: Sequence[CallBatch]) -> None:
        for call in calls:
            purge = partial(self._task.broker.queue(call.queue).purge_many, call.arguments)
            try:
                purged = self._task.with_retries(purge, [call.queue])
            except QueueNotFound:
                purged = 0
            self._task.report.count(call.queue, "purged", purged)
            self._task.report.count(call.queue, "unavailable", len(call.rows) - purged)
            call.sent = True


class Redrive(_LetterOperation):
    """Moves dead letters back. If the target is full or missing, they stay and their rows are refused."""

    def _call_batches(self, queue: str, rows: Sequence[int], sequences: Sequence[str]) -> list[CallBatch]:
        calls = []
        for origin, origin_rows in self._by_origin(queue, rows, sequences).items():
            calls += self._split(origin, origin_rows, [(queue, sequences[row]) for row in origin_rows])
        return calls

    def _by_origin(self, queue: str, rows: Sequence[int], sequences: Sequence[str]) -> dict[str, list[int]]:
        """Group rows by the target of their letters: the column `source`, or the queue of the last death."""
        sources = self._batch.values("source")
        origins: Mapping[int, str | None] = (
            self._last_queues(queue, rows, sequences) if sources is None else dict(enumerate(sources))
        )
        by_origin: dict[str, list[int]] = defaultdict(list)
        for row in (row for row in rows if row in origins):
            origin = origins[row]
            if origin is None:
                self._batch.refuse(row, "no_source", _NO_TARGET[sources is not None])
                continue
            try:
                by_origin[check_queue_name(origin)].append(row)
            except InvalidInput as error:
                self._batch.refuse(row, error.code, str(error))
        return by_origin

    def _last_queues(self, queue: str, rows: Sequence[int], sequences: Sequence[str]) -> dict[int, str | None]:
        """Return the queue of the last death of each dead letter. Unavailable ones are counted and left out."""
        origins: dict[int, str | None] = {}
        for start in range(0, len(rows), _PEEKS_AT_ONCE):
            chunk = rows[start : start + _PEEKS_AT_ONCE]
            for row, deaths in zip(chunk, self._deaths(queue, [sequences[row] for row in chunk]), strict=True):
                if deaths is None:
                    self._task.report.count(queue, "unavailable", 1)
                else:
                    origins[row] = deaths[0].queue if deaths else None
        return origins

    def _deaths(self, queue: str, sequences: Sequence[str]) -> list[History | None]:
        """Return the deaths of dead letters; `None` for one that does not exist."""
        keyspace = self._task.driver.keyspace
        peeks = [commands.peek(keyspace, queue, after=codec.sequence_before(item), limit=1) for item in sequences]
        pages = self._task.with_retries(lambda: self._task.driver.perform(pipeline(peeks, NOT_THERE)), [queue])
        histories: list[History | None] = []
        for sequence, page in zip(sequences, pages, strict=True):
            # a missing or expired queue holds nothing
            entries: Sequence[Any] = () if type(page) is Refused else page.entries
            exists = bool(entries) and entries[0][0].decode() == sequence
            histories.append(codec.unpack_header(entries[0][1][0]).deaths if exists else None)
        return histories

    def _send(self, calls: Sequence[CallBatch]) -> None:
        for call in calls:
            holder: str = call.arguments[0][0]
            try:
                results = self._put_back(call)
            except QueueNotFound:
                results = []
                self._task.report.count(holder, "unavailable", len(call.rows))
            for row, result in zip(call.rows, results, strict=False):
                if result.outcome not in _REFUSALS:
                    self._task.report.count(holder, result.outcome, 1)
                else:
                    reason, cause = _REFUSALS[result.outcome]
                    if self._batch.column("source") is not None:
                        cause = _CAUSES_OF_SOURCE.get(result.outcome, cause)
                    self._batch.refuse(row, reason, cause.format(queue=result.origin, limit=result.limit))
            call.sent = True

    def _put_back(self, call: CallBatch) -> list[RedriveResult]:
        queue = self._task.broker.queue(call.arguments[0][0])
        letters = [(sequence, call.queue) for _, sequence in call.arguments]
        return self._task.with_retries(lambda: queue.redrive_many(letters), [call.arguments[0][0], call.queue])
