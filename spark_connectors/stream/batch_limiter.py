"""The end of a batch with a limit: the limit is shared out over the queues, by time or equally."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from rqttl.protocol.keys import DETACHED, LOG, Keyspace
from spark_connectors.options.options import Options
from spark_connectors.ranges import sequence_number, sequence_text
from spark_connectors.read.arrivals import STEP, ArrivalIndex, MarkRequest, Marks
from spark_connectors.read.positions import QueuePosition, QueueState
from spark_connectors.read.watch import execute_many
from spark_connectors.redis.bulk_reader import BulkReader, xrange_command
from spark_connectors.stream.budget_scan import BudgetScan, MessageSizes
from spark_connectors.stream.leap import Leap, Stretch, leaps
from spark_connectors.stream.limits import FairShare, QueueShare, ReadRequest, ReadResult
from spark_connectors.stream.time_scan import TimeScan
from spark_connectors.stream.time_share import ReadAhead, TimeShare, UnreadRange


@dataclass(frozen=True, slots=True)
class BatchLimit:
    """The largest number of messages in a batch, or of bytes of their headers and bodies."""

    amount: int
    in_bytes: bool = False


@dataclass(frozen=True, slots=True)
class Unread:
    """A queue with unread messages, at most `rows` of them; `detached` is true if some of them lie outside the log.

    A batch has the messages up to `begin` (empty: none) in any case, and shares its limit among later ones.
    """

    position: QueuePosition
    state: QueueState
    rows: int
    detached: bool
    begin: str = ""

    def is_loose(self, marks: Marks) -> bool:
        """True if far more messages than unread ones have arrived between the known number and the first mark."""
        inside = self._inside(marks, sequence_number(self.position.after))
        known = max(self.position.received, marks.count_upto(sequence_number(self.position.after)))
        return len(inside) > 0 and int(inside.counts[0]) - known > 2 * STEP

    def stretch(self, marks: Marks | None, first: int | None) -> Stretch:
        """Return the unread part with its marks. `first` is the first unread message, where it is known.

        Without marks, or if more than a tenth of the arrivals have left the queue, it has none: batches would be too
        small.
        """
        after, received, arrived = sequence_number(self.position.after), self.position.received, self.state.enqueued
        if marks is not None:
            after = after if first is None else max(after, first - 1)
            received = max(received, marks.count_upto(after))
            inside = self._inside(marks, after)
            if self.rows * 10 >= (arrived - received) * 9:
                return Stretch(after, received, arrived, inside)
        return Stretch(after, received, received + self.rows, Marks.parse(()))

    def leapt(self, leap: Leap | None) -> Unread:
        """Return the queue, of which a batch has all messages up to a mark, if there is one."""
        if leap is None:
            return self
        position = replace(self.position, received=leap.count)
        rows = max(1, min(self.rows, self.state.enqueued - leap.count))
        return replace(self, position=position, rows=rows, begin=sequence_text(leap.sequence))

    def end(self, after: str, rows: int) -> QueuePosition:
        """Return the position at the end of a batch, `rows` messages after the begin of the shared part."""
        return self.position.advanced(after, rows, self.state) if after > self.position.after else self.position

    def _inside(self, marks: Marks, after: int) -> Marks:
        """Return the marks in the unread part. Numbers that the queue has not reached are damage, and left out."""
        return marks.between(after, sequence_number(self.state.last_sequence)).within(self.state.enqueued)

    def share(self) -> QueueShare:
        """Return the empty share of the queue in an equal division."""
        return QueueShare(self.position.after, self.state.last_sequence)

    def after_share(self, share: QueueShare) -> QueuePosition:
        """Return the position after the messages of a share."""
        return self.position.advanced(share.upto if share.done else share.after, share.rows, self.state)


class TimeOutcome(Protocol):
    """The outcome of a share by time for the queues of one server; see `TimeShare`."""

    def end_of(self, queue: str) -> int:
        """Return the number of the sequence at which the range of a queue ends."""

    def rows_of(self, queue: str) -> int:
        """Return the number of messages of a queue in the batch."""

    def read_ahead(self) -> dict[str, ReadAhead]:
        """Return the messages of each queue that the batch has not taken."""


class BatchLimiter:
    """Finds the ends of batches with a limit, for one query.

    It keeps the messages that a share by time has read beyond the end of a batch, and reads them from Redis only once.
    """

    def __init__(self, options: Options, keys: Keyspace) -> None:
        self._keys = keys
        self._equal = options.text("shareLimit") == "equal"
        self._max_entries, self._reply_bytes = options.number("fetchEntries"), options.number("fetchBytes")
        self.scan = TimeScan(keys, max_entries=self._max_entries, reply_bytes=self._reply_bytes)
        self._index = ArrivalIndex(keys)
        #: The messages read ahead, by queue and its creation time.
        self._ahead: dict[tuple[str, int], ReadAhead] = {}

    def unread(
        self, reader: BulkReader, positions: Mapping[str, QueuePosition], states: Mapping[str, QueueState]
    ) -> dict[str, Unread]:
        """Return the queues that may have unread messages, with an upper bound of their number."""
        behind = [name for name, position in positions.items() if position.after < states[name].last_sequence]
        parts = (("XLEN", LOG), ("HLEN", DETACHED))
        replies = execute_many(
            reader, [(command, self._keys.key(name, part)) for name in behind for command, part in parts]
        )
        unread = {}
        for name, logged, detached in zip(behind, replies[::2], replies[1::2], strict=True):
            rows = min(logged + detached, positions[name].max_unread(states[name]))
            if rows:
                unread[name] = Unread(positions[name], states[name], rows, bool(detached))
        return unread

    def ends(
        self, reader: BulkReader, unread: Mapping[str, Unread], limit: BatchLimit, next_queue: str
    ) -> tuple[dict[str, QueuePosition], str]:
        """Return the positions at the end of the batch, and the queue that the next batch serves first.

        Queues that the batch reads to their end are left out if the limit admits all messages.
        """
        if not limit.in_bytes and sum(queue.rows for queue in unread.values()) <= limit.amount:
            return {}, ""
        if self._equal:
            return self._share_equally(reader, unread, limit, next_queue)
        return self._share_by_time(reader, unread, limit), ""

    def _share_by_time(
        self, reader: BulkReader, unread: Mapping[str, Unread], limit: BatchLimit
    ) -> dict[str, QueuePosition]:
        total = sum(queue.rows for queue in unread.values())
        reached = {} if limit.in_bytes else leaps(limit.amount, self.stretches(reader, unread, limit.amount, total))
        unread = {name: queue.leapt(reached.get(name)) for name, queue in unread.items()}
        left = limit.amount - sum(leap.rows for leap in reached.values())
        if left == 0:
            return {name: queue.end(queue.begin, 0) for name, queue in unread.items()}
        share = TimeShare(left, self.unread_ranges(reader, unread), in_bytes=limit.in_bytes)
        self.scan.run(reader, share)
        return self.ends_by_time(unread, share)

    def stretches(self, reader: BulkReader, unread: Mapping[str, Unread], limit: int, total: int) -> dict[str, Stretch]:
        """Return the unread part of each queue, with the marks in it that this limit may reach.

        `total` is the number of unread messages of all queues that share the limit.
        """
        requests = [
            MarkRequest(name, queue.position.after, queue.state.last_sequence, _marks_within(limit, queue.rows, total))
            for name, queue in unread.items()
            if queue.rows >= STEP and limit >= STEP
        ]
        marks = self._index.read(reader, requests)
        firsts = self._first_messages(reader, {name: unread[name] for name in marks}, marks)
        return {name: queue.stretch(marks.get(name), firsts.get(name)) for name, queue in unread.items()}

    def _first_messages(
        self, reader: BulkReader, unread: Mapping[str, Unread], marks: Mapping[str, Marks]
    ) -> dict[str, int]:
        """Return the first unread messages of queues whose number of arrivals is only known to be much too low.

        So it is for a new query over a queue that has lost its first letters.
        """
        loose = [name for name, queue in unread.items() if not queue.detached and queue.is_loose(marks[name])]
        commands = [
            xrange_command(self._keys.key(name, LOG), unread[name].position.after, unread[name].state.last_sequence, 1)
            for name in loose
        ]
        replies = execute_many(reader, commands)
        return {name: sequence_number(reply[0][0]) for name, reply in zip(loose, replies, strict=True) if reply}

    def unread_ranges(self, reader: BulkReader, unread: Mapping[str, Unread]) -> dict[str, UnreadRange]:
        """Return the ranges of a share by time, with the messages that are read ahead."""
        return {name: self._unread_range(reader, name, queue) for name, queue in unread.items()}

    def ends_by_time(self, unread: Mapping[str, Unread], share: TimeOutcome) -> dict[str, QueuePosition]:
        """Return the positions after a share by time, and keep the messages beyond them."""
        self._ahead = {(name, unread[name].state.created_at): ahead for name, ahead in share.read_ahead().items()}
        return {
            name: queue.end(sequence_text(share.end_of(name)), share.rows_of(name)) for name, queue in unread.items()
        }

    def _unread_range(self, reader: BulkReader, name: str, queue: Unread) -> UnreadRange:
        after = sequence_number(queue.begin or queue.position.after)
        upto = sequence_number(queue.state.last_sequence)
        ahead = self._ahead.get((name, queue.state.created_at))
        if ahead is None or ahead.after > after:
            # the query has gone back, or starts here
            ahead = ReadAhead(after, after)
        if queue.detached:
            messages = self._detached_sizes(reader, name)
            ahead = replace(
                ahead,
                numbers=np.append(ahead.numbers, np.array([sequence_number(text) for text, _ in messages], np.int64)),
                sizes=np.append(ahead.sizes, np.array([size for _, size in messages], np.int64)),
            )
        return UnreadRange(after, upto, queue.rows, ahead)

    def _share_equally(
        self, reader: BulkReader, unread: Mapping[str, Unread], limit: BatchLimit, next_queue: str
    ) -> tuple[dict[str, QueuePosition], str]:
        shares = {name: queue.share() for name, queue in unread.items()}
        fair = FairShare(limit.amount, shares, next_queue)
        serve(fair, self.budget_scan(reader, unread, limit).answer)
        return {name: unread[name].after_share(share) for name, share in fair.shares.items()}, fair.next_queue

    def budget_scan(self, reader: BulkReader, unread: Mapping[str, Unread], limit: BatchLimit) -> BudgetScan:
        """Make the scan of an equal share."""
        return BudgetScan(
            reader,
            self._keys,
            {name: self._detached_sizes(reader, name) for name, queue in unread.items() if queue.detached},
            in_bytes=limit.in_bytes,
            max_entries=self._max_entries,
            reply_bytes=self._reply_bytes,
        )

    def _detached_sizes(self, reader: BulkReader, name: str) -> MessageSizes:
        """Return the detached messages of a queue, in order."""
        pages = reader.hash_pages(self._keys.key(name, DETACHED))
        sizes = {sequence.decode(): len(packed) - packed.index(b":") - 1 for page in pages for sequence, packed in page}
        return sorted(sizes.items())


def serve(fair: FairShare, answer: Callable[[list[ReadRequest]], list[ReadResult]]) -> None:
    """Answer the requests of an equal share until it is complete."""
    rounds = fair.run()
    try:
        requests = next(rounds)
        while True:
            requests = rounds.send(answer(requests))
    except StopIteration:
        return


def _marks_within(limit: int, rows: int, total: int) -> int:
    """Return the number of marks of a queue to read: twice those of its part of the limit."""
    return int(min(rows, 2 * limit * rows / total + 4 * STEP)) // STEP + 4
