"""Talking to Redis for bulk reads: one connection, raw commands, one request in flight while the last page is used.

Every command here only reads, so one whose reply was lost is sent again, and a page is asked for again from the last
entry that was seen. What Redis refuses is raised as an error of `errors`, which names the option to look at.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, TypeAlias, TypeVar

from redis.backoff import NoBackoff
from redis.connection import Connection, SSLConnection, UnixDomainSocketConnection
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    ConnectionError,
    NoPermissionError,
    RedisError,
    ResponseError,
    TimeoutError,
)
from redis.retry import Retry

from rqttl._packing import pack_command
from spark_connectors.errors import (
    InvalidOption,
    NoPermission,
    NotAuthenticated,
    RefusedByRedis,
    SourceError,
    Unreachable,
)
from spark_connectors.options import Options
from spark_connectors.secret import masked

T = TypeVar("T")
#: What a command is made of.
Words: TypeAlias = tuple[Any, ...]
#: An entry of a log as Redis gives it: `[sequence, [packed header, body]]`.
Entry: TypeAlias = list[Any]


class Watch(Protocol):
    """Something to ask with each page of a range, in the same round trip and after it."""

    @property
    def words(self) -> Words:
        """The command."""

    def told(self, reply: Any, after: str) -> None:
        """Judge the reply that came with the page that begins behind `after`, before anybody sees the page."""


#: The commands that a reader needs, as an ACL grants them.
READING = ("hmget", "hlen", "hscan", "smembers", "xlen", "xrange", "xrevrange")
CONNECT_TIMEOUT = 5.0
_FILES = ("tlsCaFile", "tlsCertFile", "tlsKeyFile")
#: Entries of the first page: how large they are is not known yet.
_FIRST_PAGE = 64
#: Each how many entries of a page one is measured.
_EACH = 16
_OVERHEAD = 40
#: Commands of one round trip.
_MOST_CALLS = 64
_LONGEST_PAUSE = 10.0


def connect(options: Options) -> Connection:
    """A connection for these options, not opened yet: no hidden retries, RESP2, nothing said about the client.

    The password is read here, so this belongs where the connection is used. Raises `InvalidOption`.
    """
    address, password = options.address, options.password()
    for name in _FILES:
        if (file := options.maybe_text(name)) is not None and not Path(file).is_file():
            raise InvalidOption(f"{name}: {file!r} is no file here; driver and executors both need it")
    kind: type[Any] = Connection
    settings: dict[str, Any] = {"host": address.host, "port": address.port, "socket_keepalive": True}
    if address.path:
        kind, settings = UnixDomainSocketConnection, {"path": address.path}
    elif address.tls:
        kind = SSLConnection
        verify = options.flag("tlsVerify")
        settings |= {
            "ssl_ca_certs": options.maybe_text("tlsCaFile"), "ssl_certfile": options.maybe_text("tlsCertFile"),
            "ssl_keyfile": options.maybe_text("tlsKeyFile"), "ssl_check_hostname": verify,
            "ssl_cert_reqs": "required" if verify else "none",
        }  # fmt: skip
    timeout = options.number("socketTimeout") / 1000
    connection: Connection = kind(
        db=address.db,
        username=options.maybe_text("username"),
        password=None if password is None else password.reveal(),
        socket_timeout=timeout,
        socket_connect_timeout=min(timeout, CONNECT_TIMEOUT),
        retry=Retry(NoBackoff(), 0),
        protocol=2,
        **settings,
    )
    for name in ("driver_info", "lib_name", "lib_version"):
        # CLIENT SETINFO: a user with few rights may not say it, and the ACL log would note each attempt
        setattr(connection, name, None)
    return connection


def pauses(options: Options) -> tuple[float, ...]:
    """Seconds to wait before each further attempt to reach Redis."""
    first = options.number("retryBackoff") / 1000
    return tuple(min(_LONGEST_PAUSE, first * 2**i) for i in range(options.number("connectRetries")))


def translated(error: Exception, options: Options, words: Words = ()) -> SourceError:
    """What went wrong, for the user of the data source: which option to look at, and no secret.

    `words` is the command that was refused.
    """
    password = options.password()
    text = masked(str(error), None if password is None else password.reveal())
    user = options.maybe_text("username") or "default"
    if isinstance(error, AuthenticationError) or "NOAUTH" in text or "WRONGPASS" in text:
        return NotAuthenticated(
            f"username, passwordEnv, passwordFile: {options.address} refuses user {user!r} with this password: {text}"
        )
    if isinstance(error, NoPermissionError) or "NOPERM" in text:
        command, keys = str(words[0]).upper() if words else "it", f"{options.text('namespace')}:*"
        needed = f"Reading needs the keys {keys} and the commands {' '.join(READING)}"
        if options.use == "write":
            needed = f"Writing needs the keys {keys}; `rqttl doctor`, run as this user, says what is missing"
        return NoPermission(f"username: user {user!r} may not do {command}: {text}. {needed}")
    if isinstance(error, (ConnectionError, TimeoutError, OSError)):
        return Unreachable(f"url: {options.address} cannot be reached: {text}")
    said = " ".join(str(word)[:80] for word in words[:2])
    return RefusedByRedis(f"url: {options.address} refused {said}: {text}")


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
        #: About how large an entry is.
        self.entry_bytes = self._bytes / _FIRST_PAGE

    def ask(self, *words: str | bytes | int) -> Any:
        """The reply to one command that only reads."""
        return self.ask_all([words])[0]

    def ask_all(self, calls: Sequence[Words]) -> list[Any]:
        """The replies to commands that only read, in one round trip. The first refusal is raised."""
        self._send(calls)
        return self._receive(calls)

    def pages(self, key: str, after: str, upto: str, watch: Watch | None = None) -> Generator[list[Entry]]:
        """The entries of a stream after `after`, up to and with `upto`, in pages of rising order, none empty."""
        stop, count = upto.encode(), self._page_size()
        calls = [_range(key, after, upto, count)]
        watches = [watch] if watch else []
        self._send(_with(calls, watches))
        try:
            while True:
                page = self._watched(calls, watches)[0]
                if len(page) < count or page[-1][0] >= stop:
                    if page:
                        yield page
                    return
                self._measure(page)
                count = self._page_size()
                calls = [_range(key, page[-1][0].decode(), upto, count)]
                self._send(_with(calls, watches))
                yield page
        finally:
            self._abandon()

    def groups(
        self, wanted: Sequence[tuple[str, str, str, int]], watches: Sequence[Watch] = ()
    ) -> Iterator[list[tuple[int, list[Entry]]]]:
        """Many small ranges `(key, after, upto, rows)`, several in each round trip, while the last ones are used.

        Gives lists of (index of the range, its entries or its next entries); those of one range in order. There are as
        many `watches` as ranges, or none.
        """
        first, calls = 0, self._group(wanted)
        self._send(_with(calls, watches))
        try:
            while calls:
                pages = self._watched(calls, watches[first:])
                for page in pages:
                    self._measure(page)
                begin, first = first, first + len(calls)
                rest = [(begin + i, page[-1][0]) for i, page in enumerate(pages) if len(page) == calls[i][-1]]
                calls = self._group(wanted[first : first + _MOST_CALLS])
                if not rest:
                    self._send(_with(calls, watches[first:]))
                if found := [(begin + i, page) for i, page in enumerate(pages) if page]:
                    yield found
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

    def _measure(self, page: list[Entry]) -> None:
        """Learn from some entries of a page how large they are; growing slowly, shrinking at once."""
        looked = page[::_EACH]
        if looked:
            size = sum(len(entry[1][0]) + len(entry[1][-1]) for entry in looked) / len(looked) + _OVERHEAD
            self.entry_bytes = max(size, self.entry_bytes / 4)

    def _watched(self, calls: Sequence[Words], watches: Sequence[Watch]) -> list[list[Entry]]:
        """The pages that were asked for, once their watches have been told what came with them."""
        replies = self._receive(_with(calls, watches))
        for call, watch, reply in zip(calls, watches, replies[len(calls) :], strict=False):
            watch.told(reply, call[2][1:])
        return replies[: len(calls)]

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

    def _receive(self, calls: Sequence[Words]) -> list[Any]:
        """The replies to what `_send` sent; after a failure everything is asked once more."""
        for pause in (*self._pauses, None):
            try:
                if not self._in_flight:
                    self._connection.connect()
                    self._send(calls)
                return self._replies(calls)
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
