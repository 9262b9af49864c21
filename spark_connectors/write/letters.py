"""`operation=redrive` and `operation=purge`: dead letters go back to where they died, or go for good.

A letter that is not there any more, or is in somebody's hands, counts as gone: whoever writes the same rows again finds
what went the first time. So nothing is moved or removed twice.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

from rqttl import codec, commands
from rqttl.commands import Reply
from rqttl.errors import InvalidInput, QueueFull, QueueNotFound
from rqttl.flows import Together
from rqttl.keys import check_queue_name
from rqttl.types import Death, Redriven
from spark_connectors.write.pieces import Job, Piece, Pump
from spark_connectors.write.rows import Batch

#: Letters that are looked at in one round trip.
_LOOKED = 50
History: TypeAlias = tuple[Death, ...]
#: Why a letter stays where it is: what `Redriven.outcome` says, as reason and in words.
_WHY = {
    "full": (QueueFull.code, "queue {queue!r} is full: {limit}"),
    "no_origin": (QueueNotFound.code, "queue {queue!r}, where it died, does not exist any more"),
    "same_queue": ("same_queue", "it died in queue {queue!r} itself"),
}


class _Letters:
    """What both operations do with the rows of a batch."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._pump = Pump(job, self._send)
        self._batch: Batch

    def write(self, batch: Batch) -> None:
        """Move or remove the letters of a batch."""
        self._batch = batch
        batch.refuse_nulls("sequence")
        places = batch.values("sequence") or []
        for row, place in enumerate(places):
            if place is not None and not codec.is_sequence(place):
                batch.refuse(row, "invalid_sequence", f"expected a value of the reader's column, got {place[:80]!r}")
        pieces = []
        for queue, rows in batch.by_queue().items():
            pieces += self._pieces(queue, rows, places)
        self._pump.run(pieces)

    def name(self, batch: Batch, row: int) -> str:
        """A row by its letter: queue and sequence."""
        queues, places = batch.column("queue"), batch.column("sequence")
        queue = self._job.plan.queue if queues is None else queues[row].as_py()
        return f"{str(queue)[:80]}/{'' if places is None else str(places[row].as_py())[:40]}"

    def _cut(self, queue: str, rows: Sequence[int], sent: Sequence[object]) -> list[Piece]:
        size = self._pump.size
        return [Piece(queue, rows[i : i + size], sent[i : i + size]) for i in range(0, len(rows), size)]

    def _pieces(self, queue: str, rows: Sequence[int], places: Sequence[str]) -> list[Piece]:
        raise NotImplementedError

    def _send(self, pieces: Sequence[Piece]) -> None:
        raise NotImplementedError


class Purge(_Letters):
    """Removes letters."""

    def _pieces(self, queue: str, rows: Sequence[int], places: Sequence[str]) -> list[Piece]:
        return self._cut(queue, rows, [places[row] for row in rows])

    def _send(self, pieces: Sequence[Piece]) -> None:
        for piece in pieces:
            purge = partial(self._job.broker.queue(piece.queue).purge, piece.sent)
            try:
                purged = self._job.insist(purge)
            except QueueNotFound:
                purged = 0
            self._job.report.counts["purged"] += purged
            self._job.report.counts["gone"] += len(piece.rows) - purged


class Redrive(_Letters):
    """Puts letters back. One whose queue has no room or is not there stays where it is, and its row is refused."""

    def _pieces(self, queue: str, rows: Sequence[int], places: Sequence[str]) -> list[Piece]:
        pieces = []
        for origin, some in self._by_origin(queue, rows, places).items():
            pieces += self._cut(origin, some, [(queue, places[row]) for row in some])
        return pieces

    def _by_origin(self, queue: str, rows: Sequence[int], places: Sequence[str]) -> dict[str, list[int]]:
        """The rows of each queue that letters go to: that of the column `source`, or where a letter died last."""
        origins = self._batch.values("source")
        found: Mapping[int, str | None] = (
            self._looked_up(queue, rows, places) if origins is None else dict(enumerate(origins))
        )
        sorted_out: dict[str, list[int]] = defaultdict(list)
        for row in (row for row in rows if row in found):
            origin = found[row]
            if origin is None:
                self._batch.refuse(row, "no_source", "it never died, so there is nowhere to put it back")
                continue
            try:
                sorted_out[check_queue_name(origin)].append(row)
            except InvalidInput as error:
                self._batch.refuse(row, error.code, str(error))
        return sorted_out

    def _looked_up(self, queue: str, rows: Sequence[int], places: Sequence[str]) -> dict[int, str | None]:
        """Where the letters of these rows died last, without those that are gone."""
        found: dict[int, str | None] = {}
        for start in range(0, len(rows), _LOOKED):
            some = rows[start : start + _LOOKED]
            for row, deaths in zip(some, self._deaths(queue, [places[row] for row in some]), strict=True):
                if deaths is None:
                    self._job.report.counts["gone"] += 1
                else:
                    found[row] = deaths[0].queue if deaths else None
        return found

    def _deaths(self, queue: str, places: Sequence[str]) -> list[History | None]:
        """The deaths of some letters, `None` for what is not there."""
        keyspace = self._job.driver.keyspace
        calls = [commands.peek(keyspace, queue, after=codec.sequence_before(place), limit=1) for place in places]
        replies: list[Reply] = self._job.insist(lambda: self._job.driver.step(Together(calls)))
        found: list[History | None] = []
        for place, reply in zip(places, replies, strict=True):
            # a queue that is not there, or whose lifetime is over, holds nothing
            entries: Sequence[Any] = reply[4] if reply[0] == b"ok" else ()
            there = bool(entries) and entries[0][0].decode() == place
            found.append(codec.unpack_header(entries[0][1][0]).deaths if there else None)
        return found

    def _send(self, pieces: Sequence[Piece]) -> None:
        for piece in pieces:
            try:
                told = self._put_back(piece)
            except QueueNotFound:
                told = []
                self._job.report.counts["gone"] += len(piece.rows)
            for row, one in zip(piece.rows, told, strict=False):
                if one.outcome in ("moved", "gone"):
                    self._job.report.counts[one.outcome] += 1
                else:
                    reason, why = _WHY[one.outcome]
                    self._batch.refuse(row, reason, why.format(queue=one.origin, limit=one.limit))

    def _put_back(self, piece: Piece) -> list[Redriven]:
        queue = self._job.broker.queue(piece.sent[0][0])
        letters = [(place, piece.queue) for _, place in piece.sent]
        return self._job.insist(lambda: queue.redrive_these(letters))
