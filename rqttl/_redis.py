"""Talking to Redis: connections, script calls, and what is done when a reply is lost. All I/O of the core is here.

redis-py's own retries are never used for scripts: a call whose reply was lost may have been carried out, and only the
command knows whether it may be run again.
"""

from __future__ import annotations

import os
import re
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar
from urllib.parse import SplitResult, unquote_to_bytes, urlsplit

import redis
from redis.backoff import NoBackoff
from redis.connection import Connection
from redis.exceptions import (
    BusyLoadingError,
    ConnectionError,
    NoScriptError,
    ReadOnlyError,
    ResponseError,
    TimeoutError,
)
from redis.retry import Retry

from rqttl._interrupt import Interrupt
from rqttl._listening import Listener
from rqttl._observing import Observer, checked, heard, word
from rqttl._packing import pack_command
from rqttl._pools import free_connection, is_exhausted, open_pool
from rqttl._retrying import SOCKET_TIMEOUT, NotSent, insist, try_again
from rqttl._scripts import Script
from rqttl.commands import Command, Reply
from rqttl.errors import BrokerClosed, InvalidInput, PoolExhausted
from rqttl.events import Events
from rqttl.text import shown, type_name

T = TypeVar("T")

CONNECT_TIMEOUT = 5.0
#: Seconds for which a connection that was just used is used again without asking the pool, which polls its socket.
FRESH = 1.0
#: Such connections are no more than one in so many of those that the pool may have.
SHARE = 4
_SCHEMES = ("redis", "rediss", "unix")


def open_client(url: str) -> redis.Redis:
    """A client for a URL, without hidden retries and with time-outs. Raises `InvalidInput`, never showing the URL."""
    scheme, found, rest = url.partition("://") if isinstance(url, str) else ("", "", "")
    if scheme not in _SCHEMES or not found:
        got = f"{scheme[:20]!r} as scheme" if found and scheme.isalnum() else "none of them"
        got = got if isinstance(url, str) else shown(url)
        raise InvalidInput(f"url: expected redis://, rediss://, unix:// or embedded://, got {got}")
    retry = Retry(NoBackoff(), 0)
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018  # reading it is the check
        _check_encoding(parts)
        if "@" in rest and "@" not in parts.netloc and scheme != "unix":
            raise ValueError  # an unencoded / ? or # in the password: what follows would be taken for the host
        if scheme != "unix" and not re.fullmatch(r"/?[0-9]*/?", parts.path):
            raise ValueError  # redis-py would quietly use database 0
        pool = open_pool(url, retry=retry, socket_timeout=SOCKET_TIMEOUT, socket_connect_timeout=CONNECT_TIMEOUT)
        if scheme == "unix":
            # redis-py would read bytes that are no text as replacement characters
            pool.connection_kwargs["path"] = os.fsdecode(unquote_to_bytes(os.fsencode(parts.path)))
        pool.connection_class(**pool.connection_kwargs)  # not opened: whether it knows all that the URL asks for
        return redis.Redis(connection_pool=pool)
    except (ValueError, TypeError, redis.RedisError):
        # the text of these errors holds parts of the URL, the password among them
        raise InvalidInput(
            "url: not a valid Redis URL, or one with an unknown option or a database that is no number "
            "(a password with special characters must be %-encoded)"
        ) from None


def _check_encoding(parts: SplitResult) -> None:
    """Raise `UnicodeError`, a `ValueError`, where a connection would: only a path may have bytes that are no text."""
    os.fsencode(parts.path)
    f"{parts.netloc}{parts.query}".encode()
    (parts.hostname or "").encode("idna")


class Store:
    """Runs commands on one Redis server. Safe to share between threads."""

    def __init__(self, client: redis.Redis, events: Events) -> None:
        if not isinstance(client, redis.Redis):
            raise InvalidInput(f"client: expected a redis.Redis (or a URL for connect()), got {type_name(client)}")
        settings = client.connection_pool.connection_kwargs
        if settings.get("decode_responses"):
            raise InvalidInput("client: decode_responses=True is not supported, bodies are bytes")
        self.client = client
        self._pool = client.connection_pool
        self._observer = Observer(events)
        self._loaded: set[str] = set()
        self._idle: deque[tuple[Connection, float]] = deque()
        self._process = os.getpid()
        self._listener = Listener(client, self._ask, self._give_back)
        self._closed = False

    def check_open(self) -> None:
        """Raise `BrokerClosed` after `close`."""
        if self._closed:
            raise BrokerClosed

    def run(self, command: Command) -> Reply:
        """Run a command. Repeats it after a lost reply if it is repeatable, else raises `OutcomeUnknown`."""
        return self._observer.one((command.script.name, command.queue), lambda: insist(command, self._send_one), word)

    def run_together(self, commands: Sequence[Command], *, tolerant: bool = False) -> list[Any]:
        """Run commands in one round trip, in order. After a lost reply all are repeated, or none if one must not be.

        `tolerant`: the error of a command that met a damaged queue takes the place of its reply. Every other error is
        raised.
        """
        for script in {command.script for command in commands}:
            # loaded beforehand, so that none of them is missing halfway and then overtaken by the next
            if script.sha not in self._loaded:
                self._load(script)
        strictest = next((command for command in commands if not command.repeatable), commands[0])
        replies = self._observer.each(
            lambda: [(command.script.name, command.queue) for command in commands],
            lambda: insist(strictest, lambda _: self._send_scripts(commands)),
        )
        replies = [
            self.run(command) if isinstance(reply, NoScriptError) else reply
            for command, reply in zip(commands, replies, strict=True)
        ]
        return checked(replies, tolerant=tolerant)

    def read(self, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Run plain commands of Redis in one round trip, in order; all may be repeated.

        The error of a command that met a key of another type takes the place of its reply. Every other error is raised.
        """
        return checked(self.ask(calls), tolerant=True)

    def ask(self, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Run plain commands of Redis as `read` does. The error of any command takes the place of its reply."""
        return self._observer.each(
            lambda: [(str(call[0]), None) for call in calls], lambda: try_again(lambda: self._send_all(calls))
        )

    def run_plain(self, name: str, call: Callable[[redis.Redis], T]) -> T:
        """Run an ordinary command, `name` for listeners, that may be repeated."""
        try:
            return self._observer.one((name, None), lambda: try_again(lambda: self._call(call)))
        except ConnectionError as error:
            if is_exhausted(error):
                raise PoolExhausted(int(self._pool.max_connections)) from error
            raise

    def _call(self, call: Callable[[redis.Redis], T]) -> T:
        self.check_open()
        self._give_back()
        return call(self.client)

    def listen(self, queue: str, key: str, ms: int, interrupt: Interrupt | None = None) -> bytes | PoolExhausted | None:
        """Wait for an element of a list on a connection of its own; see `Listener`."""
        return self._observer.one(("BLPOP", queue), lambda: self._listener.listen(key, ms, interrupt), heard)

    def interrupt(self) -> None:
        """End every `listen`, from now on. It takes no lock, so a signal handler may call it."""
        self._listener.interrupt()

    def close(self) -> None:
        """Close all connections but those that are in use at this moment, which are closed after that."""
        self._closed = True
        self.interrupt()
        self._give_back()
        self._listener.close()
        self._pool.disconnect(inuse_connections=False)

    def _take(self) -> Connection:
        """A connection that nobody else uses: one that was in use a moment ago, or one that the pool has checked."""
        if self._process != os.getpid():
            # the connections of the parent process are the parent's
            self._idle, self._process = deque(), os.getpid()
        try:
            return free_connection(self._pool, self._take_idle)
        except (ConnectionError, TimeoutError) as error:
            raise NotSent from error

    def _take_idle(self) -> Connection | None:
        self.check_open()
        now = time.monotonic()
        while self._idle:
            try:
                connection, since = self._idle.pop()
            except IndexError:
                break
            if now - since < FRESH:
                return connection
            self._pool.release(connection)
        return None

    def _keep(self, connection: Connection) -> None:
        """Keep a connection for the next call, but leave most of a small pool to others. After `close`, close it."""
        if len(self._idle) < self._pool.max_connections // SHARE:
            self._idle.append((connection, time.monotonic()))
        else:
            self._pool.release(connection)
        if self._closed:
            self.close()

    def _give_back(self) -> None:
        """Leave all connections to the pool: it may have room for a few only, and a client's call needs one of them."""
        while True:
            try:
                connection, _ = self._idle.pop()
            except IndexError:
                return
            self._pool.release(connection)

    def _send_one(self, command: Command) -> Reply:
        connection = self._take()
        script, words = command.script, ("EVALSHA", command.script.sha, *command.words)
        try:
            try:
                reply: Reply = self._ask(connection, words)
            except NoScriptError:
                self._loaded.discard(script.sha)
                self._observer.one(
                    ("SCRIPT LOAD", None), lambda: self._ask(connection, ("SCRIPT", "LOAD", script.text))
                )
                self._loaded.add(script.sha)
                reply = self._ask(connection, words)
        except ResponseError:
            raise
        except BaseException:
            # a reply may still be on its way, and must not answer the next call
            connection.disconnect()
            raise
        finally:
            self._keep(connection)
        return reply

    def _send_scripts(self, commands: Sequence[Command]) -> list[Any]:
        replies = self._send_all([("EVALSHA", command.script.sha, *command.words) for command in commands])
        refused = [one for one in replies if isinstance(one, ResponseError) and not isinstance(one, NoScriptError)]
        if refused and len(refused) == len(replies):
            self._meet(refused[0])
        return replies

    def _send_all(self, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Send calls together, and read their replies; errors of Redis are among them."""
        connection = self._take()
        replies: list[Any] = []
        try:
            self._connect(connection)
            # when this fails, the first of them may have arrived whole
            connection.send_packed_command([b"".join([pack_command(call) for call in calls])])
            for _ in calls:
                try:
                    replies.append(connection.read_response())
                except ResponseError as error:
                    replies.append(error)
        except BaseException:
            connection.disconnect()
            raise
        finally:
            self._keep(connection)
        return replies

    def _connect(self, connection: Connection) -> None:
        try:
            connection.connect()
        except (ConnectionError, TimeoutError) as error:
            raise NotSent from error

    def _ask(self, connection: Connection, words: tuple[Any, ...]) -> Any:
        self._write(connection, pack_command(words))
        try:
            return connection.read_response()
        except BusyLoadingError as error:
            raise NotSent from error
        except ResponseError as error:
            self._meet(error)
            raise

    def _meet(self, error: ResponseError) -> None:
        """Raise `NotSent` where another server must be asked: a script is refused at its first write by a replica."""
        if isinstance(error, ReadOnlyError) or "READONLY" in str(error):  # 6.2 wraps what a script meets
            self._give_back()
            self._pool.disconnect(inuse_connections=False)  # those of other threads find out by themselves
            raise NotSent from error

    def _write(self, connection: Connection, packed: bytes) -> None:
        try:
            connection.send_packed_command([packed])
        except (ConnectionError, TimeoutError) as error:
            # Redis runs only what it has received whole
            raise NotSent from error

    def _load(self, script: Script) -> None:
        self.run_plain("SCRIPT LOAD", lambda client: client.script_load(script.text))
        self._loaded.add(script.sha)
