"""The end of a batch with a limit: the limit is shared out over the queues, the oldest messages first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from rqttl.protocol.keys import DETACHED, LOG, Keyspace
from spark_connectors.options.options import Options
from spark_connectors.ranges import sequence_number, sequence_text
from spark_connectors.read.positions import QueuePosition, QueueState
from spark_connectors.read.watch import execute_many
from spark_connectors.redis.bulk_reader import BulkReader
from spark_connectors.stream.leap import Leap, Stretch, exact_leaps, leaps
from spark_connectors.stream.stretches import StretchReader
from spark_connectors.stream.time_scan import TimeScan
from spark_connectors.stream.time_share import ReadAhead, TimeShare, UnreadRange
from spark_connectors.stream.unread import BatchLimit, Unread


class BatchLimiter:
    """Finds the ends of batches with a limit, for one query.

    It remembers what a share by time has read beyond the end of a batch, and reads it from Redis only once.
    """

    def __init__(self, options: Options, keys: Keyspace) -> None:
        self._keys = keys
        self._max_entries, self._reply_bytes = options.number("fetchEntries"), options.number("fetchBytes")
        self._scan = TimeScan(keys, max_entries=self._max_entries, reply_bytes=self._reply_bytes)
        self._stretches = StretchReader(keys)
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
        reached = self._leaps(reader, unread, limit)
        unread = {name: queue.leapt(reached.get(name)) for name, queue in unread.items()}
        left = limit.amount - sum(leap.cost for leap in reached.values())
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

    def _leaps(self, reader: BulkReader, unread: Mapping[str, Unread], limit: BatchLimit) -> dict[str, Leap]:
        """Return the leaps of the queues to one time."""
        stretches = self._stretches.read(reader, unread, limit)
        if not limit.in_bytes:
            return leaps(limit.amount, stretches)
        return exact_leaps(limit.amount, stretches, partial(self._exact, reader, unread))

    def _exact(
        self, reader: BulkReader, unread: Mapping[str, Unread], stretches: Mapping[str, Stretch]
    ) -> dict[str, Stretch]:
        """Return the stretches for a limit of bytes, with the exact bytes before their first mark.

        The marks tell them only from the mark before the first unread message on. The messages that this reads are
        read ahead.
        """
        heads = {}
        for name, stretch in stretches.items():
            whole = self._unread_range(reader, name, unread[name])
            first = stretch.marks
            rows = max(1, int(first.counts[0]) - stretch.received)
            heads[name] = replace(whole, upto=int(first.sequences[0]), rows=rows)
        known = {}
        for name, ahead in self._scan.read_all(reader, heads).items():
            self._ahead[name, unread[name].state.created_at] = ahead
            numbers, sizes = replace(heads[name], ahead=ahead).known()
            _, firsts = np.unique(numbers, return_index=True)
            known[name] = stretches[name].with_first(int(sizes[firsts].sum()))
        return known

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
