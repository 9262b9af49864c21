"""One limit for several servers: the shares of `time_share` and `limits`, over the queues of all servers.

A share knows queues by their names only. Here a queue has the name of its server before its own, and each server
answers the requests for its queues. So the sequences of all servers are one order, as good as their clocks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TypeAlias, TypeVar

from spark_connectors.read.positions import QueuePosition
from spark_connectors.redis.bulk_reader import BulkReader
from spark_connectors.redis.digits import Array
from spark_connectors.stream.batch_limiter import BatchLimiter, serve
from spark_connectors.stream.leap import Leap, Stretch, exact_leaps, leaps
from spark_connectors.stream.limits import FairShare, ReadRequest, ReadResult
from spark_connectors.stream.servers.offset import NO_QUEUE, QueueOfServer
from spark_connectors.stream.time_share import PageRequest, ReadAhead, TimeShare, UnreadRange
from spark_connectors.stream.unread import BatchLimit, Unread

Request = TypeVar("Request", PageRequest, ReadRequest)
Answer = TypeVar("Answer")
#: The positions at the end of a batch, by server and queue.
Ends: TypeAlias = dict[str, dict[str, QueuePosition]]
#: A guard for the work with one server.
Guard: TypeAlias = Callable[[str], AbstractContextManager[None]]

#: Between the name of a server and that of a queue. It sorts before all characters of a name.
_SEPARATOR = "\0"


@dataclass(frozen=True, slots=True)
class ServerPart:
    """The unread messages of one server, with its limiter and its connection."""

    limiter: BatchLimiter
    reader: BulkReader
    unread: Mapping[str, Unread]

    @property
    def rows(self) -> int:
        """An upper bound of the number of unread messages."""
        return sum(queue.rows for queue in self.unread.values())

    def leapt(self, server: str, reached: Mapping[str, Leap]) -> ServerPart:
        """Return the part, of which a batch has all messages up to these marks."""
        unread = {name: queue.leapt(reached.get(_joined(server, name))) for name, queue in self.unread.items()}
        return replace(self, unread=unread)


class SharedLimit:
    """Finds the end of one batch. All work with a server runs in its guard."""

    def __init__(self, parts: Mapping[str, ServerPart], guard: Guard) -> None:
        self._parts, self._guard = parts, guard

    def ends(self, limit: BatchLimit, next_queue: QueueOfServer, *, equal: bool) -> tuple[Ends, QueueOfServer]:
        """Return the positions at the end of the batch, and the queue that the next batch serves first.

        Queues that the batch reads to their end are left out if the limit admits all messages.
        """
        if not limit.in_bytes and sum(part.rows for part in self._parts.values()) <= limit.amount:
            return {}, NO_QUEUE
        return self._share_equally(limit, next_queue) if equal else (self._share_by_time(limit), NO_QUEUE)

    def _share_by_time(self, limit: BatchLimit) -> Ends:
        reached = self._leaps(limit)
        parts = {server: part.leapt(server, reached) for server, part in self._parts.items()}
        left = limit.amount - sum(leap.cost for leap in reached.values())
        if left == 0:
            return {
                server: {name: queue.end(queue.begin, 0) for name, queue in part.unread.items()}
                for server, part in parts.items()
            }
        ranges: dict[str, UnreadRange] = {}
        for server, part in parts.items():
            with self._guard(server):
                of_server = part.limiter.unread_ranges(part.reader, part.unread)
            ranges.update({_joined(server, queue): unread for queue, unread in of_server.items()})
        share = TimeShare(left, ranges, in_bytes=limit.in_bytes, begun=bool(reached))
        while requests := share.requests(min(part.limiter.scan.room for part in self._parts.values())):
            for request, page in zip(requests, self._answers(requests, self._pages), strict=True):
                share.add(request, *page)
        ahead = share.read_ahead()
        return {
            server: part.limiter.ends_by_time(part.unread, _OutcomeOfServer(server, share, ahead))
            for server, part in parts.items()
        }

    def _leaps(self, limit: BatchLimit) -> dict[str, Leap]:
        """Return the leaps of the queues of all servers to one time."""
        total = sum(part.rows for part in self._parts.values())
        stretches: dict[str, Stretch] = {}
        for server, part in self._parts.items():
            with self._guard(server):
                of_server = part.limiter.stretches(part.reader, part.unread, limit, total)
            stretches.update({_joined(server, queue): stretch for queue, stretch in of_server.items()})
        if not limit.in_bytes:
            return leaps(limit.amount, stretches)
        return exact_leaps(limit.amount, stretches, self._exact)

    def _exact(self, stretches: Mapping[str, Stretch]) -> dict[str, Stretch]:
        """Return the stretches with the exact bytes before their first mark."""
        known: dict[str, Stretch] = {}
        for server, part in self._parts.items():
            own = {queue: stretches[name] for queue in part.unread if (name := _joined(server, queue)) in stretches}
            with self._guard(server):
                exact = part.limiter.exact(part.reader, part.unread, own)
            known.update({_joined(server, queue): stretch for queue, stretch in exact.items()})
        return known

    def _share_equally(self, limit: BatchLimit, next_queue: QueueOfServer) -> tuple[Ends, QueueOfServer]:
        scans = {}
        for server, part in self._parts.items():
            with self._guard(server):
                scans[server] = part.limiter.budget_scan(part.reader, part.unread, limit)
        shares = {
            _joined(server, queue): unread.share()
            for server, part in self._parts.items()
            for queue, unread in part.unread.items()
        }
        fair = FairShare(limit.amount, shares, _joined(*next_queue) if next_queue != NO_QUEUE else "")

        def answer(server: str, requests: list[ReadRequest]) -> list[ReadResult]:
            return scans[server].answer(requests)

        serve(fair, lambda requests: self._answers(requests, answer))
        ends: Ends = {server: {} for server in self._parts}
        for name, share in fair.shares.items():
            server, queue = _split(name)
            ends[server][queue] = self._parts[server].unread[queue].after_share(share)
        return ends, _split(fair.next_queue) if fair.next_queue else NO_QUEUE

    def _pages(self, server: str, requests: list[PageRequest]) -> list[tuple[Array, Array]]:
        part = self._parts[server]
        return part.limiter.scan.read(part.reader, requests)

    def _answers(
        self, requests: Sequence[Request], answer: Callable[[str, list[Request]], list[Answer]]
    ) -> list[Answer]:
        """Have each server answer the requests for its queues. Returns the answers in the order of the requests."""
        answers: dict[int, Answer] = {}
        of_servers: dict[str, list[int]] = {}
        for i, request in enumerate(requests):
            of_servers.setdefault(_split(request.queue)[0], []).append(i)
        for server, indices in of_servers.items():
            own = [replace(requests[i], queue=_split(requests[i].queue)[1]) for i in indices]
            with self._guard(server):
                answers.update(zip(indices, answer(server, own), strict=True))
        return [answers[i] for i in range(len(requests))]


class _OutcomeOfServer:
    """The outcome of a share by time for the queues of one server."""

    def __init__(self, server: str, share: TimeShare, ahead: Mapping[str, ReadAhead]) -> None:
        self._server, self._share, self._ahead = server, share, ahead

    def end_of(self, queue: str) -> int:
        return self._share.end_of(_joined(self._server, queue))

    def rows_of(self, queue: str) -> int:
        return self._share.rows_of(_joined(self._server, queue))

    def read_ahead(self) -> dict[str, ReadAhead]:
        pairs = ((_split(name), ahead) for name, ahead in self._ahead.items())
        return {queue: ahead for (server, queue), ahead in pairs if server == self._server}


def _joined(server: str, queue: str) -> str:
    return f"{server}{_SEPARATOR}{queue}"


def _split(name: str) -> QueueOfServer:
    server, _, queue = name.rpartition(_SEPARATOR)
    return server, queue
