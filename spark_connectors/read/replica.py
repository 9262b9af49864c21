"""`readFrom=replica:…`: tasks that read their messages from a replica, if it has them, and else from the primary.

A replica applies the writes of its primary in their order. So it is a former state of the primary, and the question is
only whether it is older than the plan. The numbers of messages that a queue has received, and that have left it, never
fall. A replica on which both have reached those of the plan is not older. All decisions (the ranges, the counts, losses
by deletion) come from the primary; a page of the replica is judged by the record that the replica sends with it.

A task that has left its replica stays with the primary: a replica may be older than a page that came from the primary.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator, Sequence
from typing import Any

from rqttl.protocol.keys import DETACHED, LOG, META, Keyspace
from spark_connectors.errors import InvalidOption, RefusedForNow, SourceError, Unreachable
from spark_connectors.logs import log_text
from spark_connectors.options.options import Options
from spark_connectors.read.positions import QueueState
from spark_connectors.read.watch import DeletionWatch, WatchedRange, execute_many, present_birth
from spark_connectors.redis.bulk_reader import BulkReader, LogRange, PageWatch
from spark_connectors.redis.connect import Command
from spark_connectors.redis.names import STATE_FIELDS
from spark_connectors.redis.pages import Page


class _ReplicaIsOlder(Exception):
    """A page of the replica is older than the plan."""


#: The failures of a replica after which a task reads the primary.
_REPLICA_LOST = (Unreachable, RefusedForNow, _ReplicaIsOlder)


def check_replica(options: Options, keys: Keyspace, birth: str) -> None:
    """Check the replica of a read on the driver. A replica that is away is only logged: tasks read the primary then.

    Raises `InvalidOption` for a server with other data, and all other refusals, for example of the password.
    """
    replica_options = options.of_replica()
    if replica_options is None:
        return
    try:
        with BulkReader(replica_options) as replica:
            present = present_birth(replica, keys)
    except (Unreachable, RefusedForNow) as error:
        _log_primary(replica_options, error)
        return
    except SourceError as error:
        raise type(error)(f"readFrom: {str(error).removeprefix(f'[{error.code}] ')}") from None
    if present and birth and present != birth:
        raise InvalidOption(
            f"readFrom: {replica_options.address} is no replica of {options.address}: it has the data {present}, and "
            f"not {birth}"
        )


def open_reader(options: Options, keys: Keyspace, ranges: Sequence[WatchedRange]) -> BulkReader:
    """Open the reader of a task: from the replica if there is one that has all messages of the task."""
    replica_options = options.of_replica()
    if replica_options is None:
        return BulkReader(options)
    replica = BulkReader(replica_options)
    try:
        missing = _missing(replica, keys, ranges)
    except SourceError as error:
        missing = str(error)
    if missing:
        replica.close()
        _log_primary(replica_options, missing)
        return BulkReader(options)
    return _ReplicaReader(options, replica)


def _missing(replica: BulkReader, keys: Keyspace, ranges: Sequence[WatchedRange]) -> str:
    """Describe the first message, or removal of one, that the replica does not have yet; empty for none.

    The record comes first and the detached messages last. So a message that arrives or moves in between makes the
    number of removals too small, never too large.
    """
    if any(watched.birth != present_birth(replica, keys) for watched in ranges[:1]):
        return "it has other data"
    commands: list[Command] = []
    for watched in ranges:
        queue = watched.range.queue
        commands.append(("HMGET", keys.key(queue, META), *STATE_FIELDS))
        commands += [("XLEN", keys.key(queue, LOG)), ("HLEN", keys.key(queue, DETACHED))]
    replies = execute_many(replica, commands)
    for i, watched in enumerate(ranges):
        record, logged, detached = replies[3 * i : 3 * i + 3]
        state = QueueState.from_fields(record)
        removed = 0 if state is None else state.enqueued - logged - detached
        if not _has_reached(watched, state) or removed < watched.removed:
            return f"it has not reached the end {watched.range.upto} of the task in queue {watched.range.queue!r}"
    return ""


def _has_reached(watched: WatchedRange, state: QueueState | None) -> bool:
    """True if a replica with this state has received the messages of a range."""
    return (
        state is not None
        and state.created_at == watched.created_at
        and state.last_sequence >= watched.range.upto
        and state.enqueued >= watched.received
    )


def _log_primary(replica_options: Options, cause: object) -> None:
    log_text(logging.WARNING, f"readFrom: replica {replica_options.address}: {cause}. The primary is read")


class _CheckedWatch:
    """The watch of a range, for pages of the replica. It refuses a page that is older than the plan."""

    def __init__(self, watch: DeletionWatch) -> None:
        self.command: Command = watch.command
        self._watch = watch

    def check(self, reply: Any, after: str) -> None:
        if not _has_reached(self._watch.watched, QueueState.from_fields(reply)):
            queue = self._watch.watched.range.queue
            raise _ReplicaIsOlder(f"its queue {queue!r} is gone, or in an older state than this task has seen")
        self._watch.check(reply, after)


def _checked(watch: PageWatch | None) -> PageWatch | None:
    return _CheckedWatch(watch) if isinstance(watch, DeletionWatch) else watch


def _all_checked(watches: Sequence[PageWatch]) -> list[PageWatch]:
    return [checked for watch in watches if (checked := _checked(watch)) is not None]


class _ReplicaReader(BulkReader):
    """A reader of the primary whose pages come from a replica, as long as the replica has them."""

    def __init__(self, options: Options, replica: BulkReader) -> None:
        super().__init__(options)
        self._replica: BulkReader | None = replica

    def pages(self, key: str, after: str, upto: str, watch: PageWatch | None = None) -> Generator[Page]:
        """Yield the entries of a log, as `BulkReader.pages` does."""
        if (replica := self._used()) is not None:
            try:
                for page in replica.pages(key, after, upto, _checked(watch)):
                    after = page.sequence(-1).decode()
                    yield page
            except _REPLICA_LOST as error:
                self._leave(error)
            else:
                return
        yield from super().pages(key, after, upto, watch)

    def page_groups(
        self, ranges: Sequence[LogRange], watches: Sequence[PageWatch] = ()
    ) -> Iterator[list[tuple[int, Page]]]:
        """Read many small ranges, as `BulkReader.page_groups` does."""
        unread = list(ranges)
        if (replica := self._used()) is not None:
            try:
                for group in replica.page_groups(ranges, _all_checked(watches)):
                    for i, page in group:
                        unread[i] = (unread[i][0], page.sequence(-1).decode(), *unread[i][2:])
                    yield group
            except _REPLICA_LOST as error:
                self._leave(error)
            else:
                return
        yield from super().page_groups(unread, watches)

    def hash_pages(self, key: str) -> Iterator[list[tuple[bytes, bytes]]]:
        """Yield the fields of a hash, as `BulkReader.hash_pages` does."""
        if (replica := self._used()) is not None:
            try:
                yield from replica.hash_pages(key)
            except _REPLICA_LOST as error:
                self._leave(error)
            else:
                return
        yield from super().hash_pages(key)

    def close(self) -> None:
        """Close both connections."""
        super().close()
        if self._replica is not None:
            self._replica.close()

    def _used(self) -> BulkReader | None:
        if self._replica is not None:
            self._replica.max_entries = self.max_entries
        return self._replica

    def _leave(self, error: Exception) -> None:
        """Read the primary from now on."""
        if self._replica is not None:
            self._replica.close()
            self._replica = None
            log_text(logging.WARNING, f"readFrom: {error}. The rest of the task comes from the primary")
