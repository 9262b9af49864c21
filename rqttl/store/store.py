"""Calls to Redis: scripts, plain commands, and the treatment of lost replies. All I/O of the core is here.

Scripts never use redis-py's own retries. Redis may have carried out a call whose reply was lost, and only the command
knows whether it may run again. No call goes through a client of redis-py: after an exception the client's pool would
keep a connection with an unread reply, and that reply would answer the next call.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast
from urllib.parse import SplitResult, unquote_to_bytes, urlsplit

import redis
from redis.backoff import NoBackoff
from redis.connection import Connection
from redis.exceptions import BusyLoadingError, ConnectionError, NoScriptError, ResponseError, TimeoutError
from redis.retry import Retry

from rqttl.errors import ContractError, InvalidInput, PoolExhausted, ScriptsForgotten
from rqttl.events import Events
from rqttl.protocol.commands import Command, Reply
from rqttl.protocol.contract import Repeated
from rqttl.protocol.replies import command_name
from rqttl.protocol.resp import pack_command
from rqttl.runtime.interrupt import Interrupt
from rqttl.store.blocking import Listener
from rqttl.store.connections import Connections
from rqttl.store.observer import Observer, checked, ok, reply_outcome, wait_outcome
from rqttl.store.pools import Held, open_pool
from rqttl.store.refusals import is_read_only, refuses_for_now
from rqttl.store.retry import SOCKET_TIMEOUT, NotSent, try_again, with_retries
from rqttl.text import format_value, type_name

T = TypeVar("T")

CONNECT_TIMEOUT = 5.0
#: The number of times that one call loads its scripts again.
FORGOTTEN = 5
_SCHEMES = ("redis", "rediss", "unix")


def open_client(url: str) -> redis.Redis:
    """A client for a URL, with time-outs, without hidden retries. Raises `InvalidInput`, which never shows the URL."""
    scheme, separator, address = url.partition("://") if isinstance(url, str) else ("", "", "")
    if scheme not in _SCHEMES or not separator:
        got = f"{scheme[:20]!r} as scheme" if separator and scheme.isalnum() else "none of them"
        got = got if isinstance(url, str) else format_value(url)
        raise InvalidInput(f"url: expected redis://, rediss://, unix:// or embedded://, got {got}")
    retry = Retry(NoBackoff(), 0)
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018  # reading it is the check
        _check_encoding(parts)
        if "@" in address and "@" not in parts.netloc and scheme != "unix":
            raise ValueError  # an unencoded / ? or # in the password: redis-py would take a part of it for the host
        if scheme != "unix" and not re.fullmatch(r"/?[0-9]*/?", parts.path):
            raise ValueError  # redis-py would quietly use database 0
        pool = open_pool(url, retry=retry, socket_timeout=SOCKET_TIMEOUT, socket_connect_timeout=CONNECT_TIMEOUT)
        if scheme == "unix":
            # redis-py would read bytes that are no text as replacement characters
            pool.connection_kwargs["path"] = os.fsdecode(unquote_to_bytes(os.fsencode(parts.path)))
        pool.connection_class(**pool.connection_kwargs)  # not opened: its constructor checks the options of the URL
        return redis.Redis(connection_pool=pool)
    except (ValueError, TypeError, redis.RedisError):
        # the text of these errors holds parts of the URL, the password among them
        raise InvalidInput(
            "url: not a valid Redis URL, or one with an unknown option or a database that is no number "
            "(a password with special characters must be %-encoded)"
        ) from None


def _check_encoding(parts: SplitResult) -> None:
    """Raise `UnicodeError`, a `ValueError`, for bytes that are no text. Only a path may have such bytes."""
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
        self.connections = Connections(client.connection_pool)
        self._observer = Observer(events)
        self._loaded: set[str] = set()
        #: Ends every `listen` from the moment at which it is asked.
        self.interrupted = Interrupt()
        self._listener = Listener(client, self._call, self.connections.release_idle, self.interrupted)

    def check_open(self) -> None:
        """Raise `BrokerClosed` after `close`."""
        self.connections.check_open()

    def run(self, command: Command) -> Reply:
        """Run a command. After a lost reply a repeatable command runs again; any other raises `OutcomeUnknown`."""
        return self._observer.send(
            command.script.name, command.queue, reply_outcome, with_retries, command, self._send_one
        )

    def run_together(self, commands: Sequence[Command], *, tolerant: bool = False) -> list[Any]:
        """Run commands in one round trip, in order. Returns their replies.

        After a lost reply all commands run again if all are repeatable, else none does. Redis carries out several
        commands that store messages as one transaction: all of them, with nothing in between, or none.

        `tolerant`: the error of a command on a damaged queue takes the place of its reply. Every other error is raised.
        """
        strictest = next((command for command in commands if not command.repeatable), commands[0])
        ordered = len(commands) > 1 and all(command.script.name == "enqueue" for command in commands)
        send = self._send_ordered if ordered else self._send_scripts
        replies = self._observer.send_all(
            commands,
            lambda command: (command.script.name, command.queue),
            lambda: with_retries(strictest, lambda _: send(commands)),
        )
        replies = [
            self.run(command) if isinstance(reply, NoScriptError) else reply
            for command, reply in zip(commands, replies, strict=True)
        ]
        return checked(replies, tolerant=tolerant)

    def execute(self, calls: Sequence[tuple[Any, ...]], *, keep_errors: bool = False) -> list[Any]:
        """Run plain, repeatable commands of Redis in one round trip, in order. Returns their replies.

        The error of a command on a key of another type takes the place of its reply; with `keep_errors` every error
        does. Any other error is raised.
        """
        send = self._send_all if keep_errors else self._send_judged
        sent = self._observer.send_all(
            calls, lambda call: (command_name(call), None), lambda: try_again(lambda: send(calls))
        )
        return sent if keep_errors else checked(sent, tolerant=True)

    def listen(self, queue: str, key: str, ms: int, interrupt: Interrupt | None = None) -> bytes | PoolExhausted | None:
        """Wait for an element of a list on a connection of its own; see `Listener`."""
        return self._observer.send("BLPOP", queue, wait_outcome, self._listener.listen, key, ms, interrupt)

    def interrupt(self) -> None:
        """End every `listen`, from now on. It takes no lock, so a signal handler may call it."""
        self.interrupted.ask()

    def close(self) -> None:
        """Close all free connections now, and each connection in use after its call."""
        self.connections.close()
        self.interrupt()
        self._listener.close()

    def _send_one(self, command: Command) -> Reply:
        reply = self._ask(command)
        return Repeated(reply) if reply[0] == b"refused" and command.is_replay else reply

    def _ask(self, command: Command) -> Reply:
        script = command.script
        try:
            with self.connections.hold() as held:
                reply: Reply = self._call_in(held, ("EVALSHA", script.sha, *command.words))
                _check(command, reply)
                held.clean = True
                return reply
        except NoScriptError:
            self._loaded.discard(script.sha)
        return self._observer.send("SCRIPT LOAD", None, ok, self._send_with_text, command)

    def _send_with_text(self, command: Command) -> Reply:
        """Load the script and run it. Not as a transaction: with full memory Redis would refuse the whole of it."""
        text = ("SCRIPT", "LOAD", command.script.text)
        for _ in range(FORGOTTEN):
            loaded, reply = self._exchange(
                [text, *_calls([command])], lambda r: [r[0], *self._judged([command], r[1:])]
            )
            if not isinstance(reply, NoScriptError):
                break
            if isinstance(loaded, Exception):
                raise loaded
        if isinstance(reply, NoScriptError):
            raise ScriptsForgotten(command.script.name) from reply
        if isinstance(reply, Exception):
            raise reply
        return cast("Reply", reply)

    def _send_scripts(self, commands: Sequence[Command]) -> list[Any]:
        """Send commands together. A command whose script Redis lacks has a `NoScriptError` as its reply."""
        loads = self._texts(commands)
        return self._exchange(
            [*loads, *_calls(commands)], lambda replies: self._judged(commands, replies[len(loads) :])
        )

    def _send_ordered(self, commands: Sequence[Command]) -> list[Any]:
        """Send commands together as one transaction, so that Redis forgets no script between two of them.

        The same round trip loads the scripts that this client has not loaded yet. If Redis lacks a script even so, it
        has carried out none of the commands. The next try loads the scripts within the transaction.
        """
        results = self._transact(self._texts(commands), [], commands)
        for _ in range(FORGOTTEN):
            if not all(isinstance(reply, NoScriptError) for reply in results):
                break
            self._loaded -= {command.script.sha for command in commands}
            results = self._transact([], self._texts(commands), commands)
        return results

    def _transact(self, before: list[Any], within: list[Any], commands: Sequence[Command]) -> list[Any]:
        def results(replies: list[Any]) -> list[Any]:
            opened, *queued, done = replies[len(before) :]
            if isinstance(opened, Exception):
                answers = queued  # the user may make no transaction, so Redis has carried out each command by itself
            elif isinstance(done, Exception):
                error = next((reply for reply in queued if isinstance(reply, Exception)), done)
                self._raise_if_refused(error)  # Redis has carried out none of them
                raise error
            else:
                answers = done
            return self._judged(commands, answers[len(within) :])

        try:
            return self._exchange([*before, ("MULTI",), *within, *_calls(commands), ("EXEC",)], results)
        except BusyLoadingError as error:
            raise NotSent from error

    def _texts(self, commands: Sequence[Command]) -> list[tuple[str, str, str]]:
        """The calls that load the scripts that this client has not loaded yet."""
        missing = {command.script.sha: command.script.text for command in commands}
        return [("SCRIPT", "LOAD", text) for sha, text in missing.items() if sha not in self._loaded]

    def _judged(self, commands: Sequence[Command], replies: list[Any]) -> list[Any]:
        """Check the replies to commands. Raises `NotSent` if Redis refuses all of them for now, and `ContractError`."""
        if replies and all(refuses_for_now(reply) for reply in replies):
            self._raise_if_refused(replies[0])
        for command, reply in zip(commands, replies, strict=True):
            if not isinstance(reply, Exception):
                _check(command, reply)
        self._loaded |= {command.script.sha for command in commands}
        return replies

    def _send_judged(self, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        replies = self._send_all(calls)
        for reply in replies:
            self._raise_if_refused(reply)
        return replies

    def _send_all(self, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Send calls together, and read their replies; errors of Redis are among them."""
        return self._exchange(calls, list)

    def _exchange(self, calls: Sequence[tuple[Any, ...]], read: Callable[[list[Any]], T]) -> T:
        """Send calls together. `read` reads all replies. A `ContractError` that it raises closes the connection."""
        with self.connections.hold() as held:
            connection = held.connection
            self._connect(connection)
            # a failure here is no `NotSent`: the first of the calls may have arrived whole
            connection.send_packed_command([b"".join([pack_command(call) for call in calls])])
            replies = [_reply(connection) for _ in calls]
            try:
                result = read(replies)
            except ResponseError:
                held.clean = True
                raise
            held.clean = True
            return result

    def _connect(self, connection: Connection) -> None:
        try:
            connection.connect()
        except (ConnectionError, TimeoutError) as error:
            raise NotSent from error

    def _call_in(self, held: Held, words: tuple[Any, ...]) -> Any:
        try:
            return self._call(held.connection, words)
        except ResponseError:
            held.clean = True
            raise

    def _call(self, connection: Connection, words: tuple[Any, ...]) -> Any:
        self._write(connection, pack_command(words))
        try:
            return connection.read_response()
        except BusyLoadingError as error:
            raise NotSent from error
        except ResponseError as error:
            self._raise_if_refused(error)
            raise

    def _raise_if_refused(self, reply: object) -> None:
        """Raise `NotSent` if Redis refuses for now. It refuses a script at its first write at the latest."""
        if isinstance(reply, Exception) and refuses_for_now(reply):
            if is_read_only(reply):  # the next call must reach another server; other threads get the same refusal
                self.connections.renew()
            raise NotSent from reply

    def _write(self, connection: Connection, packed: bytes) -> None:
        try:
            connection.send_packed_command([packed])
        except (ConnectionError, TimeoutError) as error:
            # Redis runs only calls that it has received whole
            raise NotSent from error


def _calls(commands: Sequence[Command]) -> list[tuple[Any, ...]]:
    return [("EVALSHA", command.script.sha, *command.words) for command in commands]


def _reply(connection: Connection) -> Any:
    try:
        return connection.read_response()
    except ResponseError as error:
        return error


def _check(command: Command, reply: Any) -> None:
    """Raise `ContractError` for a reply that no script gives."""
    if type(reply) is list and len(reply) > 1 and reply[0] in (b"ok", b"refused"):
        return
    start = reply[:2] if type(reply) is list else format_value(reply)
    raise ContractError(f"script {command.script.name}: unexpected reply {start!s:.80}")
