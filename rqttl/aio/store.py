"""Calls to Redis from an event loop: scripts, plain commands, and the treatment of lost replies."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from redis.asyncio import ConnectionPool, Redis
from redis.exceptions import BusyLoadingError, ConnectionError, NoScriptError, TimeoutError

from rqttl.aio.line import Call, Line
from rqttl.aio.waits import Waits
from rqttl.errors import BrokerClosed, InvalidInput, PoolExhausted
from rqttl.events import Events, Place, Timed
from rqttl.protocol.commands import Command, Reply
from rqttl.protocol.contract import Repeated, pack_command
from rqttl.protocol.replies import command_name
from rqttl.runtime.interrupt import Interrupt
from rqttl.store.connections import UNLIMITED, is_exhausted
from rqttl.store.exchanges import FAILURES, Attempts, Calls, Exchange, Exchanges, NotSent, alone, check, strictest
from rqttl.store.outcomes import checked, reply_outcome, reply_outcomes, wait_outcome
from rqttl.text import type_name

T = TypeVar("T")

Keep = Callable[[Coroutine[Any, Any, Any]], "asyncio.Task[Any]"]


def checked_client(client: object) -> Redis:
    """Return a client that is fit for rqttl. Raises `InvalidInput`."""
    if not isinstance(client, Redis):
        raise InvalidInput(f"client: expected a redis.asyncio.Redis (or a URL), got {type_name(client)}")
    if client.connection_pool.connection_kwargs.get("decode_responses"):
        raise InvalidInput("client: decode_responses=True is not supported, bodies are bytes")
    return client


def is_usual(command: Command, reply: Any) -> bool:
    """Return True for a reply as scripts give them. `AsyncStore.run` treats any other one, and refusals of replays."""
    if type(reply) is not list or len(reply) < 2:  # the outcome, and a value
        return False
    return reply[0] == b"ok" or (reply[0] == b"refused" and not command.is_replay)


class AsyncStore:
    """Runs commands on one Redis server, all of them on one line. `keep` makes a task that nobody cancels.

    `open_client` is awaited once, before the first call.
    """

    def __init__(self, open_client: Callable[[], Awaitable[Redis]], events: Events, keep: Keep) -> None:
        self._open_client = open_client
        self._events = events
        self._keep = keep
        self._line: Line | None = None
        self._opening: asyncio.Task[Line] | None = None
        self._client: Redis | None = None
        self._waits: Waits | None = None
        self._exchanges = Exchanges(leave=self.leave)
        self._closed = False

    def send_now(self, command: Command) -> Call | None:
        """Send a script at once, if the line is open and nobody listens to events. See `is_usual`, and `run`."""
        line = self._line
        if line is None or not line.usable or line.full or self._events.notify is not None:
            return None
        return line.send(command)

    async def run(self, command: Command, reply: Any = None, since: float | None = None) -> Reply:
        """Run a script, and repeat it as `Attempts` decides. `reply` is the answer to a first attempt at `since`."""
        return await self._observed(
            [(command.script.name, command.queue)],
            self._insist(command, self._send_one, reply, since),
            lambda answer: [reply_outcome(answer)],
        )

    async def run_together(self, commands: Sequence[Command], *, tolerant: bool = False) -> list[Any]:
        """Run commands in one round trip, in order. See `Store.run_together`."""
        replies = await self._observed(
            [(command.script.name, command.queue) for command in commands],
            self._insist(strictest(commands), lambda *_: self._carry_out(self._exchanges.in_one_round_trip(commands))),
            reply_outcomes,
        )
        for place, reply in enumerate(replies):
            if isinstance(reply, NoScriptError):
                replies[place] = await self.run(commands[place])
        return checked(replies, tolerant=tolerant)

    async def execute(self, calls: Calls, *, keep_errors: bool = False) -> list[Any]:
        """Run plain, repeatable commands of Redis in one round trip, in order. See `Store.execute`."""
        exchange = alone if keep_errors else self._exchanges.plain
        replies = await self._observed(
            [(command_name(call), None) for call in calls],
            self._insist(None, lambda *_: self._carry_out(exchange(calls))),
            reply_outcomes,
        )
        return replies if keep_errors else checked(replies, tolerant=True)

    async def listen(self, queue: str | None, keys: Sequence[str], ms: int, interrupts: Sequence[Interrupt]) -> Any:
        """Wait for an element of one of the lists on a connection of its own; see `Waits.listen`."""
        await self._ready()
        assert self._waits is not None  # noqa: S101  # the line is open
        waiting = self._waits.listen(keys, ms, interrupts)
        return await self._observed([("BLPOP", queue)], waiting, lambda answer: [wait_outcome(answer)])

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

    # One attempt

    async def _send_one(self, command: Command, reply: Any) -> Reply:
        if reply is None:
            (reply,) = await self._round_trip([("EVALSHA", command.script.sha, *command.words)])
        if isinstance(reply, NoScriptError):
            loading = self._carry_out(self._exchanges.with_text(command))
            return await self._observed([("SCRIPT LOAD", None)], loading, lambda _: ["ok"])
        if isinstance(reply, BusyLoadingError):
            raise NotSent from reply
        if isinstance(reply, Exception):
            self._exchanges.raise_if_refused(reply)
            raise reply
        check(command, reply)
        answer: Reply = reply
        return Repeated(answer) if answer[0] == b"refused" and command.is_replay else answer

    async def _carry_out(self, exchange: Exchange[T]) -> T:
        """Make the round trips of an exchange."""
        try:
            calls = next(exchange)
            while True:
                try:
                    replies = await self._round_trip(calls)
                except ConnectionError as error:
                    calls = exchange.throw(error)
                else:
                    calls = exchange.send(replies)
        except StopIteration as done:
            result: T = done.value
            return result

    async def _round_trip(self, calls: Calls) -> list[Any]:
        line = await self._ready()
        answer = await line.call(b"".join([pack_command(call) for call in calls]), len(calls))
        if isinstance(answer, ConnectionError | TimeoutError | NotSent):
            raise answer
        return answer if len(calls) > 1 else [answer]

    async def _insist(
        self,
        command: Command | None,
        attempt: Callable[..., Awaitable[T]],
        reply: Any = None,
        since: float | None = None,
    ) -> T:
        now = asyncio.get_running_loop().time
        attempts = Attempts(command, now() if since is None else since)
        while True:
            try:
                return await attempt(command, reply)
            except FAILURES as error:
                command, reply = attempts.again(error, now()), None
            await asyncio.sleep(attempts.pause)

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
                self._waits = Waits(_pool_of_waits(self._client.connection_pool))
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

    async def _observed(self, places: Sequence[Place], call: Awaitable[T], outcomes: Callable[[T], Sequence[str]]) -> T:
        """Await a call, and tell listeners of events the commands in it."""
        notify = self._events.notify
        if notify is None:
            return await call
        with Timed(notify, places) as timed:
            answer = await call
            timed.outcomes = outcomes(answer)
        return answer


def _pool_of_waits(pool: ConnectionPool) -> ConnectionPool:
    """The pool whose connections wait; see `pools.pool_of_waits`."""
    if type(pool) is ConnectionPool and pool.max_connections == ConnectionPool().max_connections < UNLIMITED:
        return ConnectionPool(pool.connection_class, UNLIMITED, **pool.connection_kwargs)
    return pool
