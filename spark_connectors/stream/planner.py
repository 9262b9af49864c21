"""The plan of a stream, made on the driver: the queues, the positions of the query, and the end of the next batch."""

from __future__ import annotations

from collections.abc import Container, Hashable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace

from rqttl.protocol.keys import LOG, META, Keyspace
from rqttl.text import plural
from rqttl.units import as_datetime
from spark_connectors.errors import NoSuchQueue
from spark_connectors.options import patterns
from spark_connectors.options.options import Options
from spark_connectors.ranges import FIRST, sequence_before
from spark_connectors.read.loss import Loss, LossReporter, detect_loss, detect_other_data, detect_restore
from spark_connectors.read.plan import check_read_access, partitions, queue_snapshots, registered_queues
from spark_connectors.read.positions import QueuePosition, QueueState, before_first, position_after
from spark_connectors.read.watch import WatchedRange, now_ms, present_dataset, queue_states, tombstones
from spark_connectors.redis.bulk_reader import BulkReader
from spark_connectors.stream.batch_limiter import BatchLimiter
from spark_connectors.stream.committed import CommittedPurge
from spark_connectors.stream.histories import Histories, History, detect_older, doubted
from spark_connectors.stream.mark_plan import BatchLimit, Unread
from spark_connectors.stream.offsets import Offset, batch_ranges
from spark_connectors.stream.pace import BatchDelay


def _lengths(histories: Mapping[Hashable, History]) -> dict[str, int]:
    return {history.id: history.length for history in histories.values()}


@dataclass(slots=True)
class Lag:
    """The messages after the end of the last batch, as last read; after a freeze only older ones.

    Messages that have left the middle of a queue may count, so it is an upper bound.
    """

    #: The end of the last batch; its start if there was nothing to read.
    reached: Offset
    #: The states of the queues that it could read.
    states: Mapping[str, QueueState]
    #: By queue, the most messages that were unread before it, where that is known.
    rows: Mapping[str, int] = field(default_factory=dict)

    def messages(self) -> int:
        """Return the largest number of unread messages."""
        total = 0
        for name, state in self.states.items():
            position = self.reached.positions.get(name)
            if position is None or not position.belongs_to(state):
                position = before_first(state)
            if position.after < state.last_sequence:
                total += min(position.max_unread(state), self.rows.get(name, state.enqueued))
        return total


class StreamPlanner:
    """Plans the batches of one query. Connects at its first question to Redis.

    The offsets hold all that a query must know. A planner remembers more only to save questions and to detect losses
    earlier: a new planner with the same offsets plans the same batches.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._keys = Keyspace(options.text("namespace"))
        self._pattern = options.optional_text("queuePattern") or ""
        self._losses = LossReporter(fail=options.flag("failOnDataLoss"))
        self._limiter = BatchLimiter(options, self._keys)
        self._committed = CommittedPurge(options)
        self._open_reader: BulkReader | None = None
        self._initial: Offset | None = None
        #: The first positions of queues that are in no offset yet.
        self._first_positions: dict[str, QueuePosition] = {}
        self._states: dict[str, QueueState] | None = None
        self._histories = Histories()
        self._frozen: dict[str, QueueState] | None = None
        self._names_checked = False
        self._lag: Lag | None = None
        least = options.optional_number("minEntriesPerTrigger")
        self._delay = None if least is None else BatchDelay(least, options.number("maxTriggerDelay"))

    def close(self) -> None:
        """Close the connection. The next question opens it again."""
        self._committed.close()
        if self._open_reader is not None:
            self._open_reader.close()
            self._open_reader = None

    # -------------------------------------------------------------------------------------------- offsets

    def initial(self) -> Offset:
        """Return the start of a new query. It is determined once, so that `latest` keeps its meaning.

        Raises `NoSuchQueue` for a missing queue of `queues`.
        """
        if self._initial is None:
            dataset = present_dataset(self._reader(), self._keys)
            states, histories = self._read_all(())
            self._refuse_missing(states)
            for name in sorted(states)[:1]:
                self._committed.check_rights(name)
            positions = {name: self._start(name, state) for name, state in states.items()}
            since = {name: position.after for name, position in positions.items() if position.after > FIRST}
            self._initial = Offset(positions, initial=True, dataset=dataset, since=since, histories=_lengths(histories))
        return self._initial

    def latest(self, start: Offset, limit: BatchLimit | None, *, may_wait: bool = False) -> Offset:
        """Return the end of the next batch: the end of all queues, or as far as the limit admits.

        Returns `start` if there is nothing to read. With `may_wait`, also for less than `minEntriesPerTrigger`, until
        `maxTriggerDelay` has passed. First removes what committed batches have read, if the options say so. Raises
        `DataLoss` if messages are lost and the query shall fail.
        """
        self._losses.accepted = False
        dataset = present_dataset(self._reader(), self._keys)
        self._states, histories = self._read_all(start.positions)
        if not self._names_checked:
            self._refuse_missing({*self._states, *start.positions, *start.gone})
        states = self._up_to_frozen(self._states)
        known, turned_back = self._turned_back(start, dataset, self._states, histories)
        positions = self._positions(known, states)
        if not start.initial:
            committed = {name: position for name, position in known.positions.items() if name in positions}
            self._committed.remove(
                {name: position for name, position in committed.items() if position.belongs_to(states[name])},
                known.since,
            )
        self._lag = Lag(start, states)
        ends = {name: position.at_end(states[name]) for name, position in positions.items()}
        if limit is not None or may_wait:
            unread = self._limiter.unread(self._reader(), positions, states)
            self._lag.rows = {name: queue.rows for name, queue in unread.items()}
            if may_wait and not self._is_due(unread) and not self._losses.accepted:
                return start
            if limit is not None:
                ends.update(self._limiter.ends(self._reader(), unread, limit))
        # a loss that the user accepts is over with this batch, which may have no rows
        if not self._losses.accepted and all(end.after == positions[name].after for name, end in ends.items()):
            return start
        deleted = {*self._selected(start.positions)} & start.positions.keys() - self._states.keys()
        kept = {name: position for name, position in known.positions.items() if name not in deleted}
        gone = (start.gone | deleted.intersection(self._options.queues)).difference(self._states)
        begin = replace(start, since=known.since)
        end = begin.advanced(
            {**kept, **ends}, gone, dataset=dataset, turned_back=turned_back, histories=_lengths(histories)
        )
        self._lag.reached = end
        return start if end is begin else replace(end, pattern=self._pattern)

    def _is_due(self, unread: Mapping[str, Unread]) -> bool:
        """True if there are enough messages for a batch, or if it has waited long enough for them."""
        if self._delay is None or self._frozen is not None:
            return True
        return self._delay.is_due(sum(queue.rows for queue in unread.values()))

    @property
    def queue_count(self) -> int:
        """The number of queues at the last question."""
        return len(self._states or ())

    def newest(self) -> Offset:
        """Return the end of all queues, as last read."""
        if self._states is None:
            self._states = self._read_states(self._queue_names(()))
        return Offset({name: before_first(state).at_end(state) for name, state in self._states.items()})

    def unread(self) -> int | None:
        """Return the number of messages after the end of the last batch; see `Lag`. `None` before the first batch."""
        return None if self._lag is None else self._lag.messages()

    def freeze(self) -> None:
        """Ignore all messages that arrive from now on."""
        self._frozen = self._read_states(self._queue_names(()))

    def watched_ranges(self, start: Offset, end: Offset) -> list[WatchedRange]:
        """Return the ranges of a batch. Raises `DataLoss` if messages in them were lost since the first plan."""
        ranges = batch_ranges(start, end)
        self._losses.report(self._other_data(end.dataset, present_dataset(self._reader(), self._keys)))
        queues = queue_snapshots(self._reader(), self._keys, [part.queue for part in ranges])
        created_at = {name: queue.state.created_at for name, queue in queues.items()}
        deleted = [part.queue for part in ranges if created_at.get(part.queue) != end.positions[part.queue].created_at]
        by_queue = tombstones(self._reader(), self._keys, deleted)
        watched = []
        for part in ranges:
            queue, position = queues.get(part.queue), end.positions[part.queue]
            state = None if queue is None else queue.state
            begin = replace(position, after=part.after, ahead=part.rows)
            unchecked_for = now_ms() - position.existed_at
            self._losses.report(
                detect_loss(part.queue, begin, state, by_queue.get(part.queue), unchecked_for=unchecked_for)
            )
            if queue is not None and state is not None and position.belongs_to(state):
                self._losses.report(detect_restore(part.queue, state, part.upto, position.received))
                rows = max(1, min(part.rows, queue.rows))
                # on a cluster dead letters may come back from a full queue in another slot
                detached = queue.may_have_detached or self._reader().is_cluster
                present = replace(part, rows=rows, detached=detached)
                lost, received = position.known_loss, position.received
                watched.append(WatchedRange(present, position.created_at, lost, now_ms(), received, end.dataset))
        return watched

    def tasks(self, start: Offset, end: Offset) -> list[list[WatchedRange]]:
        """Plan the tasks of a batch. Their rows, task by task, come by queue and sequence.

        Raises `DataLoss` if messages in it were lost since the first plan.
        """
        by_queue = {watched.range.queue: watched for watched in self.watched_ranges(start, end)}
        whole = [watched.range for watched in by_queue.values()]
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
                last, enqueued = min(state.last_sequence, frozen.last_sequence), min(state.enqueued, frozen.enqueued)
                limited[name] = replace(state, last_sequence=last, enqueued=enqueued)
        return limited

    def _turned_back(
        self,
        start: Offset,
        dataset: str,
        states: Mapping[str, QueueState],
        histories: Mapping[Hashable, History],
    ) -> tuple[Offset, frozenset[str]]:
        """Report data that Redis has forgotten. Returns the offset without the positions that do not hold any more.

        The second result has the names of their queues. The query reads these queues again from the first message on:
        nobody knows which of their messages it has read. Where that is only doubted, nothing up to the position is
        purged.
        """
        other_data = self._other_data(start.dataset, dataset)
        if other_data and not other_data.certain:
            self._losses.report(other_data)
        elif other_data:
            self._losses.report(other_data.told_to_go_back("all queues"))
            self._first_positions = {}
            return replace(start, positions={}), frozenset(start.positions)
        nodes = doubted(start.histories, histories) if start.histories and histories else ()
        turned_back, since = set(), dict(start.since)
        for name, position in start.positions.items():
            state = states.get(name)
            if state is None or not position.belongs_to(state):
                continue
            older = detect_restore(name, state, position.after, position.received)
            if nodes and self._reader().node_of(self._keys.key(name, META)) in nodes:
                older = older or detect_older(self._reader(), self._keys, name, position, state)
                since[name] = self._held(name, position, state, since.get(name, FIRST))
            if older:
                self._losses.report(older.told_to_go_back("the queue"))
                turned_back.add(name)
        kept = {name: position for name, position in start.positions.items() if name not in turned_back}
        return replace(start, positions=kept, since=since), frozenset(turned_back)

    def _held(self, name: str, position: QueuePosition, state: QueueState, since: str) -> str:
        """Return the sequence up to which nothing is purged in a queue of a server that may have lost messages.

        A server that has lost any has lost the last message that was read. Where it is gone, report what stays.
        """
        reader, log = self._reader(), self._keys.key(name, LOG)
        if state.last_sequence == position.after or reader.execute("XRANGE", log, position.after, position.after):
            return since
        with closing(reader.pages(log, since, position.after)) as pages:
            count = sum(map(len, pages)) if self._options.text("afterCommit") == "purge" else 0
        if count:
            end = as_datetime(int(position.after[:13]) + 1).isoformat()
            text = (
                f"afterCommit: queue {name!r} is on a server that has restarted or failed over, and the last message "
                f"that was read, {position.after}, is gone. So {plural(count, 'message')} up to it stay, and some may "
                f"be unread. To remove them: rqttl dead purge {name} --older-than {end}"
            )
            self._losses.report(Loss(text, certain=False))
        return max(position.after, since)

    def _other_data(self, expected: str, present: str) -> Loss | None:
        return detect_other_data(expected, present, of_one_node=self._reader().is_cluster)

    def _positions(self, start: Offset, states: Mapping[str, QueueState]) -> dict[str, QueuePosition]:
        """Report the losses, and return the position of the query in each queue that exists."""
        self._report_deletions(start, states)
        positions, first = {}, {}
        for name, state in states.items():
            position = start.positions.get(name)
            if position is None or not position.belongs_to(state):
                position = first[name] = self._first_position(name, state, start)
            loss = detect_loss(name, position, state)
            self._losses.report(loss)
            positions[name] = position if loss is None else replace(position, known_loss=state.trimmed_upto)
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
            and (not position.belongs_to(states[name]) if name in states else name not in (self._states or ()))
        }
        by_queue = tombstones(self._reader(), self._keys, deleted)
        for name, position in deleted.items():
            # the deletion of a queue that was never read is no news, unless messages were lost with it
            if name in start.positions or name in by_queue:
                unchecked_for = now_ms() - position.existed_at
                loss = detect_loss(name, position, states.get(name), by_queue.get(name), unchecked_for=unchecked_for)
                self._losses.report(loss)

    def _first_position(self, name: str, state: QueueState, start: Offset) -> QueuePosition:
        """Return the position before the first message of a queue that is new to the query.

        All it has lost counts, unless only the options of this run select it.
        """
        position = self._first_positions.get(name)
        if position is not None and position.belongs_to(state):
            return position
        known = [*start.positions, *start.gone, *(() if self._options.queues else [name])]
        followed = name in (patterns.matching(start.pattern, [name]) if start.pattern else known)
        return replace(before_first(state), known_loss="") if followed else before_first(state)

    # ------------------------------------------------------------------------------------------ questions

    def _queue_names(self, followed: Iterable[str]) -> list[str]:
        """Return the names of all selected queues. Queues of a pattern come from the registry and from `followed`."""
        if self._options.queues:
            return sorted(self._options.queues)
        registered = registered_queues(self._reader(), self._keys)
        return self._selected({*registered, *followed})

    def _selected(self, names: Iterable[str]) -> list[str]:
        return patterns.matching(self._pattern, names) if self._pattern else sorted(self._options.queues)

    def _read_all(self, followed: Iterable[str]) -> tuple[dict[str, QueueState], dict[Hashable, History]]:
        """Return the states of all selected queues, and then the histories of their servers: of the same ones."""
        reader = self._reader()
        while True:
            before = reader.reconnections
            states = self._read_states(self._queue_names(followed))
            histories = self._histories.read(reader)
            if reader.reconnections == before:
                return states, histories

    def _read_states(self, names: Iterable[str]) -> dict[str, QueueState]:
        return queue_states(self._reader(), self._keys, names)

    def _refuse_missing(self, known: Container[str]) -> None:
        """Raise `NoSuchQueue` for a named queue that is not known at the start of a query: it may be misspelt."""
        if missing := [name for name in self._options.queues if name not in known]:
            self._reader().refuse_cluster()
            raise NoSuchQueue(
                f"queues: there is no queue {missing[0]!r} in namespace {self._keys.namespace!r}, and the checkpoint "
                "has no position in it; option queuePattern selects queues that are created later, too"
            )
        self._names_checked = True

    def _reader(self) -> BulkReader:
        """Return the connection, which opens at its first command."""
        if self._open_reader is None:
            self._open_reader = BulkReader(self._options)
        return self._open_reader
