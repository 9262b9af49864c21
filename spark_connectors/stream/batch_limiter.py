"""The end of a batch with a limit: the limit is shared out over the queues, by time or equally."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from rqttl.protocol.keys import DETACHED, LOG, Keyspace
from spark_connectors.options.options import Options
from spark_connectors.ranges import sequence_number, sequence_text
from spark_connectors.read.kept import LogVersion, PageKeeper
from spark_connectors.read.positions import QueuePosition, QueueState
from spark_connectors.read.watch import execute_many
from spark_connectors.redis.bulk_reader import BulkReader
from spark_connectors.stream.budget_scan import BudgetScan, MessageSizes
from spark_connectors.stream.leap import Leap, Stretch, exact_leaps, leaps
from spark_connectors.stream.limits import FairShare, ReadRequest, ReadResult
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
        self._equal = options.text("shareLimit") == "equal"
        self._max_entries, self._reply_bytes = options.number("fetchEntries"), options.number("fetchBytes")
        #: The messages that were read for ends of batches, for the tasks.
        self.keeper = PageKeeper()
        self._scan = TimeScan(keys, self.keeper, max_entries=self._max_entries, reply_bytes=self._reply_bytes)
        self._stretches = StretchReader(keys)
        #: The messages read ahead, by queue and its creation time.
        self._ahead: dict[tuple[str, int], ReadAhead] = {}

    def unread(
        self, reader: BulkReader, positions: Mapping[str, QueuePosition], states: Mapping[str, QueueState]
    ) -> dict[str, Unread]:
        """Return the queues that may have unread messages, with an upper bound of their number. A batch begins."""
        behind = [name for name, position in positions.items() if position.after < states[name].last_sequence]
        parts = (("XLEN", LOG), ("HLEN", DETACHED))
        replies = execute_many(
            reader, [(command, self._keys.key(name, part)) for name in behind for command, part in parts]
        )
        unread, logs = {}, {}
        for name, logged, detached in zip(behind, replies[::2], replies[1::2], strict=True):
            state = states[name]
            version = LogVersion(state.created_at, state.enqueued, state.enqueued - logged - detached)
            logs[name] = sequence_number(positions[name].after), version
            rows = min(logged + detached, positions[name].max_unread(states[name]))
            if rows:
                unread[name] = Unread(positions[name], states[name], rows, bool(detached))
        self.keeper.begin(logs)
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
        reached = self._leaps(reader, unread, limit)
        unread = {name: queue.leapt(reached.get(name)) for name, queue in unread.items()}
        left = limit.amount - sum(leap.cost for leap in reached.values())
        if left == 0:
            return {name: queue.end(queue.begin, 0) for name, queue in unread.items()}
        share = TimeShare(left, self.unread_ranges(reader, unread), in_bytes=limit.in_bytes, begun=bool(reached))
        self._scan.run(reader, share)
        return self.ends_by_time(unread, share)

    def _leaps(self, reader: BulkReader, unread: Mapping[str, Unread], limit: BatchLimit) -> dict[str, Leap]:
        """Return the leaps of the queues to one time."""
        total = sum(queue.rows for queue in unread.values())
        stretches = self._stretches.read(reader, unread, limit, total)
        if not limit.in_bytes:
            return leaps(limit.amount, stretches)
        return exact_leaps(limit.amount, stretches, partial(self.exact, reader, unread))

    def exact(
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

    def unread_ranges(self, reader: BulkReader, unread: Mapping[str, Unread]) -> dict[str, UnreadRange]:
        """Return the ranges of a share by time, with the messages that are read ahead."""
        return {name: self._unread_range(reader, name, queue) for name, queue in unread.items()}

    def ends_by_time(self, unread: Mapping[str, Unread], share: TimeShare) -> dict[str, QueuePosition]:
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
            self._stretches.read(reader, unread, limit, None),
            self.keeper,
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
