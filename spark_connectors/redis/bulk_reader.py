"""Bulk reads: one connection, raw commands, and one request in flight while the caller uses the last page.

All commands here only read. So after a lost connection a command is sent again, and a page is read again from the last
entry on. Refusals of Redis raise an error of `errors`, which names the option to look at.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from types import TracebackType
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np
from redis.exceptions import ConnectionError, ReadOnlyError, RedisError, ResponseError

from rqttl.protocol.contract import pack_command
from rqttl.protocol.keys import Keyspace
from rqttl.store.exchanges import refuses_for_now
from spark_connectors.errors import NoPermission, RefusedByRedis, SourceError
from spark_connectors.options.options import Options
from spark_connectors.redis.connect import (
    Command,
    as_source_error,
    cluster_not_supported,
    connect,
    socket_of,
    with_retries,
)
from spark_connectors.redis.pages import SPARE_BYTES, Page, UnexpectedReply, parse_pages, parse_text_lists

T = TypeVar("T")


class PageWatch(Protocol):
    """A command that is sent with each page of a range, and a check of its reply."""

    @property
    def command(self) -> Command:
        """The command. Redis runs it after it has read the page, and replies with a list of texts."""

    def check(self, reply: Any, after: str) -> None:
        """Check the reply, before the caller gets the page of entries after `after`."""


#: A range of a log: key, after, upto, and an estimate of the number of its entries.
LogRange: TypeAlias = tuple[str, str, str, int]

#: Entries of the first page, whose size nobody knows yet.
_FIRST_PAGE = 64
#: Commands of one round trip.
_MAX_COMMANDS = 64
#: The smallest buffer for replies.
_MIN_BUFFER = 2**16
#: The last bytes of every reply.
_REPLY_END = b"\r\n"


class BulkReader:
    """One connection to Redis, for one thread. Close it, or use it in a `with`.

    It retries failures `connectRetries` times. The count begins anew after each success.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._connection = connect(options)
        self._in_flight = 0
        #: The failure of the last `_send`, which counts as one of the attempts.
        self._failure: Exception | None = None
        #: The largest number of entries of a page.
        self.max_entries = options.number("fetchEntries")
        self._bytes = options.number("fetchBytes")
        #: The size of the next buffer for replies: a quarter more than the last replies needed.
        self._buffer_size = _MIN_BUFFER
        #: The approximate size of an entry.
        self.entry_bytes = self._bytes / _FIRST_PAGE

    def execute(self, *command: str | bytes | int) -> Any:
        """Run one command that only reads, and return its reply."""
        return self.execute_all([command])[0]

    def execute_all(self, commands: Sequence[Command]) -> list[Any]:
        """Run commands that only read, in one round trip, and return their replies. Raises the first refusal."""
        self._send(commands)
        return self._receive(commands, lambda: self._replies(commands))

    def fetch_pages(self, commands: Sequence[Command]) -> list[Page]:
        """Run commands that read entries of logs, in one round trip. Raises the first refusal."""
        self._send(commands)
        return self._pages(commands, ())

    def pages(self, key: str, after: str, upto: str, watch: PageWatch | None = None) -> Generator[Page]:
        """Yield the entries of a log after `after`, up to and including `upto`, in rising pages. No page is empty."""
        stop, count = upto.encode(), self._page_size()
        commands = [xrange_command(key, after, upto, count)]
        watches = [watch] if watch else []
        self._send(_with_watches(commands, watches))
        try:
            while True:
                page = self._pages(commands, watches)[0]
                if len(page) < count or page.sequence(-1) >= stop:
                    if len(page):
                        yield page
                    return
                self._measure(page)
                count = self._page_size()
                commands = [xrange_command(key, page.sequence(-1).decode(), upto, count)]
                self._send(_with_watches(commands, watches))
                yield page
        finally:
            self._abandon()

    def page_groups(
        self, ranges: Sequence[LogRange], watches: Sequence[PageWatch] = ()
    ) -> Iterator[list[tuple[int, Page]]]:
        """Read many small ranges, several in each round trip, while the caller uses the last ones.

        Yields lists of (index of the range, page of its entries). The pages of a range come in order. There are as many
        `watches` as ranges, or none.
        """
        first, commands = 0, self._group(ranges)
        self._send(_with_watches(commands, watches))
        try:
            while commands:
                pages = self._pages(commands, watches[first:])
                for page in pages:
                    self._measure(page)
                begin, first = first, first + len(commands)
                cut_off = [
                    (begin + i, page.sequence(-1)) for i, page in enumerate(pages) if len(page) == commands[i][-1]
                ]
                commands = self._group(ranges[first : first + _MAX_COMMANDS])
                if not cut_off:
                    self._send(_with_watches(commands, watches[first:]))
                if group := [(begin + i, page) for i, page in enumerate(pages) if len(page)]:
                    yield group
                for i, last in cut_off:
                    watch = watches[i] if watches else None
                    for page in self.pages(ranges[i][0], last.decode(), ranges[i][2], watch):
                        yield [(i, page)]
        finally:
            self._abandon()

    def hash_pages(self, key: str) -> Iterator[list[tuple[bytes, bytes]]]:
        """Yield the fields of a hash with their values. A field that exists all the time comes once or more."""
        cursor = b"0"
        while True:
            cursor, fields = self.execute("HSCAN", key, cursor, "COUNT", min(100, self._page_size()))
            yield list(zip(fields[::2], fields[1::2], strict=True))
            if cursor == b"0":
                return

    def refuse_cluster(self) -> None:
        """Raise `ClusterNotSupported` if the server says that it is a node of Redis Cluster."""
        if self._properties().get(b"mode") == b"cluster":
            raise cluster_not_supported(self._options)

    def refuse_replica(self) -> None:
        """Raise `RefusedForNow` if the server says twice that it is a replica: a failover may end in between."""

        def ask() -> None:
            if self._properties().get(b"role") == b"replica":
                raise ReadOnlyError("its role is replica")

        once = {**self._options.explicit, "connectRetries": min(1, self._options.number("connectRetries"))}
        with_retries(Options(self._options.use, once), ask)

    def _properties(self) -> dict[bytes, Any]:
        """Return what the server says of itself: nothing to a user without HELLO. It only improves errors."""
        try:
            reply = self.execute("HELLO", 2)
        except (NoPermission, RefusedByRedis):
            return {}
        return dict(zip(reply[::2], reply[1::2], strict=False))

    def close(self) -> None:
        """Close the connection. The next command opens it again."""
        self._in_flight = 0
        self._connection.disconnect()

    def __enter__(self) -> BulkReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _group(self, ranges: Sequence[LogRange]) -> list[Command]:
        """Make the commands of the first ranges. Their replies together are about as large as two pages."""
        commands: list[Command] = []
        room = 2 * self._page_size()
        for key, after, upto, rows in ranges[:_MAX_COMMANDS]:
            if commands and rows + 1 > room:
                break
            count = min(rows + 1, max(2, room))
            commands.append(xrange_command(key, after, upto, count))
            room -= count
        return commands

    def _page_size(self) -> int:
        return max(1, min(self.max_entries, int(self._bytes / self.entry_bytes)))

    def _measure(self, page: Page) -> None:
        """Update the size of an entry. Pages grow slowly and shrink at once."""
        if len(page):
            self.entry_bytes = max(page.reply_size / len(page), self.entry_bytes / 4)

    def _pages(self, commands: Sequence[Command], watches: Sequence[PageWatch]) -> list[Page]:
        """Receive the pages of these commands, after their watches have checked the replies beside them."""
        sent = _with_watches(commands, watches)
        try:
            pages, replies = self._receive(sent, lambda: self._read_raw(len(commands), len(sent) - len(commands)))
        except UnexpectedReply:
            # redis-py understands all replies
            self.close()
            parsed = self.execute_all(sent)
            pages = [
                Page.from_entries(self._queue_of(command), entries)
                for command, entries in zip(commands, parsed, strict=False)
            ]
            replies = parsed[len(commands) :]
        for command, watch, reply in zip(commands, watches, replies, strict=False):
            watch.check(reply, command[2][1:])
        return pages

    def _queue_of(self, command: Command) -> str:
        parts = Keyspace(self._options.text("namespace")).split(command[1].encode())
        return parts[0] if parts else str(command[1])

    def _read_raw(self, page_count: int, list_count: int) -> tuple[list[Page], list[list[bytes | None]]]:
        """Read this number of pages, and of lists of texts after them."""
        link, buffer, filled, at = socket_of(self._connection), np.empty(self._buffer_size, np.uint8), 0, 0
        pages: list[Page] = []
        while True:
            if len(buffer) - filled <= SPARE_BYTES:
                buffer = np.concatenate([buffer, np.empty_like(buffer)])
            received = link.recv_into(buffer[filled:-SPARE_BYTES].data)
            if not received:
                raise ConnectionError("the server closed the connection")
            filled += received
            if buffer[filled - 2 : filled].tobytes() != _REPLY_END:
                continue
            if len(pages) < page_count:
                complete, at = parse_pages(buffer, at, filled, page_count - len(pages))
                pages += complete
            if len(pages) < page_count:
                continue
            if (texts := parse_text_lists(buffer[at:filled].tobytes(), list_count)) is not None:
                self._in_flight, self._buffer_size = 0, max(_MIN_BUFFER, filled + filled // 4)
                return pages, texts

    def _send(self, commands: Sequence[Command]) -> None:
        """Send commands. After a failure, `_receive` decides whether it sends them again."""
        if not commands:
            return
        try:
            self._connection.send_packed_command([b"".join([pack_command(command) for command in commands])])
            self._in_flight = len(commands)
        except (RedisError, OSError) as error:
            self.close()
            self._failure = error

    def _receive(self, commands: Sequence[Command], read: Callable[[], T]) -> T:
        """Return the result of `read` for the replies to sent commands. After a failure, send all of them again."""

        def attempt() -> T:
            if not self._in_flight and self._failure is None:
                self._connection.connect()
                self._send(commands)
            if self._failure is not None:
                failure, self._failure = self._failure, None
                raise failure
            return read()

        return with_retries(self._options, attempt, self.close, commands[0])

    def _replies(self, commands: Sequence[Command]) -> list[Any]:
        replies: list[Any] = []
        refusals: list[SourceError] = []
        for command in commands:
            try:
                replies.append(self._connection.read_response())
            except ResponseError as error:
                if refuses_for_now(error):
                    raise
                refusals.append(as_source_error(error, self._options, command))
            self._in_flight -= 1
        if refusals:
            raise refusals[0]
        return replies

    def _abandon(self) -> None:
        """Close the connection if replies are still in flight, so that they do not answer the next command."""
        if self._in_flight:
            self.close()


def _with_watches(commands: Sequence[Command], watches: Sequence[PageWatch]) -> list[Command]:
    """Append the commands of the watches. Redis runs them after the reads that they watch."""
    return [*commands, *(watch.command for watch in watches[: len(commands)])]


def xrange_command(key: str, after: str, upto: str, count: int) -> Command:
    """Make the command that reads up to `count` entries of a log in `(after, upto]`."""
    return ("XRANGE", key, f"({after}", upto, "COUNT", count)
