"""The end of a batch with a limit: the limit is shared out over the queues, the oldest messages first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from rqttl.protocol.keys import DETACHED, LOG, META, Keyspace
from spark_connectors.options.options import Options
from spark_connectors.ranges import sequence_number, sequence_text
from spark_connectors.read.arrivals import STEP, ArrivalIndex, MarkRequest, Marks, Tally
from spark_connectors.read.positions import QueuePosition, QueueState
from spark_connectors.read.watch import execute_many
from spark_connectors.redis.bulk_reader import BulkReader, xrange_command
from spark_connectors.redis.names import TALLY_FIELDS
from spark_connectors.stream.mark_plan import BatchLimit, MarkedRange, Unread, plan_by_marks
from spark_connectors.stream.time_scan import TimeScan
from spark_connectors.stream.time_share import ReadAhead, TimeShare, UnreadRange


class MarkReader:
    """Reads the marks of queues that share a limit."""

    def __init__(self, keys: Keyspace) -> None:
        self._keys = keys
        self._index = ArrivalIndex(keys)

    def read(self, reader: BulkReader, unread: Mapping[str, Unread], limit: BatchLimit) -> dict[str, MarkedRange]:
        """Return the unread part of each queue, with the marks in it that this limit may reach.

        With a limit of bytes, queues without marks are looked at, too: the bytes up to their end are known.
        """
        total = sum(queue.rows for queue in unread.values())
        large = any(queue.rows >= STEP for queue in unread.values())
        tallies = self._tallies(reader, unread) if limit.in_bytes and large else {}
        most = _messages_within(limit, tallies.values()) if limit.in_bytes else limit.amount
        requests = []
        if large and most >= STEP:
            requests = [
                MarkRequest(
                    name,
                    queue.position.after,
                    queue.state.last_sequence,
                    _marks_within(queue.rows, 2 * most * queue.rows // max(1, total)),
                )
                for name, queue in unread.items()
                if queue.rows >= STEP or limit.in_bytes
            ]
        marks = self._index.read(reader, requests)
        firsts = self._first_messages(reader, {name: unread[name] for name in marks}, marks)
        ends = tallies if tallies or not limit.in_bytes else dict.fromkeys(unread, Tally())
        return {name: queue.marked(marks.get(name), firsts.get(name), ends.get(name)) for name, queue in unread.items()}

    def _tallies(self, reader: BulkReader, unread: Mapping[str, Unread]) -> dict[str, Tally]:
        commands = [("HMGET", self._keys.key(name, META), *TALLY_FIELDS) for name in unread]
        replies = execute_many(reader, commands)
        return {name: Tally.parse(*fields) for name, fields in zip(unread, replies, strict=True)}

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


def _messages_within(limit: BatchLimit, tallies: Iterable[Tally]) -> int:
    """Estimate the number of messages in a batch of so many bytes. Without dead letters it is 0."""
    known = list(tallies)
    letters, letter_bytes = sum(tally.count - tally.sent for tally in known), sum(tally.letter_bytes for tally in known)
    return limit.amount * letters // max(1, letter_bytes) if letters else 0


def _marks_within(rows: int, most: int) -> int:
    """Return the number of marks of a queue to read, for a limit that admits `most` of its `rows` messages."""
    return min(rows, most + 4 * STEP) // STEP + 4


class BatchLimiter:
    """Finds the ends of batches with a limit, for one query.

    It remembers what a share by time has read beyond the end of a batch, and reads it from Redis only once.
    """

    def __init__(self, options: Options, keys: Keyspace) -> None:
        self._keys = keys
        self._max_entries, self._reply_bytes = options.number("fetchEntries"), options.number("fetchBytes")
        self._scan = TimeScan(keys, max_entries=self._max_entries, reply_bytes=self._reply_bytes)
        self._marks = MarkReader(keys)
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

    def ends(self, reader: BulkReader, unread: Mapping[str, Unread], limit: BatchLimit) -> dict[str, QueuePosition]:
        """Return the positions at the end of the batch; none if the limit admits all messages."""
        if not limit.in_bytes and sum(queue.rows for queue in unread.values()) <= limit.amount:
            return {}
        reached = plan_by_marks(limit.amount, self._marks.read(reader, unread, limit))
        unread = {name: queue.planned(reached.get(name)) for name, queue in unread.items()}
        left = limit.amount - sum(plan.cost for plan in reached.values())
        if left == 0:
            return {name: queue.end(queue.begin, 0) for name, queue in unread.items()}
        share = TimeShare(
            left,
            {name: self._unread_range(reader, name, queue) for name, queue in unread.items()},
            in_bytes=limit.in_bytes,
            begun=bool(reached),
        )
        self._scan.run(reader, share)
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

    def _detached_sizes(self, reader: BulkReader, name: str) -> list[tuple[str, int]]:
        """Return the sequences and the sizes of the messages of a queue outside its log, in order."""
        pages = reader.hash_pages(self._keys.key(name, DETACHED))
        sizes = {sequence.decode(): len(packed) - packed.index(b":") - 1 for page in pages for sequence, packed in page}
        return sorted(sizes.items())
