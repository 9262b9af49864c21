"""The round trips of an event loop, on one line. `rqttl.store.exchanges` has the calls that are made of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import ConnectionError, TimeoutError

from rqttl.aio.line import Call, Line
from rqttl.aio.waits import Waits
from rqttl.errors import BrokerClosed, PoolExhausted
from rqttl.events import Events, timed
from rqttl.protocol.commands import Command
from rqttl.protocol.contract import pack_command
from rqttl.protocol.keys import Keyspace
from rqttl.runtime.interrupt import Interrupt
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
