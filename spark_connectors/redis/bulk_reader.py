"""Bulk reads: one connection to each node, raw commands, and one request in flight while the caller uses the last page.

All commands here only read. So after a lost connection a command is sent again, and a page is read again from the last
entry on, at the node that has its key by then. Refusals of Redis raise an error of `errors`, which names the option to
look at.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from contextlib import closing
from itertools import chain
from types import TracebackType
from typing import Any, Protocol, TypeAlias, TypeVar, cast

import numpy as np
import redis
from redis.exceptions import ConnectionError, ReadOnlyError, RedisError, ResponseError, TimeoutError

from rqttl.errors import InvalidInput
from rqttl.events import Events
from rqttl.flows.steps import Read, ReadEachNode, drive
from rqttl.outages import is_away
from rqttl.protocol.contract import pack_command
from rqttl.protocol.keys import Keyspace
from rqttl.store.cluster import Cluster, Seeds
from rqttl.store.exchanges import Exchanges
from rqttl.store.topology import Exchange, OneServer, Trip
from spark_connectors.errors import InvalidOption, NoPermission, RefusedByRedis
from spark_connectors.options.options import Options
from spark_connectors.redis.connect import (
    Command,
    as_source_error,
    connect,
    service_of,
    socket_of,
    with_retries,
    wrong_topology,
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


class _PageCommand(tuple[Any, ...]):
    """A command that reads entries of a log. Its reply is a `Page`, or a list of entries."""

    __slots__ = ()


class _Node:
    """One connection to one server, for exchanges."""

    def __init__(self, connection: redis.Connection) -> None:
        self._connection = connection
        self.loaded: set[str] = set()
        #: The number of times that the connection was closed.
        self.closed = 0
        #: The commands whose replies were not read yet.
        self.in_flight: Sequence[Command] = ()
        #: The size of the next buffer for replies: a quarter more than the last replies needed.
        self._buffer_size = _MIN_BUFFER

    def close(self) -> None:
        """Close the connection. The next command opens it again."""
        self.in_flight, self.closed = (), self.closed + 1
        self._connection.disconnect()

    leave = close  # a node of a cluster has left it

    def send(self, commands: Sequence[Command]) -> None:
        """Send commands, for `round_trip`."""
        self.in_flight = commands
        self._connection.send_packed_command([b"".join([pack_command(command) for command in commands])])

    def round_trip(self, commands: Sequence[Command], *, raw: bool = True) -> list[Any]:
        """Make a round trip, or end that of equal commands in flight. Refusals of Redis are among the replies."""
        pages = sum(isinstance(command, _PageCommand) for command in commands) if raw else 0
        if self.in_flight and self.in_flight != commands:
            self.close()
        try:
            if not self.in_flight:
                self.send(commands)
            if pages and isinstance(commands[0], _PageCommand):
                replies: list[Any] = [*chain(*self._read_raw(pages, len(commands) - pages))]
            else:
                replies = [self._reply() for _ in commands]
        except UnexpectedReply:
            self.close()
            return self.round_trip(commands, raw=False)  # redis-py understands all replies
        except (RedisError, OSError) as error:
            self.close()
            raise error if isinstance(error, RedisError) else ConnectionError(str(error)) from error
        self.in_flight = ()
        return replies

    def _reply(self) -> Any:
        try:
            return self._connection.read_response()
        except ResponseError as error:
            return error

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
                self._buffer_size = max(_MIN_BUFFER, filled + filled // 4)
                return pages, texts


class BulkReader:
    """One connection to each node of Redis, for one thread. Close it, or use it in a `with`.

    It retries failures `connectRetries` times. The count begins anew after each success.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._service, self._keyspace = service_of(options), Keyspace(options.text("namespace"))
        self._topology: OneServer[_Node] | Cluster[_Node]
        if options.address.is_cluster:
            # the pool is never used: it only carries the address
            seeds = Seeds(redis.ConnectionPool(host=options.address.places[0][0]), options.address.places)
            self._topology = Cluster(lambda *place: _Node(connect(options, place=place)), seeds)
        else:
            self._topology = OneServer(_Node(connect(options, service=self._service)))
        self._exchanges = Exchanges(self._topology, self._keyspace, Events(), time.monotonic)
        self._exchanges.patience = 0  # `connectRetries` says how often a call is made again
        #: The node that was last read from.
        self._current: _Node | None = None
        #: The largest number of entries of a page.
        self.max_entries = options.number("fetchEntries")
        self._bytes = options.number("fetchBytes")
        #: The approximate size of an entry.
        self.entry_bytes = self._bytes / _FIRST_PAGE

    @property
    def is_cluster(self) -> bool:
        """True if keys lie at several nodes."""
        return isinstance(self._topology, Cluster)

    def node_of(self, key: str) -> Hashable:
        """Return the node that has a key, as far as this reader knows: it knows once it has run a command."""
        return self._topology.node_of(key)

    @property
    def reconnections(self) -> int:
        """The number of connections that were closed: what is read meanwhile may come from two servers."""
        return sum(node.closed for node in self._topology.made)

    def execute(self, *command: str | bytes | int) -> Any:
        """Run one command that only reads, and return its reply."""
        return self.execute_all([command])[0]

    def execute_all(self, commands: Sequence[Command]) -> list[Any]:
        """Run commands that only read, in one round trip, and return their replies. Raises the first refusal."""

        def ask() -> Exchange[list[Any]]:
            replies = yield from self._exchanges.read(Read(commands, keep_errors=True))
            self._raise_refusals(list(zip(commands, replies, strict=True)))
            return cast("list[Any]", replies)

        return self._insist(ask, commands[0]) if commands else []

    def ask_each_node(self, *command: str) -> dict[Hashable, Any]:
        """Run a command without a key, that only reads, at each node that has keys. Raises the first refusal."""

        def ask() -> Exchange[dict[Hashable, Any]]:
            answers = yield from self._exchanges.read_each_node(ReadEachNode([command], keep_errors=True))
            self._raise_refusals([(command, reply) for (reply,) in answers.values()])
            return {cast("Hashable", node): reply for node, (reply,) in answers.items()}

        return self._insist(ask, command)

    def fetch_pages(self, commands: Sequence[Command], watches: Sequence[PageWatch] = ()) -> list[Page]:
        """Run commands that read entries of logs, in one round trip. Raises the first refusal.

        Returns their pages, after their watches have checked the replies beside them.
        """
        replies = self.execute_all(_with_watches(commands, watches))
        for command, watch, reply in zip(commands, watches, replies[len(commands) :], strict=False):
            watch.check(reply, command[2][1:])
        return [
            reply if isinstance(reply, Page) else Page.from_entries(self._queue_of(command), reply)
            for command, reply in zip(commands, replies, strict=False)
        ]

    def pages(self, key: str, after: str, upto: str, watch: PageWatch | None = None) -> Generator[Page]:
        """Yield the entries of a log after `after`, up to and including `upto`, in rising pages. No page is empty."""
        stop, count = upto.encode(), self._page_size()
        commands = [xrange_command(key, after, upto, count)]
        watches = [watch] if watch else []
        try:
            while True:
                page = self.fetch_pages(commands, watches)[0]
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

    def count_entries(self, key: str, after: str, upto: str, most: int) -> int:
        """Count the entries of a log after `after`, up to and including `upto`. Stops once there are over `most`."""
        total = 0
        with closing(self.pages(key, after, upto)) as pages:
            for page in pages:
                total += len(page)
                if total > most:
                    break
        return total

    def page_groups(
        self, ranges: Sequence[LogRange], watches: Sequence[PageWatch] = ()
    ) -> Iterator[list[tuple[int, Page]]]:
        """Read many small ranges, several in each round trip, while the caller uses the last ones.

        Yields lists of (index of the range, page of its entries). The pages of a range come in order. There are as many
        `watches` as ranges, or none.
        """
        first, commands = 0, self._group(ranges)
        try:
            while commands:
                pages = self.fetch_pages(commands, watches[first:])
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
        cursor, server = b"0", cast("Hashable", None)
        while True:
            cursor, fields = self.execute("HSCAN", key, cursor, "COUNT", min(100, self._page_size()))
            begun, server = server, (self._current, self.reconnections)
            if begun not in (None, server):
                # the cursor of another server means nothing here
                cursor, server = b"0", None
                continue
            yield list(zip(fields[::2], fields[1::2], strict=True))
            if cursor == b"0":
                return

    def refuse_cluster(self) -> None:
        """Raise `InvalidOption` if the one server of the job, no proxy, says that it is a node of a cluster."""
        if not (self.is_cluster or self._options.address.slotted) and self._properties().get(b"mode") == b"cluster":
            raise wrong_topology(self._options)

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
        """Close all connections for good."""
        self._reset()
        if self._service is not None:
            self._service.close()

    def _reset(self) -> None:
        """Close all connections. The next command opens those that it needs, and asks again which node has its key."""
        for node in self._topology.made:
            node.close()
        if isinstance(self._topology, Cluster):
            self._topology.is_known = False

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

    def _queue_of(self, command: Command) -> str:
        parts = self._keyspace.split(command[1].encode())
        return parts[0] if parts else str(command[1])

    def _send(self, commands: Sequence[Command]) -> None:
        """Send commands before their replies are wanted. Those that cannot be sent now are sent then."""
        routed: dict[_Node, list[Command]] = {}
        for command in commands if self._topology.is_known else ():
            routed.setdefault(self._topology.node_of(command[1]), []).append(command)
        for node, own in routed.items():
            self._begin(node, own)

    def _begin(self, node: _Node, commands: Sequence[Command]) -> None:
        if not node.in_flight:
            try:
                node.send(commands)
            except (RedisError, OSError):
                node.close()

    def _insist(self, ask: Callable[[], Exchange[T]], command: Command) -> T:
        """Carry out an exchange, again after a failure. The `command` is for the text of its error."""

        def attempt() -> T:
            try:
                if not self._topology.is_known:
                    drive(self._topology.learn(self._current), self._perform)
                return drive(ask(), self._perform)
            except InvalidInput as error:
                # the topology is another one than the address says
                self._reset()
                text = str(error).removeprefix("url: ")
                raise InvalidOption(f"url: {self._options.address}: {text}") from None

        return with_retries(self._options, attempt, self._reset, command)

    def _perform(self, step: Any) -> Any:
        """Make the round trips of an exchange: all nodes get their calls before one of them is waited for."""
        if isinstance(step, float):
            return time.sleep(step)
        trips: list[Trip] = step if isinstance(step, list) else [step]
        answers: list[Any] = []
        for trip in trips[1:] and trips:
            self._begin(trip.node, trip.calls)
        for trip in trips:
            self._current = trip.node
            try:
                answers.append(trip.node.round_trip(trip.calls))
            except (ConnectionError, TimeoutError) as error:
                if trips is not step:
                    raise
                answers.append(error)
        return answers if trips is step else answers[0]

    def _raise_refusals(self, replies: Sequence[tuple[Command, Any]]) -> None:
        refusals = [(command, reply) for command, reply in replies if isinstance(reply, Exception)]
        for _, error in refusals:
            if is_away(error):
                raise error
        if refusals:
            raise as_source_error(refusals[0][1], self._options, refusals[0][0])

    def _abandon(self) -> None:
        """Close connections whose replies are still in flight, so that they do not answer the next command."""
        for node in self._topology.made:
            if node.in_flight:
                node.close()


def _with_watches(commands: Sequence[Command], watches: Sequence[PageWatch]) -> list[Command]:
    """Append the commands of the watches. Redis runs them after the reads that they watch."""
    return [*map(_PageCommand, commands), *(watch.command for watch in watches[: len(commands)])]


def xrange_command(key: str, after: str, upto: str, count: int) -> Command:
    """Make the command that reads up to `count` entries of a log in `(after, upto]`."""
    return ("XRANGE", key, f"({after}", upto, "COUNT", count)
