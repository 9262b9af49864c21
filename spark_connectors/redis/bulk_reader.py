"""Talking to Redis for bulk reads: one connection, raw commands, one request in flight while the last page is used.

Every command here only reads, so one whose reply was lost is sent again, and a page is asked for again from the last
entry that was seen. What Redis refuses is raised as an error of `errors`, which names the option to look at.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from types import TracebackType
from typing import Any, Protocol, TypeVar

import numpy as np
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    ConnectionError,
    RedisError,
    ResponseError,
    TimeoutError,
)

from rqttl._packing import pack_command
from rqttl.keys import Keyspace
from spark_connectors.errors import SourceError
from spark_connectors.options.options import Options
from spark_connectors.redis import pages
from spark_connectors.redis.connect import Words, connect, link_of, pauses, translated
from spark_connectors.redis.pages import SPARE, Odd, Page

T = TypeVar("T")


class Watch(Protocol):
    """Something to ask with each page of a range, in the same round trip and after it."""

    @property
    def words(self) -> Words:
        """The command: one whose reply is a list of texts."""

    def told(self, reply: Any, after: str) -> None:
        """Judge the reply that came with the page that begins behind `after`, before anybody sees the page."""


#: Entries of the first page: how large they are is not known yet.
_FIRST_PAGE = 64
#: Commands of one round trip.
_MOST_CALLS = 64
#: The least that is made room for.
_CHUNK = 2**16
#: What every reply ends with.
_END = b"\r\n"


class Wire:
    """One connection to Redis, for one thread. Close it, or use it in a `with`.

    Failures are retried as `connectRetries` and `retryBackoff` say, counted anew after each success.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._connection = connect(options)
        self._pauses = pauses(options)
        self._in_flight = 0
        #: The most entries of a page.
        self.most = options.number("fetchEntries")
        self._bytes = options.number("fetchBytes")
        #: Bytes that a buffer for replies is made of: a quarter more than the last one needed.
        self._room = _CHUNK
        #: About how large an entry is.
        self.entry_bytes = self._bytes / _FIRST_PAGE

    def ask(self, *words: str | bytes | int) -> Any:
        """The reply to one command that only reads."""
        return self.ask_all([words])[0]

    def ask_all(self, calls: Sequence[Words]) -> list[Any]:
        """The replies to commands that only read, in one round trip. The first refusal is raised."""
        self._send(calls)
        return self._receive(calls, lambda: self._replies(calls))

    def ask_pages(self, calls: Sequence[Words]) -> list[Page]:
        """The replies to commands that ask for entries of logs, in one round trip. The first refusal is raised."""
        self._send(calls)
        return self._pages(calls, ())

    def pages(self, key: str, after: str, upto: str, watch: Watch | None = None) -> Generator[Page]:
        """The entries of a stream after `after`, up to and with `upto`, in pages of rising order, none empty."""
        stop, count = upto.encode(), self._page_size()
        calls = [_range(key, after, upto, count)]
        watches = [watch] if watch else []
        self._send(_with(calls, watches))
        try:
            while True:
                page = self._pages(calls, watches)[0]
                if len(page) < count or page.place(-1) >= stop:
                    if len(page):
                        yield page
                    return
                self._measure(page)
                count = self._page_size()
                calls = [_range(key, page.place(-1).decode(), upto, count)]
                self._send(_with(calls, watches))
                yield page
        finally:
            self._abandon()

    def groups(
        self, wanted: Sequence[tuple[str, str, str, int]], watches: Sequence[Watch] = ()
    ) -> Iterator[list[tuple[int, Page]]]:
        """Many small ranges `(key, after, upto, rows)`, several in each round trip, while the last ones are used.

        Gives lists of (index of the range, its entries or its next entries); those of one range in order. There are as
        many `watches` as ranges, or none.
        """
        first, calls = 0, self._group(wanted)
        self._send(_with(calls, watches))
        try:
            while calls:
                found = self._pages(calls, watches[first:])
                for page in found:
                    self._measure(page)
                begin, first = first, first + len(calls)
                rest = [(begin + i, page.place(-1)) for i, page in enumerate(found) if len(page) == calls[i][-1]]
                calls = self._group(wanted[first : first + _MOST_CALLS])
                if not rest:
                    self._send(_with(calls, watches[first:]))
                if full := [(begin + i, page) for i, page in enumerate(found) if len(page)]:
                    yield full
                for i, last in rest:
                    watch = watches[i] if watches else None
                    for page in self.pages(wanted[i][0], last.decode(), wanted[i][2], watch):
                        yield [(i, page)]
        finally:
            self._abandon()

    def hash_pages(self, key: str) -> Iterator[list[tuple[bytes, bytes]]]:
        """The fields of a hash with their values, each field once or more. What is there throughout is not missed."""
        cursor = b"0"
        while True:
            cursor, found = self.ask("HSCAN", key, cursor, "COUNT", min(100, self._page_size()))
            yield list(zip(found[::2], found[1::2], strict=True))
            if cursor == b"0":
                return

    def close(self) -> None:
        """Close the connection. The next command opens it again."""
        self._in_flight = 0
        self._connection.disconnect()

    def __enter__(self) -> Wire:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _group(self, wanted: Sequence[tuple[str, str, str, int]]) -> list[Words]:
        """The first commands, so many that their replies together are about as large as two pages."""
        calls: list[Words] = []
        room = 2 * self._page_size()
        for key, after, upto, rows in wanted[:_MOST_CALLS]:
            if calls and rows + 1 > room:
                break
            count = min(rows + 1, max(2, room))
            calls.append(_range(key, after, upto, count))
            room -= count
        return calls

    def _page_size(self) -> int:
        return max(1, min(self.most, int(self._bytes / self.entry_bytes)))

    def _measure(self, page: Page) -> None:
        """Learn how large entries are; growing slowly, shrinking at once."""
        if len(page):
            self.entry_bytes = max(page.size / len(page), self.entry_bytes / 4)

    def _pages(self, calls: Sequence[Words], watches: Sequence[Watch]) -> list[Page]:
        """The pages that were asked for, once their watches have been told what came with them."""
        asked = _with(calls, watches)
        try:
            found, replies = self._receive(asked, lambda: self._raw(len(calls), len(asked) - len(calls)))
        except Odd:
            # redis-py knows what all replies mean
            self.close()
            taken = self.ask_all(asked)
            found = [Page.of(self._queue(call), page) for call, page in zip(calls, taken, strict=False)]
            replies = taken[len(calls) :]
        for call, watch, reply in zip(calls, watches, replies, strict=False):
            watch.told(reply, call[2][1:])
        return found

    def _queue(self, call: Words) -> str:
        parts = Keyspace(self._options.text("namespace")).split(call[1].encode())
        return parts[0] if parts else str(call[1])

    def _raw(self, count: int, more: int) -> tuple[list[Page], list[list[bytes | None]]]:
        """Read so many pages, and so many lists of texts after them."""
        link, buffer, filled, at = link_of(self._connection), np.empty(self._room, np.uint8), 0, 0
        given: list[Page] = []
        while True:
            if len(buffer) - filled <= SPARE:
                buffer = np.concatenate([buffer, np.empty_like(buffer)])
            got = link.recv_into(buffer[filled:-SPARE].data)
            if not got:
                raise ConnectionError("it closed the connection")
            filled += got
            if buffer[filled - 2 : filled].tobytes() != _END:
                continue
            if len(given) < count:
                found, at = pages.pages(buffer, at, filled, count - len(given))
                given += found
            if len(given) < count:
                continue
            if (texts := pages.texts(buffer[at:filled].tobytes(), more)) is not None:
                self._in_flight, self._room = 0, max(_CHUNK, filled + filled // 4)
                return given, texts

    def _send(self, calls: Sequence[Words]) -> None:
        """Put commands on their way. When that fails, `_receive` finds out and sends them again."""
        if not calls:
            return
        try:
            self._connection.send_packed_command([b"".join([pack_command(call) for call in calls])])
            self._in_flight = len(calls)
        except (ConnectionError, TimeoutError, OSError):
            self.close()
        except RedisError as error:
            self.close()
            raise translated(error, self._options, calls[0]) from None

    def _receive(self, calls: Sequence[Words], read: Callable[[], T]) -> T:
        """What `read` reads of the replies to what `_send` sent; after a failure everything is asked once more."""
        for pause in (*self._pauses, None):
            try:
                if not self._in_flight:
                    self._connection.connect()
                    self._send(calls)
                return read()
            except (ConnectionError, TimeoutError, BusyLoadingError, OSError) as error:
                self.close()
                if pause is None or isinstance(error, AuthenticationError):
                    raise translated(error, self._options) from None
            except RedisError as error:
                self.close()
                raise translated(error, self._options) from None
            time.sleep(pause)
        raise AssertionError("the last attempt returns or raises")

    def _replies(self, calls: Sequence[Words]) -> list[Any]:
        replies: list[Any] = []
        refused: list[SourceError] = []
        for words in calls:
            try:
                replies.append(self._connection.read_response())
            except BusyLoadingError:
                raise
            except ResponseError as error:
                refused.append(translated(error, self._options, words))
            self._in_flight -= 1
        if refused:
            raise refused[0]
        return replies

    def _abandon(self) -> None:
        """Whoever stops early leaves replies on their way, which must not answer the next command."""
        if self._in_flight:
            self.close()


def _with(calls: Sequence[Words], watches: Sequence[Watch]) -> list[Words]:
    """Commands, and what is to be asked with them. What is watched is judged after it was read."""
    return [*calls, *(watch.words for watch in watches[: len(calls)])]


def _range(key: str, after: str, upto: str, count: int) -> Words:
    return ("XRANGE", key, f"({after}", upto, "COUNT", count)


def keep_gc_quiet() -> Callable[[], None]:
    """Raise the threshold of the garbage collector, which a reader's pages set off constantly; gives the way back.

    A worker of Spark holds some 70,000 objects, so one full collection takes 20 ms.
    """
    reader = object()
    # one that begins while another reads must not bring back what that one set
    _quiet[reader] = next(iter(_quiet.values()), gc.get_threshold())
    gc.set_threshold(200_000, 20, 20)

    def restore() -> None:
        before = _quiet.pop(reader, None)
        if before is not None and not _quiet:
            gc.set_threshold(*before)

    return restore


#: Who reads in this process just now, with the thresholds before the first of them.
_quiet: dict[object, tuple[int, int, int]] = {}
