"""Watches for the ranges of a read: they report messages that were removed, or deleted with a queue, unread."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from rqttl.protocol.keys import META, TOMBSTONE, Keyspace
from spark_connectors.ranges import Range
from spark_connectors.read.loss import (
    Loss,
    LossReporter,
    Tombstone,
    detect_loss,
    detect_other_data,
    detect_restore,
    detect_trimming,
)
from spark_connectors.read.positions import QueuePosition, QueueState
from spark_connectors.redis.bulk_reader import BulkReader
from spark_connectors.redis.connect import Command
from spark_connectors.redis.names import DATASET_FIELD, STATE_FIELDS, TOMBSTONE_FIELDS

T = TypeVar("T")

_COMMANDS_AT_ONCE = 500


def now_ms() -> int:
    """Return the time in ms, only to measure the time since the last check of a queue."""
    return int(time.time() * 1000)


@dataclass(frozen=True, slots=True)
class WatchedRange:
    """A range of a batch, and the facts that show a loss in it."""

    range: Range
    #: The creation time of the queue, in ms.
    created_at: int
    #: The highest sequence that is known as lost; it is not reported again.
    known_loss: str
    #: A time, in ms, at which the queue existed.
    existed_at: int
    #: The number of messages that the queue had received for certain when the range was planned.
    received: int = 0
    #: The name of the data in which the range was planned.
    dataset: str = ""

    def loss_in(self, after: str, state: QueueState) -> Loss | None:
        """Return the loss after the sequence `after` in the same queue, with this state."""
        queue = self.range.queue
        restored = detect_restore(queue, state, self.range.upto, self.received)
        return restored or detect_trimming(queue, after, self.known_loss, state)

    def loss_by_deletion(self, after: str, state: QueueState | None, tombstone: Tombstone | None) -> Loss | None:
        """Return the loss after the sequence `after`, if the queue is deleted, or created again with this state."""
        position = QueuePosition(after, self.created_at, 0, self.known_loss, self.range.rows)
        return detect_loss(self.range.queue, position, state, tombstone, unchecked_for=now_ms() - self.existed_at)


class DeletionWatch:
    """A `PageWatch` that reads the record of the queue with each page of a range.

    It reports removed messages at once. `report_deletions` reports losses by deletion after the read of all ranges.
    """

    def __init__(self, watched: WatchedRange, keys: Keyspace, losses: LossReporter) -> None:
        self.command: Command = ("HMGET", keys.key(watched.range.queue, META), *STATE_FIELDS)
        self.watched = watched
        self._losses = losses
        #: Set by the first check that met a deleted or recreated queue: the sequence before its page, and the state.
        self.deletion: tuple[str, QueueState | None] | None = None

    def check(self, reply: Any, after: str) -> None:
        """Report messages that were removed after `after`, or note the deletion of the queue."""
        state = QueueState.from_fields(reply)
        if state is None or state.created_at != self.watched.created_at:
            self.deletion = self.deletion or (after, state)
        else:
            self._losses.report(self.watched.loss_in(after, state))

    def check_detached(self, reply: Any) -> None:
        """Note a deletion of the queue during the read of its detached messages."""
        state = QueueState.from_fields(reply)
        if state is None or state.created_at != self.watched.created_at:
            self.deletion = (self.watched.range.after, state)


def report_deletions(
    reader: BulkReader, keys: Keyspace, watches: Sequence[DeletionWatch], losses: LossReporter
) -> None:
    """Report the losses by deletions during the read, and by a server that has forgotten its data."""
    unchecked = [watch for watch in watches if watch.watched.range.detached and watch.deletion is None]
    for watch, reply in zip(unchecked, execute_many(reader, [watch.command for watch in unchecked]), strict=True):
        watch.check_detached(reply)
    deletions = [(watch.watched, *watch.deletion) for watch in watches if watch.deletion is not None]
    if deletions:
        dataset, present = deletions[0][0].dataset, present_dataset(reader, keys)
        losses.report(detect_other_data(dataset, present, of_one_node=reader.is_cluster))
    by_queue = tombstones(reader, keys, [watched.range.queue for watched, _, _ in deletions])
    for watched, after, state in deletions:
        losses.report(watched.loss_by_deletion(after, state, by_queue.get(watched.range.queue)))


def tombstones(reader: BulkReader, keys: Keyspace, queues: Iterable[str]) -> dict[str, Tombstone]:
    """Return the tombstones of deleted queues, by queue."""
    return _read_fields(reader, keys, queues, (TOMBSTONE, *TOMBSTONE_FIELDS), Tombstone.from_fields)


def present_dataset(reader: BulkReader, keys: Keyspace) -> str:
    """Return the random name of the data of the namespace; an empty text for none."""
    (name,) = reader.execute("HMGET", keys.dataset, DATASET_FIELD)
    return "" if name is None else str(name.decode("ascii", "replace"))


def queue_states(reader: BulkReader, keys: Keyspace, queues: Iterable[str]) -> dict[str, QueueState]:
    """Return the states of the queues that exist, by queue."""
    return _read_fields(reader, keys, queues, (META, *STATE_FIELDS), QueueState.from_fields)


def _read_fields(
    reader: BulkReader,
    keys: Keyspace,
    queues: Iterable[str],
    part: Sequence[str],
    decode: Callable[[Sequence[bytes | None]], T | None],
) -> dict[str, T]:
    """Read fields of one part of each queue. Queues without a value are left out."""
    names = list(queues)
    replies = execute_many(reader, [("HMGET", keys.key(name, part[0]), *part[1:]) for name in names])
    by_queue = {name: decode(fields) for name, fields in zip(names, replies, strict=True)}
    return {name: value for name, value in by_queue.items() if value is not None}


def execute_many(reader: BulkReader, commands: Sequence[Command]) -> list[Any]:
    """Run many commands that only read, in few round trips."""
    chunks = [commands[i : i + _COMMANDS_AT_ONCE] for i in range(0, len(commands), _COMMANDS_AT_ONCE)]
    return [reply for chunk in chunks for reply in reader.execute_all(chunk)]
