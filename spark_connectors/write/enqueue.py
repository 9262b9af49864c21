"""`operation=enqueue`: rows become messages, each stored once however often it is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, compress
from typing import TypeVar

from rqttl import commands
from rqttl.commands import BATCH_BYTES, Command, Known, Reply
from rqttl.errors import MessageTooLarge, QueueFull, QueueNotFound
from rqttl.flows import Follow, Look, Together, fenced
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
            known = self._known(queue, fresh=True) or known
            large = [row for row in rows if sizes[row] > known.max_body]
            self._refuse_large(known, large)
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
            for piece, reply in self._calls(some):
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

    def _calls(self, pieces: Sequence[Piece]) -> list[tuple[Piece, Reply | None]]:
        """Send calls in one round trip. Returns each piece as it was stored, and its reply, `None` without a queue."""
        known = [(self._known(piece.queue), piece) for piece in pieces]
        calls = [self._call(one, piece) for one, piece in known if one is not None]
        replies = iter(self._insist(lambda: self._job.driver.step(Together(calls))) if calls else ())
        return [(piece, None) if one is None else self._settled(piece, next(replies)) for one, piece in known]

    def _settled(self, piece: Piece, reply: Reply) -> tuple[Piece, Reply | None]:
        """Return a piece and its reply. If the queue has changed, the call is made again by the options in force."""
        if reply[0] == b"ok":
            if reply[1]:
                self._job.driver.step(Follow(reply[1]))
            return piece, reply

        def build(known: Known) -> Command:
            nonlocal piece
            piece = self._fitting(known, piece)
            if not piece.rows:
                raise MessageTooLarge("every row of the call was refused")
            return self._call(known, piece)

        try:
            again = self._insist(lambda: self._job.driver.perform(fenced(piece.queue, build)))
        except (QueueNotFound, MessageTooLarge):
            return piece, None  # a piece of which no row fits has none
        return piece, again

    def _fitting(self, known: Known, piece: Piece) -> Piece:
        """Refuse the rows that are larger than the queue takes now. Returns the piece without them."""
        bodies = piece.sent[1::2] if self._named else [body for _, body in piece.sent]
        fits = [len(body) <= known.max_body for body in bodies]
        if all(fits):
            return piece
        self._refuse_large(known, [row for row, fit in zip(piece.rows, fits, strict=True) if not fit])
        rows = list(compress(piece.rows, fits))
        words = [fit for fit in fits for _ in range(2)] if self._named else fits
        return Piece(piece.queue, rows, list(compress(piece.sent, words)))

    def _call(self, known: Known, piece: Piece) -> Command:
        store = commands.enqueue_named if self._named else commands.enqueue
        return store(known, piece.sent, window=self._window)

    def _known(self, queue: str, *, fresh: bool = False) -> Known | None:
        try:
            known: Known = self._job.insist(lambda: self._job.driver.step(Look(queue, fresh=fresh)))
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

    def _refuse_large(self, known: Known, rows: Sequence[int]) -> None:
        self._refuse(rows, MessageTooLarge.code, f"body: larger than max_message_bytes, {known.max_body}")

    def _refuse(self, rows: Sequence[int], reason: str, why: str) -> None:
        for row in rows:
            self._batch.refuse(row, reason, why)


def _chosen(values: list[T], rows: Sequence[int]) -> list[T]:
    """The values of these rows; those of a run of rows without looking at each."""
    return values[rows.start : rows.stop] if isinstance(rows, range) else [values[row] for row in rows]


def _is_late(result: bytes) -> bool:
    """Whether a message was dead on arrival, according to what Redis says of it."""
    return result[:1] == b"~"
