"""`operation=enqueue`: rows become messages, each stored once however often it is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import TypeVar

from rqttl import commands
from rqttl.commands import BATCH_BYTES, Command, Known, Reply
from rqttl.errors import MessageTooLarge, QueueFull, QueueNotFound
from rqttl.flows import Flow, Follow, Look, Together, fenced
from spark_connectors.write.pieces import Job, Piece, Pump
from spark_connectors.write.rows import Batch, Messages, Packer

T = TypeVar("T")


class Enqueue:
    """Stores the rows of batches; those of one queue in their order, while no call has to be made again.

    After a call that Redis refused in part for lack of memory, what it had stored counts as duplicates.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._once = job.options.text("idempotency") == "required"
        self._window = job.options.number("idempotencyTtl") if self._once else 0
        self._pump = Pump(job, self._send)
        self._packer = Packer()
        self._batch: Batch
        self._named = False

    def write(self, batch: Batch) -> None:
        """Store the rows of a batch."""
        self._batch = batch
        messages = self._packer.messages(batch, ids_needed=self._once)
        self._named = messages.named
        self._pump.run(
            [piece for queue, rows in batch.by_queue().items() for piece in self._pieces(queue, rows, messages)]
        )

    def name(self, batch: Batch, row: int) -> str:
        """A row by its id."""
        ids = batch.column("id")
        return repr(None if ids is None else ids[row].as_py())[:80]

    def _pieces(self, queue: str, rows: Sequence[int], messages: Messages) -> Iterator[Piece]:
        """The rows of a queue as calls, none of them too large."""
        known = self._known(queue)
        if known is None:
            self._refuse_gone(queue, rows)
            return
        sizes = messages.sizes
        if max(sizes) > known.max_body:
            large = [row for row in rows if sizes[row] > known.max_body]
            self._refuse(large, MessageTooLarge.code, f"body: larger than max_message_bytes, {known.max_body}")
            rows = [row for row in rows if sizes[row] <= known.max_body]
        start = 0
        while start < len(rows):
            some = rows[start : start + self._pump.size]
            while len(some) > 1 and sum(_chosen(sizes, some)) > BATCH_BYTES:
                some = some[: len(some) // 2]
            pairs = zip(_chosen(messages.said, some), _chosen(messages.bodies, some), strict=True)
            yield Piece(queue, some, list(chain.from_iterable(pairs) if messages.named else pairs))
            start += len(some)

    def _send(self, pieces: Sequence[Piece]) -> None:
        """Store pieces, in one round trip where that keeps the order."""
        start = 0
        while start < len(pieces):
            some = pieces[start : start + self._independent(pieces[start:])]
            for piece, reply in zip(some, self._calls(some), strict=True):
                if reply is None:
                    self._refuse_gone(piece.queue, piece.rows)
                else:
                    self._count(piece, reply[2])
            start += len(some)

    def _independent(self, pieces: Sequence[Piece]) -> int:
        """How many of the first may go together. One of a queue with limits must not overtake another one of it."""
        limited: set[str] = set()
        for i, piece in enumerate(pieces):
            if piece.queue in limited:
                return i
            known = self._known(piece.queue)
            if known is None or known.limited:
                limited.add(piece.queue)
        return len(pieces)

    def _calls(self, pieces: Sequence[Piece]) -> list[Reply | None]:
        """The replies to calls in one round trip, `None` where a queue is gone."""
        known = [(self._known(piece.queue), piece) for piece in pieces]
        calls = [self._call(one, piece) for one, piece in known if one is not None]
        replies = iter(self._insist(lambda: self._job.driver.step(Together(calls))) if calls else ())
        return [None if one is None else self._settled(piece, next(replies)) for one, piece in known]

    def _settled(self, piece: Piece, reply: Reply) -> Reply | None:
        """The reply to a call, which is made again with what is known now if the queue has changed meanwhile."""
        if reply[0] == b"ok":
            if reply[1]:
                self._job.driver.step(Follow(reply[1]))
            return reply
        try:
            return self._insist(lambda: self._job.driver.perform(self._again(piece)))
        except QueueNotFound:
            return None

    def _again(self, piece: Piece) -> Flow[Reply]:
        return fenced(piece.queue, lambda known: self._call(known, piece))

    def _call(self, known: Known, piece: Piece) -> Command:
        store = commands.enqueue_named if self._named else commands.enqueue
        return store(known, piece.sent, window=self._window)

    def _known(self, queue: str) -> Known | None:
        try:
            known: Known = self._job.insist(lambda: self._job.driver.step(Look(queue)))
        except QueueNotFound:
            return None
        return known

    def _insist(self, call: Callable[[], T]) -> T:
        return self._job.insist(call, repeatable=self._once)

    def _count(self, piece: Piece, results: Sequence[bytes]) -> None:
        repeated, refused = results.count(b"="), 0
        if min(results) < b'"':
            for row, result in zip(piece.rows, results, strict=True):
                if result[:1] == b"!":
                    refused += 1
                    self._batch.refuse(row, QueueFull.code, f"queue {piece.queue!r} is full: {result[1:].decode()}")
        self._job.report.counts["stored"] += len(results) - repeated - refused
        self._job.report.counts["duplicates"] += repeated
        if late := self._late(piece, results):
            self._job.report.counts["late"] += late

    def _late(self, piece: Piece, results: Sequence[bytes]) -> int:
        """How many of the rows stored came after their `expires_at`. A TTL of 0 is meant as it is said."""
        ends = self._batch.column("expires_at")
        if ends is None:
            return 0
        return sum(_is_late(result) and ends[row].is_valid for row, result in zip(piece.rows, results, strict=True))

    def _refuse_gone(self, queue: str, rows: Sequence[int]) -> None:
        error = QueueNotFound(queue)
        self._refuse(rows, error.code, str(error))

    def _refuse(self, rows: Sequence[int], reason: str, why: str) -> None:
        for row in rows:
            self._batch.refuse(row, reason, why)


def _chosen(values: list[T], rows: Sequence[int]) -> list[T]:
    """The values of these rows; those of a run of rows without looking at each."""
    return values[rows.start : rows.stop] if isinstance(rows, range) else [values[row] for row in rows]


def _is_late(result: bytes) -> bool:
    """Whether a message was dead on arrival, according to what Redis says of it."""
    return result[:1] == b"~"
