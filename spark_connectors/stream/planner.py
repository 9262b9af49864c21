"""The plan of a stream, made on the driver: the queues, the positions of the query, and the end of the next batch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from rqttl.protocol.keys import DETACHED, LOG, Keyspace, queue_names
from spark_connectors.errors import NoSuchQueue
from spark_connectors.options import patterns
from spark_connectors.options.options import Options
from spark_connectors.ranges import sequence_before
from spark_connectors.read.loss import LossReporter, detect_loss
from spark_connectors.read.plan import check_read_access, partitions, queue_snapshots
from spark_connectors.read.positions import QueuePosition, QueueState, before_first, position_after
from spark_connectors.read.watch import WatchedRange, execute_many, now_ms, queue_states, tombstones
from spark_connectors.redis.bulk_reader import BulkReader
from spark_connectors.stream.budget_scan import BudgetScan, MessageSizes
from spark_connectors.stream.limits import FairShare, QueueShare
from spark_connectors.stream.offsets import Offset, batch_ranges


@dataclass(frozen=True, slots=True)
class BatchLimit:
    """The largest number of messages in a batch, or of bytes of their headers and bodies."""

    amount: int
    in_bytes: bool = False


class StreamPlanner:
    """Plans the batches of one query. Connects at its first question to Redis.

    The offsets hold all that a query must know. A planner remembers more only to save questions and to detect losses
    earlier: a new planner with the same offsets plans the same batches.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._keys = Keyspace(options.text("namespace"))
        self._losses = LossReporter(fail=options.flag("failOnDataLoss"))
        self._open_reader: BulkReader | None = None
        self._initial: Offset | None = None
        #: The first positions of queues that are in no offset yet.
        self._first_positions: dict[str, QueuePosition] = {}
        self._states: dict[str, QueueState] | None = None
        self._frozen: dict[str, QueueState] | None = None

    def close(self) -> None:
        """Close the connection. The next question opens it again."""
        if self._open_reader is not None:
            self._open_reader.close()

    # -------------------------------------------------------------------------------------------- offsets

    def initial(self) -> Offset:
        """Return the start of a new query. It is determined once, so that `latest` keeps its meaning."""
        if self._initial is None:
            states = self._read_states(self._queue_names(()))
            if missing := [name for name in self._options.queues if name not in states]:
                raise NoSuchQueue(
                    f"queues: there is no queue {missing[0]!r} in namespace {self._keys.namespace!r}; option "
                    "queuePattern selects queues that are created later, too"
                )
            self._initial = Offset({name: self._start(name, state) for name, state in states.items()}, initial=True)
        return self._initial

    def latest(self, start: Offset, limit: BatchLimit | None) -> Offset:
        """Return the end of the next batch: the end of all queues, or as far as the limit admits.

        Returns `start` if there is nothing to read. Raises `DataLoss` if messages are lost and the query shall fail.
        """
        self._states = self._read_states(self._queue_names(start.positions))
        states = self._up_to_frozen(self._states)
        positions = self._positions(start, states)
        ends = {name: position.at_end(states[name]) for name, position in positions.items()}
        next_queue = ""
        if limit is not None:
            next_queue = self._apply_limit(positions, states, ends, limit, start.next_queue)
        if all(end.after == positions[name].after for name, end in ends.items()):
            return start
        kept = {name: position for name, position in start.positions.items() if not self._is_deleted(name)}
        return start.advanced({**kept, **ends}, next_queue)

    def newest(self) -> Offset:
        """Return the end of all queues, as last read."""
        if self._states is None:
            self._states = self._read_states(self._queue_names(()))
        return Offset({name: before_first(state).at_end(state) for name, state in self._states.items()})

    def freeze(self) -> None:
        """Ignore all messages that arrive from now on."""
        self._frozen = self._read_states(self._queue_names(()))

    def watched_ranges(self, start: Offset, end: Offset) -> list[WatchedRange]:
        """Return the ranges of a batch. Raises `DataLoss` if messages in them were lost since the first plan."""
        ranges = batch_ranges(start, end)
        queues = queue_snapshots(self._reader(), self._keys, [part.queue for part in ranges])
        created_at = {name: queue.created_at for name, queue in queues.items()}
        deleted = [part.queue for part in ranges if created_at.get(part.queue) != end.positions[part.queue].created_at]
        by_queue = tombstones(self._reader(), self._keys, deleted)
        watched = []
        for part in ranges:
            queue, position = queues.get(part.queue), end.positions[part.queue]
            state = None if queue is None else QueueState(queue.created_at, queue.last_sequence, queue.trimmed_upto, 0)
            begin = replace(position, after=part.after, ahead=part.rows)
            unchecked_for = now_ms() - position.existed_at
            self._losses.report(
                detect_loss(part.queue, begin, state, by_queue.get(part.queue), unchecked_for=unchecked_for)
            )
            if queue is not None and queue.created_at == position.created_at:
                rows = max(1, min(part.rows, queue.rows))
                present = replace(part, rows=rows, detached=queue.may_have_detached)
                watched.append(WatchedRange(present, position.created_at, position.known_loss, now_ms()))
        return watched

    def partitions(self, ranges: Sequence[WatchedRange]) -> list[list[WatchedRange]]:
        """Partition the ranges of a batch into tasks. Their rows, task by task, come by queue and sequence."""
        by_queue = {watched.range.queue: watched for watched in ranges}
        whole = [watched.range for watched in ranges]
        check_read_access(self._reader(), self._keys, whole)
        tasks = partitions(self._options, self._reader(), self._keys, whole, in_order=True) if whole else []
        return [[replace(by_queue[part.queue], range=part) for part in task] for task in tasks]

    # ------------------------------------------------------------------------------------------ positions

    def _start(self, name: str, state: QueueState) -> QueuePosition:
        """Return the start of a new query in a queue."""
        since, offsets = self._options.optional_number("startingTimestamp"), self._options.offsets("startingOffsets")
        if since is not None:
            return position_after(state, sequence_before(since))
        after = offsets if isinstance(offsets, str) else offsets.get(name, "earliest")
        if after == "latest":
            return before_first(state).at_end(state)
        # removed messages after a sequence of the user count as lost, unlike messages before the first one
        return before_first(state) if after == "earliest" else replace(position_after(state, after), known_loss="")

    def _up_to_frozen(self, states: Mapping[str, QueueState]) -> dict[str, QueueState]:
        """Return the states without messages and queues that are newer than `freeze`."""
        if self._frozen is None:
            return dict(states)
        limited = {}
        for name, state in states.items():
            frozen = self._frozen.get(name)
            if frozen is not None and frozen.created_at == state.created_at:
                limited[name] = replace(state, last_sequence=frozen.last_sequence, enqueued=frozen.enqueued)
        return limited

    def _positions(self, start: Offset, states: Mapping[str, QueueState]) -> dict[str, QueuePosition]:
        """Report the losses, and return the position of the query in each queue that exists."""
        self._report_deletions(start, states)
        positions, first = {}, {}
        for name, state in states.items():
            position = start.positions.get(name)
            if position is None or not position.belongs_to(state):
                position = first[name] = self._first_position(name, state, recreated=position is not None)
            self._losses.report(detect_loss(name, position, state))
            positions[name] = position
        self._first_positions = first
        return positions

    def _report_deletions(self, start: Offset, states: Mapping[str, QueueState]) -> None:
        """Report losses with queues that were deleted, or deleted and created again."""
        positions = {**self._first_positions, **start.positions}
        selected = set(self._selected(positions))
        deleted = {
            name: position
            for name, position in positions.items()
            if name in selected
            and (not position.belongs_to(states[name]) if name in states else self._is_deleted(name))
        }
        by_queue = tombstones(self._reader(), self._keys, deleted)
        for name, position in deleted.items():
            # the deletion of a queue that was never read is no news, unless messages were lost with it
            if name in start.positions or name in by_queue:
                unchecked_for = now_ms() - position.existed_at
                loss = detect_loss(name, position, states.get(name), by_queue.get(name), unchecked_for=unchecked_for)
                self._losses.report(loss)

    def _first_position(self, name: str, state: QueueState, *, recreated: bool) -> QueuePosition:
        """Return the position before the first message. A recreated queue has lost nothing before the query saw it."""
        position = self._first_positions.get(name)
        if position is not None and position.belongs_to(state):
            return position
        return replace(before_first(state), known_loss="") if recreated else before_first(state)

    def _apply_limit(
        self,
        positions: Mapping[str, QueuePosition],
        states: Mapping[str, QueueState],
        ends: dict[str, QueuePosition],
        limit: BatchLimit,
        next_queue: str,
    ) -> str:
        """Move `ends` back to the limit. Returns the queue that the next batch serves first."""
        unread = [name for name in positions if ends[name].after != positions[name].after]
        counts = self._message_counts(unread)
        most = {name: min(sum(counts[name]), positions[name].max_unread(states[name])) for name in unread}
        if not limit.in_bytes and sum(most.values()) <= limit.amount:
            return ""
        shares = {name: QueueShare(positions[name].after, states[name].last_sequence) for name, n in most.items() if n}
        fair = FairShare(limit.amount, shares, next_queue)
        self._scan(fair, limit, [name for name in shares if counts[name][1]])
        for name, share in fair.shares.items():
            after = share.upto if share.done else share.after
            ends[name] = positions[name].advanced(after, share.rows, states[name])
        return fair.next_queue

    def _scan(self, fair: FairShare, limit: BatchLimit, with_detached: Sequence[str]) -> None:
        scan = BudgetScan(
            self._reader(),
            self._keys,
            {name: self._detached_sizes(name) for name in with_detached},
            in_bytes=limit.in_bytes,
            max_entries=self._options.number("fetchEntries"),
            reply_bytes=self._options.number("fetchBytes"),
        )
        rounds = fair.run()
        try:
            requests = next(rounds)
            while True:
                requests = rounds.send(scan.answer(requests))
        except StopIteration:
            return

    # ------------------------------------------------------------------------------------------ questions

    def _queue_names(self, followed: Iterable[str]) -> list[str]:
        """Return the names of all selected queues. Queues of a pattern come from the registry and from `followed`."""
        if self._options.queues:
            return sorted(self._options.queues)
        registered = queue_names(self._reader().execute("SMEMBERS", self._keys.registry))
        return self._selected({*registered, *followed})

    def _selected(self, names: Iterable[str]) -> list[str]:
        pattern = self._options.optional_text("queuePattern")
        return sorted(self._options.queues) if pattern is None else patterns.matching(pattern, names)

    def _read_states(self, names: Iterable[str]) -> dict[str, QueueState]:
        return queue_states(self._reader(), self._keys, names)

    def _message_counts(self, names: Sequence[str]) -> dict[str, tuple[int, int]]:
        """Return the number of messages of each queue in its log, and outside its log."""
        parts = (("XLEN", LOG), ("HLEN", DETACHED))
        commands = [(command, self._keys.key(name, part)) for name in names for command, part in parts]
        replies = execute_many(self._reader(), commands)
        return dict(zip(names, zip(replies[::2], replies[1::2], strict=True), strict=True))

    def _detached_sizes(self, name: str) -> MessageSizes:
        """Return the detached messages of a queue, in order."""
        pages = self._reader().hash_pages(self._keys.key(name, DETACHED))
        sizes = {sequence.decode(): len(packed) - packed.index(b":") - 1 for page in pages for sequence, packed in page}
        return sorted(sizes.items())

    def _is_deleted(self, name: str) -> bool:
        return self._states is not None and name not in self._states

    def _reader(self) -> BulkReader:
        if self._open_reader is None:
            self._open_reader = BulkReader(self._options)
        return self._open_reader
