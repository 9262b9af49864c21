"""The round trips of an event loop, on one line, and its waits. `rqttl.store.exchanges` makes calls of round trips."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import ConnectionError, ResponseError, TimeoutError

from rqttl.aio.line import Call, Line
from rqttl.errors import BrokerClosed, PoolExhausted
from rqttl.events import Events, timed
from rqttl.flows.steps import ENDED
from rqttl.protocol.commands import Command
from rqttl.protocol.contract import pack_command
from rqttl.protocol.keys import Keyspace
from rqttl.runtime.interrupt import Interrupt
from rqttl.store.blocking import PAUSE, REPLY, SLACK, keep_alive
from rqttl.store.connections import is_exhausted, pool_of_waits
from rqttl.store.exchanges import Calls, Exchanges, NotSent, wait_outcome

Keep = Callable[[Coroutine[Any, Any, Any]], "asyncio.Task[Any]"]


def is_usual(command: Command, reply: Any) -> bool:
    """Return True for a reply as scripts give them. `Exchanges.run` treats any other one, and refusals of replays."""
    if type(reply) is not list or len(reply) < 2:  # the outcome, and a value
        return False
    return reply[0] == b"ok" or (reply[0] == b"refused" and not command.is_replay)


class AsyncStore:
    """Runs commands on one Redis server, all of them on one line. `keep` makes a task that nobody cancels.

    `open_client` is awaited once, before the first call.
    """

    def __init__(
        self, open_client: Callable[[], Awaitable[Redis]], keyspace: Keyspace, events: Events, keep: Keep
    ) -> None:
        self._open_client = open_client
        self._events = events
        self._keep = keep
        self._line: Line | None = None
        self._opening: asyncio.Task[Line] | None = None
        self._client: Redis | None = None
        self._waits: Waits | None = None
        self._closed = False
        self.exchanges = Exchanges(keyspace, events, self.leave, lambda: asyncio.get_running_loop().time())

    def send_now(self, command: Command) -> Call | None:
        """Send a script at once, if the line is open and nobody listens to events. See `is_usual`."""
        line = self._line
        if line is None or not line.usable or line.full or self._events.notify is not None:
            return None
        return line.send(command)

    async def round_trip(self, calls: Calls) -> list[Any]:
        """Send calls together, and read their replies; errors of Redis are among them."""
        line = await self._ready()
        answer = await line.call(b"".join([pack_command(call) for call in calls]), len(calls))
        if isinstance(answer, ConnectionError | TimeoutError | NotSent):
            raise answer
        return answer if len(calls) > 1 else [answer]

    async def listen(self, queue: str | None, keys: Sequence[str], ms: int, interrupts: Sequence[Interrupt]) -> Any:
        """Wait for an element of one of the lists on a connection of its own; see `Waits.listen`."""
        await self._ready()
        assert self._waits is not None  # noqa: S101  # the line is open
        if self._events.notify is None:
            return await self._waits.listen(keys, ms, interrupts)
        with timed(self._events.notify, [("BLPOP", queue)]) as outcomes:
            answer = await self._waits.listen(keys, ms, interrupts)
            outcomes.append(wait_outcome(answer))
        return answer

    def leave(self) -> None:
        """Use the line for no further call. The next call opens another one, perhaps to another server."""
        line, self._line = self._line, None
        if line is not None:
            self._keep(line.close())

    async def close(self) -> None:
        """Close all connections. Later calls raise `BrokerClosed`."""
        self._closed = True
        line, self._line = self._line, None
        if line is not None:
            await line.close()
        if self._client is not None and self._waits is not None:
            for pool in {self._waits.pool, self._client.connection_pool}:
                await pool.disconnect(inuse_connections=False)

    async def _ready(self) -> Line:
        """The line, when it has room."""
        while True:
            if self._closed:
                raise BrokerClosed
            line = self._line
            if line is not None and line.usable:
                if not line.full:
                    return line
                await line.room()
                continue
            if self._opening is None:
                self._opening = self._keep(self._open())
            try:
                await asyncio.shield(self._opening)
            except (ConnectionError, TimeoutError, OSError) as error:
                raise NotSent from error

    async def _open(self) -> Line:
        try:
            if self._client is None:
                self._client = await self._open_client()
                self._waits = Waits(pool_of_waits(self._client.connection_pool))
            pool = self._client.connection_pool
            try:
                connection = await pool.get_connection()
            except ConnectionError as error:
                if is_exhausted(error):
                    raise PoolExhausted(int(pool.max_connections)) from error
                raise
            self._line = Line(connection, pool)
            if not self._line.usable:
                raise ConnectionError("the connection was lost before its first call")
            return self._line
        finally:
            self._opening = None


class Waits:
    """The waits of one client, on connections of `pool`.

    A wait that is interrupted shuts down its sending half, and reads to the end: it returns an element that Redis has
    taken from the list by then. Tasks that call `listen` must not be cancelled.
    """

    def __init__(self, pool: Any) -> None:
        self.pool = pool
        self._ending: set[_HangUp] = set()
        self._ended = asyncio.Event()

    async def listen(
        self, keys: Sequence[str], ms: int, interrupts: Sequence[Interrupt]
    ) -> tuple[str, bytes] | bytes | PoolExhausted | None:
        """Wait up to `ms` for an element of one of the lists. See `store.blocking.Listener.listen`."""
        try:
            reply = await self._block(keys, ms, interrupts)
        except (ConnectionError, TimeoutError, OSError) as error:
            if is_exhausted(error):
                return PoolExhausted(self.pool.max_connections, max(1, self.pool.max_connections - 1))
            if not _asked(interrupts):
                await asyncio.sleep(PAUSE)
                return None
            reply = None
        except ResponseError as error:
            if "UNBLOCKED" not in str(error):
                raise
            return b""
        if reply is None:
            return ENDED if _asked(interrupts) else None
        key, element = reply
        return key.decode(), element

    async def _block(self, keys: Sequence[str], ms: int, interrupts: Sequence[Interrupt]) -> Any:
        while self._ending:  # their connections are closed first, so that cancelled waits pile up none
            self._ended.clear()
            again = asyncio.get_running_loop().call_later(PAUSE, self._ended.set)  # another thread may end one late
            await self._ended.wait()
            again.cancel()
        hang_up = _HangUp(self._ending)
        try:
            with ExitStack() as stack:
                for interrupt in interrupts:
                    stack.enter_context(interrupt.ending(hang_up))
                return await self._on_connection(keys, ms, interrupts, hang_up)
        finally:
            hang_up.is_over = True
            self._ending.discard(hang_up)
            self._ended.set()

    async def _on_connection(
        self, keys: Sequence[str], ms: int, interrupts: Sequence[Interrupt], hang_up: _HangUp
    ) -> Any:
        connection = await self.pool.get_connection()
        clean = False
        patience, connection.socket_timeout = connection.socket_timeout, None
        try:
            # redis-py shows no other way to the socket
            with hang_up.on(connection._writer, ms / 1000 + SLACK):  # noqa: SLF001
                if _asked(interrupts):
                    clean = not hang_up.shut
                    return None
                words = "BLPOP", *keys, f"{max(10, ms) / 1000:.3f}"
                await connection.send_packed_command([pack_command(words)], check_health=False)
                reply = await connection.read_response()
                # a connection whose sending half is shut down serves no other call; see also `Listener`
                clean = not hang_up.shut
                return reply
        finally:
            connection.socket_timeout = patience
            if not clean:
                await connection.disconnect(nowait=True)
            await self.pool.release(connection)


class _HangUp:
    """Ends a wait, from any thread: shuts down the sending half. A reply that Redis has sent still arrives."""

    def __init__(self, ending: set[_HangUp]) -> None:
        self._sock: socket.socket | None = None
        self._ending = ending
        #: True once a connection was shut down.
        self.shut = False
        #: True after the wait.
        self.is_over = False

    def __call__(self) -> None:
        self._ending.add(self)
        if self.is_over:  # an interrupt may call this for a short time after the wait
            self._ending.discard(self)
        sock = self._sock
        if sock is not None:
            self.shut = True
            with suppress(OSError):  # the connection is closed already
                sock.shutdown(socket.SHUT_WR)

    @contextmanager
    def on(self, writer: asyncio.StreamWriter, seconds: float) -> Iterator[None]:
        """Within this block calls act on a connection. After `seconds` the wait ends by itself."""
        # no socket of an event loop can be shut down by halves, but a second socket for the same connection can
        with socket.socket(fileno=os.dup(writer.get_extra_info("socket").fileno())) as sock:
            keep_alive(sock)
            self._sock = sock
            loop = asyncio.get_running_loop()
            timers = [
                loop.call_later(seconds, self),
                loop.call_later(seconds + REPLY, writer.transport.abort),  # no reply comes even then
            ]
            try:
                yield
            finally:
                self._sock = None
                for timer in timers:
                    timer.cancel()


def _asked(interrupts: Sequence[Interrupt]) -> bool:
    return any(interrupt.asked() for interrupt in interrupts)
