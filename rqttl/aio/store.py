"""The connections of an event loop: the one that all its calls share, and one for each wait.

Calls of one pass of the loop go out together. `rqttl.store.exchanges` makes calls of round trips.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from copy import copy
from time import monotonic
from typing import Any, TypeVar, final

from redis.asyncio import Redis
from redis.exceptions import BusyLoadingError, ConnectionError, ResponseError, TimeoutError

from rqttl.errors import BrokerClosed, ContractError, InvalidInput, PoolExhausted
from rqttl.events import Events, timed
from rqttl.flows.steps import ENDED
from rqttl.outages import refuses_for_now
from rqttl.protocol.commands import BRIEFLY, CONFIRMING, Command, Joined, annotated, unconfirmed
from rqttl.protocol.contract import pack_command
from rqttl.protocol.keys import Keyspace
from rqttl.runtime.interrupt import Interrupt
from rqttl.store.blocking import PAUSE, REPLY, SLACK, asked, keep_alive
from rqttl.store.cluster import STALL, Cluster, Seeds
from rqttl.store.connections import QUICK, is_exhausted, is_spoilt
from rqttl.store.exchanges import FAIL_FAST, FAILURES, SOCKET_TIMEOUT, Exchanges, NotSent, wait_outcome
from rqttl.store.slot_waits import LAST, LOOK, MOST, by_slot
from rqttl.store.topology import Calls, OneServer, Topology, Trip

S = TypeVar("S")
T = TypeVar("T")
#: A client, or what opens it before the first call.
Source = Redis | Callable[[], Awaitable[Redis]]
Keep = Callable[[Coroutine[Any, Any, Any]], "asyncio.Task[Any]"]
#: Carries out an exchange to its end.
Finish = Callable[[Any], Awaitable[Any]]

#: Unsent bytes beyond which callers wait until Redis has taken some.
FULL = 1 << 20
#: The durability that a call confirms.
_CONFIRMED = {call[0]: durability for durability, call in CONFIRMING.items() if durability != BRIEFLY}
#: Seconds between the first sight of a late reply and the second one. A loop that was blocked reads it meanwhile.
GRACE = 1.0
#: Seconds in which a loop that was blocked reads what has arrived.
MOMENT = 0.1


class Call:
    """A call on the shared connection. Its answer is the reply, or an error as a value.

    A cancelled caller, or a task in its place, may await the call again: the answer is kept. The fastest way to it is
    `if call.is_open: await call.arrival()`, and then `call.answer`.
    """

    __slots__ = ("_arrival", "_timer", "answer", "at", "command", "is_open")

    def __init__(self, arrival: asyncio.Future[None], command: Command | None) -> None:
        self._arrival = arrival
        self._timer: asyncio.TimerHandle | None = None
        #: False once the answer is there.
        self.is_open = True
        self.answer: Any = None
        #: The script that is called, if it is one.
        self.command: Any = command
        #: The time of the call, or of the one that it joined, by the clock of the loop.
        self.at = 0.0

    def __await__(self) -> Generator[Any, None, Any]:
        if self.is_open:
            yield from self.arrival().__await__()
        return self.answer

    def arrival(self) -> asyncio.Future[None]:
        """The future that the answer ends. A cancelled caller has ended the one before."""
        if self._arrival.cancelled():
            self._arrival = self._arrival.get_loop().create_future()
        return self._arrival

    def take(self, reply: Any) -> bool:
        """Take the next reply. Returns True if it was the last one."""
        self.end(reply)
        return True

    def end(self, answer: Any) -> None:
        """Set the answer. A later one is too late."""
        if self.is_open:
            self.answer, self.is_open = answer, False
            if self._timer is not None:
                self._timer.cancel()
            if not self._arrival.done():
                self._arrival.set_result(None)

    def end_within(self, seconds: float, late: Callable[[], None]) -> None:
        """Wait no longer for the reply than these seconds, then call `late`.

        A loop that was blocked meanwhile reads the reply first.
        """
        loop = self._arrival.get_loop()

        def end() -> None:
            late()
            self.end(TimeoutError(f"no reply within {seconds:g} s"))

        def look() -> None:
            self._timer = loop.call_later(MOMENT, end)

        self._timer = loop.call_later(seconds, look)


@final
class Pipelined(Call):
    """Several commands in one call. Its answer is the list of their replies, or an error as a value."""

    __slots__ = ("_replies", "left")

    def __init__(self, arrival: asyncio.Future[None], count: int) -> None:
        super().__init__(arrival, None)
        #: The number of replies that are missing.
        self.left = count
        self._replies: list[Any] = []

    def take(self, reply: Any) -> bool:
        self._replies.append(reply)
        self.left -= 1
        return self.left == 0 and super().take(self._replies)


@final
class JoinedCall:
    """Enqueue calls that go out as one, and the reply to each of them."""

    __slots__ = ("at", "batch", "calls")

    def __init__(self, first: Call) -> None:
        self.batch = Joined(first.command)
        self.calls = [first]
        #: The time of the first call.
        self.at = first.at

    def pack(self) -> bytes:
        """The bytes of the one command."""
        return pack_command(("EVALSHA", self.batch.first.script.sha, *self.batch.words))

    def take(self, reply: Any) -> bool:
        """Take the reply. Returns True."""
        self.end(reply)
        return True

    def end(self, reply: Any) -> None:
        """Give each call its part of the reply."""
        for call, part in zip(self.calls, self.batch.replies(reply), strict=True):
            call.end(part if type(part) is list else NotSent() if part is None else copy(part))


@final
class ConfirmedCalls:
    """The calls of one write on a durable connection: they get their answers when Redis has answered the call behind.

    The answer to a round trip has that answer as well, and the reply to a script a note if it is not confirmed.
    """

    __slots__ = ("_left", "_replies", "_sent", "at", "calls")

    def __init__(self, sent: Sequence[Call | JoinedCall]) -> None:
        self.at = sent[0].at
        self.calls = list(_single(sent))
        self._sent = sent
        self._replies: list[Any] = []
        self._left = sum(one.left if isinstance(one, Pipelined) else 1 for one in sent)

    def take(self, reply: Any) -> bool:
        """Take the next reply. Returns True if it was the last one."""
        if self._left:
            self._left -= 1
            self._replies.append(reply)
            return False
        replies = iter(self._replies)
        for one in self._sent:
            while not one.take(next(replies)):
                pass
        why = unconfirmed(reply)
        for call in self.calls:
            call.answer = [*call.answer, reply] if isinstance(call, Pipelined) else annotated(call.answer, why)
        return True

    def end(self, error: Exception) -> None:
        """End all calls with an error."""
        for call in self.calls:
            call.end(error)


class SharedConnection:
    """A connection that callers share. Replies come in the order of the calls. Only for the loop that made it.

    The calls of one pass of the loop go out in one write. A task reads the replies, by the method of redis-py.
    """

    def __init__(self, connection: Any, pool: Any, stalled: Callable[[], object] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._connection = connection
        self._pool = pool
        self._unsent: list[Call | JoinedCall] = []
        self._packed: list[bytes | JoinedCall] = []
        self._size = 0
        self._sent: deque[Call | JoinedCall | ConfirmedCalls] = deque()
        self._suspect: Call | JoinedCall | ConfirmedCalls | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._stalled = stalled  # called after each `STALL` seconds without a reply
        self._last = 0.0  # the time of the last write
        self._is_lone = False  # the last calls went out one by one
        # redis-py shows no other way to write at once
        self._writer: asyncio.StreamWriter = connection._writer  # noqa: SLF001
        #: False once the connection is lost or closed.
        self.usable = True
        #: True if a caller waited in vain, and no reply has come since: a call may be performed much later.
        self.is_silent = False
        self._patience, connection.socket_timeout = connection.socket_timeout, None  # `_look` watches the oldest call
        self._reading = self._loop.create_task(self._read())
        if self._writer.is_closing():
            self.abandon(ConnectionError("Connection closed by server."))
        else:
            self._writer.transport.set_write_buffer_limits(FULL)

    @property
    def full(self) -> bool:
        """True while callers must wait: see `room`."""
        return self._writer.transport.get_write_buffer_size() > FULL

    async def room(self) -> None:
        """Wait until Redis has taken enough bytes."""
        with suppress(OSError):  # the connection is lost, and not usable
            await self._writer.drain()

    def call(self, packed: bytes, count: int = 1) -> Call:
        """Send packed commands in this pass of the loop. `count` is the number of their replies.

        A call goes out at once where a pass had one call only: then it saves a pass of the loop.
        """
        arrival = self._loop.create_future()
        return self._put(Call(arrival, None) if count == 1 else Pipelined(arrival, count), packed)

    def send(self, command: Command) -> Call:
        """Send a script as `call` does. Enqueue calls that follow each other in one pass go out as one."""
        call = Call(self._loop.create_future(), command)
        if self._unsent and self._join(call):
            return call
        return self._put(call, pack_command(("EVALSHA", command.script.sha, *command.words)))

    def _join(self, call: Call) -> bool:
        """Let a call go out with the last one, if that is possible."""
        last = self._unsent[-1]
        if isinstance(last, JoinedCall):
            joined = last
        elif last.command is not None and last.command.head:
            joined = JoinedCall(last)
        else:
            return False
        before = joined.batch.size
        if not joined.batch.take(call.command):
            return False
        self._unsent[-1] = self._packed[-1] = joined
        self._size += joined.batch.size - before
        call.at = joined.at
        joined.calls.append(call)
        return True

    def _put(self, call: Call, packed: bytes) -> Call:
        call.at = self._loop.time()
        waits = bool(self._unsent)
        self._unsent.append(call)
        self._packed.append(packed)
        self._size += len(packed)
        if self._size > FULL or (self._is_lone and not waits and not self._sent):
            self._flush()
        elif not waits:
            self._loop.call_soon(self._flush)
        if self._timer is None:
            self._timer = self._loop.call_later(SOCKET_TIMEOUT if self._stalled is None else STALL, self._look)
        return call

    def _flush(self) -> None:
        unsent, packed = self._unsent, self._packed
        if not unsent or not self.usable:
            return
        now = monotonic()  # uvloop's own clock stands still while the loop is blocked
        idle, self._last = now - self._last, now
        # a blocked loop has not seen the end of the connection yet
        if idle > QUICK and not self._sent and is_spoilt(self._writer.get_extra_info("socket")):
            self.abandon(ConnectionError("Connection closed by server."))
            return
        self._unsent, self._packed, self._size = [], [], 0
        self._is_lone = len(unsent) == 1 and not isinstance(unsent[0], JoinedCall)
        self._sent.extend(unsent)
        self._writer.write(b"".join([part if isinstance(part, bytes) else part.pack() for part in packed]))

    async def _read(self) -> None:
        """Give replies to their calls until the connection is lost or abandoned; then give it back to its pool."""
        try:
            while True:
                try:
                    reply = await self._connection.read_response(disable_decoding=True)
                except ResponseError as error:
                    reply = error
                self._take(reply)
        except Exception as error:  # noqa: BLE001  # the calls have it
            self.abandon(error)
        self._connection.socket_timeout = self._patience
        await self._connection.disconnect(nowait=True)
        await self._pool.release(self._connection)

    def _take(self, reply: Any) -> None:
        self.is_silent = False
        if not self._sent:
            raise ContractError(f"connection: a reply without a call: {reply!s:.80}")
        if self._sent[0].take(reply):
            self._sent.popleft()

    # The end

    def abandon(self, error: Exception) -> None:
        """End all calls with an error: unsent ones with `NotSent`."""
        if not self.usable:
            return
        self.usable = False
        lost = TimeoutError if isinstance(error, TimeoutError) else ConnectionError
        sent, self._sent, unsent, self._unsent = self._sent, deque(), self._unsent, []
        if sent and isinstance(error, BusyLoadingError) and not isinstance(sent[0], ConfirmedCalls):
            sent.popleft().end(error)  # this one was refused; nobody knows of the others
        for call in _single(sent):
            call.end(lost(str(error)))
        for call in _single(unsent):
            failure = NotSent()
            failure.__cause__ = lost(str(error))
            call.end(failure)
        if self._timer is not None:
            self._timer.cancel()
        self._writer.transport.abort()

    def _look(self) -> None:
        """Look if the oldest call has waited for too long."""
        self._timer = None
        oldest = next(itertools.chain(self._sent, self._unsent), None)
        if oldest is None or not self.usable:
            return
        left = oldest.at + SOCKET_TIMEOUT - self._loop.time()
        if left <= 0 and self._suspect is oldest:
            self.abandon(TimeoutError("Timeout reading from socket"))
            return
        self._suspect = oldest if left <= 0 else None
        if self._stalled is not None and left <= SOCKET_TIMEOUT - STALL:
            self._stalled()
        longest = left if self._stalled is None else min(left, STALL)
        self._timer = self._loop.call_later(longest if left > 0 else GRACE, self._look)

    async def close(self) -> None:
        """Wait for the replies to all calls, and close the connection."""
        if self.usable:
            await self.call(pack_command(("PING",)))
        self.abandon(ConnectionError("the connection was closed"))
        await asyncio.shield(self._reading)


class DurableConnection(SharedConnection):
    """A connection whose calls Redis has to confirm: a call at the end of each write does, and the next write waits."""

    def __init__(self, durability: str, connection: Any, pool: Any, stalled: Callable[[], object] | None) -> None:
        super().__init__(connection, pool, stalled)
        self._confirming = pack_command(CONFIRMING[durability])

    def call(self, packed: bytes, count: int = 1) -> Call:
        """See `SharedConnection`. The answer is a list."""
        return self._put(Pipelined(self._loop.create_future(), count), packed)

    def _flush(self) -> None:
        unsent = self._unsent
        if unsent and not self._sent:
            self._packed.append(self._confirming)
            super()._flush()
            self._sent = deque([ConfirmedCalls(unsent)] if self._sent else [])

    def _take(self, reply: Any) -> None:
        super()._take(reply)
        self._flush()


def _single(calls: Iterable[Call | JoinedCall | ConfirmedCalls]) -> Iterator[Call]:
    for call in calls:
        yield from [call] if isinstance(call, Call) else call.calls


def is_usual(command: Command, reply: Any) -> bool:
    """Return True for a reply as scripts give them. `Exchanges.run` treats any other one, and refusals of replays."""
    if type(reply) is not list or len(reply) < 2:  # the outcome, and a value
        return False
    return reply[0] == b"ok" or (reply[0] == b"refused" and not command.is_replay)


class AsyncNode:
    """One server: the connection that all calls share, and those of waits. `keep` makes a task that nobody cancels.

    Calls that Redis has to confirm have connections of their own, by `durability`: no other call waits behind them.
    """

    def __init__(
        self,
        source: Source,
        keep: Keep,
        is_in_use: Callable[[], Coroutine[Any, Any, bool]] | None = None,
        durability: str = "",
    ) -> None:
        self.loaded: set[str] = set()
        self._durability = durability
        self._durable: dict[str, AsyncNode] = {}
        self._is_in_use = is_in_use
        self._source = source
        self._keep = keep
        self._shared: SharedConnection | None = None
        self._opening: asyncio.Task[SharedConnection] | None = None
        self._client: Redis | None = None
        self._waits: Waits | None = None
        self._closed = False

    def send_now(self, command: Command) -> Call | None:
        """Send a script at once, if the connection is open. See `is_usual`."""
        shared = self._shared
        return None if shared is None or not shared.usable or shared.full else shared.send(command)

    def send_briefly(self, command: Command) -> Call | None:
        """The same for a caller that waits for `STALL` seconds at most."""
        call = None if self.is_silent else self.send_now(command)
        if call is not None:
            call.end_within(STALL, self.fall_silent)
        return call

    @property
    def is_silent(self) -> bool:
        """See `SharedConnection`."""
        return self._shared is not None and self._shared.usable and self._shared.is_silent

    def fall_silent(self) -> None:
        """Note that a caller waited in vain."""
        if self._shared is not None:
            self._shared.is_silent = True

    def send_durable(self, command: Command) -> Call | None:
        """The same for a command that Redis has to confirm. A call without its script would wait in vain."""
        return self._for(command.durability).send_now(command) if command.script.sha in self.loaded else None

    def _for(self, durability: str) -> AsyncNode:
        """The same server, for calls that Redis has to confirm."""
        node = self._durable.get(durability)
        if node is None:
            node = self._durable[durability] = AsyncNode(self._own_client, self._keep, self._is_in_use, durability)
            node.loaded = self.loaded
        return node

    async def _own_client(self) -> Redis:
        await self._ready()
        assert self._client is not None  # noqa: S101  # the connection is open
        return self._client

    async def round_trip(self, calls: Calls) -> list[Any]:
        """Send calls together, and read their replies; errors of Redis are among them."""
        durability = BRIEFLY if calls[-1] == CONFIRMING[BRIEFLY] else _CONFIRMED.get(calls[-1][0])
        if durability and not self._durability:
            return await self._for(durability).round_trip(calls)
        shared = await self._ready()
        if durability:  # the connection makes the last call by itself
            calls = calls[:-1]
        answer = await shared.call(b"".join([pack_command(call) for call in calls]), len(calls))
        if isinstance(answer, ConnectionError | TimeoutError | NotSent):
            raise answer
        return answer if durability or len(calls) > 1 else [answer]

    async def listen(self, keys: Sequence[str], ms: int, interrupts: Sequence[Interrupt]) -> Any:
        """Wait for an element of one of the lists on a connection of its own; see `Waits.listen`."""
        try:
            await self._ready()
        except NotSent:  # the next call of the caller tells it
            await asyncio.sleep(PAUSE)
            return None
        assert self._waits is not None  # noqa: S101  # the connection is open
        return await self._waits.listen(keys, ms, interrupts)

    def leave(self) -> None:
        """See `Node`."""
        shared, self._shared = self._shared, None
        if shared is not None:
            self._keep(shared.close())
        for node in self._durable.values():
            node.leave()

    async def close(self) -> None:
        """Close all connections. Later calls raise `BrokerClosed`."""
        self._closed = True
        for node in self._durable.values():
            await node.close()
        shared, self._shared = self._shared, None
        if shared is not None:
            await shared.close()
        if self._client is not None:
            pool: Any = self._client.connection_pool
            for connection in list(pool._available_connections):  # noqa: SLF001  # its own method waits for TLS
                await abort(connection)
            service = pool.connection_kwargs.get("service")
            if service is not None:
                await service.close()

    async def _ready(self) -> SharedConnection:
        """The connection, when it has room."""
        while True:
            if self._closed:
                raise BrokerClosed
            shared = self._shared
            if shared is not None and shared.usable:
                if not shared.full:
                    return shared
                await shared.room()
                continue
            if self._opening is None:
                self._opening = self._keep(self._open())
            try:
                await asyncio.shield(self._opening)
            except (ConnectionError, TimeoutError, OSError) as error:
                raise NotSent from error

    def _stalled(self) -> None:
        self._keep(self._give_up())

    async def _give_up(self) -> None:
        """End the calls if the node that owes their replies is in use no longer."""
        shared = self._shared
        if self._is_in_use is not None and not await self._is_in_use() and shared is not None:
            shared.abandon(TimeoutError("the node has left the cluster"))

    async def _open(self) -> SharedConnection:
        try:
            if self._client is None:
                source = self._source
                self._client = source if isinstance(source, Redis) else await source()
                self._waits = Waits(self._client.connection_pool)
            pool = self._client.connection_pool
            try:
                connection = await pool.get_connection()
            except ConnectionError as error:
                if is_exhausted(error):
                    raise PoolExhausted(int(pool.max_connections)) from error
                if isinstance(error.__cause__, InvalidInput):  # redis-py has made it a failure of the line
                    raise error.__cause__ from None
                raise
            stalled = None if self._is_in_use is None else self._stalled
            if self._durability:
                self._shared = DurableConnection(self._durability, connection, pool, stalled)
            else:
                self._shared = SharedConnection(connection, pool, stalled)
            if not self._shared.usable:
                raise ConnectionError("the connection was lost before its first call")
            return self._shared
        finally:
            self._opening = None


class AsyncStore:
    """Runs commands on Redis, each at the node of its key. See `AsyncNode`."""

    def __init__(self, source: Source | Seeds, keyspace: Keyspace, events: Events, keep: Keep, finish: Finish) -> None:
        self.topology = _topology(source, keep, finish)
        self._events, self._keep = events, keep
        self.exchanges = Exchanges(self.topology, keyspace, events, lambda: asyncio.get_running_loop().time())

    def failing_fast(self) -> AsyncStore:
        """The same store for a caller that leaves a node alone that does not answer at once."""
        fast = copy(self)
        fast.exchanges = copy(self.exchanges)
        fast.exchanges.patience = FAIL_FAST
        return fast

    def send_now(self, command: Command) -> Call | None:
        """Send a script at once, if the connection is open and nobody listens to events. See `is_usual`."""
        can_send = self._events.notify is None and self.topology.is_known
        return self.topology.node_of(command.words[1]).send_now(command) if can_send else None

    def send_briefly(self, command: Command) -> Call | None:
        """The same for a caller that leaves a node alone that does not answer."""
        can_send = self._events.notify is None and self.topology.is_known
        return self.topology.node_of(command.words[1]).send_briefly(command) if can_send else None

    def send_durable(self, command: Command) -> Call | None:
        """The same for a command that Redis has to confirm."""
        can_send = self._events.notify is None and self.topology.is_known
        return self.topology.node_of(command.words[1]).send_durable(command) if can_send else None

    async def listen(self, queue: str | None, keys: Sequence[str], ms: int, interrupts: Sequence[Interrupt]) -> Any:
        """Wait for an element of one of the lists; see `Waits.listen`. For several slots a list has what came."""
        if self._events.notify is None:
            return await self._listen(keys, ms, interrupts)
        with timed(self._events.notify, [("BLPOP", queue)]) as outcomes:
            answer = await self._listen(keys, ms, interrupts)
            outcomes.append(wait_outcome(answer))
        return answer

    async def _listen(self, keys: Sequence[str], ms: int, interrupts: Sequence[Interrupt]) -> Any:
        node_of = self.topology.node_of
        slots = list(by_slot(self.topology, keys).values()) if len(keys) > 1 else [keys]
        if len(slots) == 1:
            return await node_of(keys[0]).listen(keys, ms, interrupts)
        over, further = Interrupt(), [key for keys in slots[MOST:] for key in keys]
        waits = [self._keep(node_of(keys[0]).listen(keys, ms, [*interrupts, over])) for keys in slots[:MOST]]
        done: set[asyncio.Task[Any]] = set()
        filled: list[str] = []
        while not done and not filled:
            timeout = LOOK if further else None
            done, _ = await asyncio.wait(waits, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            filled = await self._filled(further) if not done else []
        over.ask()
        waits += [self._keep(node_of(key).listen([key], 0, interrupts)) for key in filled]
        _, late = await asyncio.wait(waits, timeout=LAST)
        for wait in late:  # the node hangs, so it has sent no element
            wait.cancel()
        answers = await asyncio.gather(*waits, return_exceptions=True)
        found = [answer for answer in answers if isinstance(answer, tuple)]
        answer = done.pop().result() if done and not found else None
        if answer is not None:
            return answer
        # Redis loses an element that it takes for a call at the moment at which it learns of its end
        ended = [keys for keys, answer in zip(slots, answers, strict=False) if not isinstance(answer, tuple)]
        return found + [(key, None) for keys in ended for key in keys]

    async def _filled(self, keys: Sequence[str]) -> list[str]:
        """Return the lists that have elements."""
        replies = await made_together([Trip(self.topology.node_of(key), [("LLEN", key)]) for key in keys], STALL)
        return [
            key
            for key, reply in zip(keys, replies, strict=True)
            if type(reply) is list and type(reply[0]) is int and reply[0]
        ]

    def renew(self) -> None:
        """Make no further call on the present connections: one of them may have an unread reply."""
        for node in self.topology.made:
            node.leave()

    async def close(self) -> None:
        """Close all connections. Later calls raise `BrokerClosed`."""
        for node in self.topology.made:
            await node.close()


def _topology(source: Source | Seeds, keep: Keep, finish: Finish) -> Topology[AsyncNode]:
    if not isinstance(source, Seeds):
        return OneServer(AsyncNode(source, keep))
    seeds = source
    cluster: Cluster[AsyncNode]

    def make(host: str, port: int) -> AsyncNode:
        async def client() -> Redis:
            return Redis(connection_pool=seeds.pool_at(host, port))

        node = AsyncNode(client, keep, lambda: is_in_use(node))
        return node

    async def is_in_use(node: AsyncNode) -> bool:
        with suppress(*FAILURES):  # without an answer nobody says otherwise
            await finish(cluster.learn(node))
        return node in cluster.nodes

    cluster = Cluster(make, seeds)
    return cluster


async def made(trip: Trip, seconds: float | None = None) -> Any:
    """Make a trip. Returns the replies. It is over after these seconds, one that fails fast and a brief one sooner.

    A loop that was blocked meanwhile reads the replies first.
    """
    limit = FAIL_FAST if trip.fails_fast else STALL if trip.brief else seconds
    if limit is None:
        return await trip.node.round_trip(trip.calls)
    if trip.node.is_silent:
        raise NotSent from TimeoutError("no reply to an earlier call")
    making = asyncio.ensure_future(trip.node.round_trip(trip.calls))
    for part in (limit, MOMENT):
        await asyncio.wait([making], timeout=part)
    if making.done():
        return await making
    making.cancel()
    trip.node.fall_silent()
    raise TimeoutError(f"no reply within {limit:g} s")


async def made_together(trips: Sequence[Trip], seconds: float | None = None) -> list[Any]:
    """Make trips to several nodes at once. Returns the replies, or the error, of each."""
    return await asyncio.gather(*[made(trip, seconds) for trip in trips], return_exceptions=True)


class Waits:
    """The waits of one client, on connections of `pool`.

    A wait that is interrupted shuts down its sending half, and reads to the end: it returns an element that Redis has
    taken from the list by then. A task that calls `listen` and is cancelled may lose an element.
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
            if not asked(interrupts):
                await asyncio.sleep(PAUSE)
                return None
            reply = None
        except ResponseError as error:
            if "UNBLOCKED" in str(error):
                return b""
            if not refuses_for_now(error):
                raise
            await asyncio.sleep(PAUSE)
            return None
        if reply is None:
            return ENDED if asked(interrupts) else None
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
                if asked(interrupts):
                    clean = not hang_up.shut
                    return None
                words = "BLPOP", *keys, f"{max(10, ms) / 1000:.3f}"
                await connection.send_packed_command([pack_command(words)], check_health=False)
                reply = await connection.read_response(disconnect_on_error=False)
                # a connection whose sending half is shut down serves no other call; see also `Listener`
                clean = not hang_up.shut
                return reply
        finally:
            connection.socket_timeout = patience
            if not clean:
                await abort(connection)
            await self.pool.release(connection)


async def abort(connection: Any) -> None:
    """Close a connection at once: a socket with TLS would stay open until the other side ends TLS, too."""
    if connection._writer is not None:  # noqa: SLF001  # redis-py shows it nowhere
        connection._writer.transport.abort()  # noqa: SLF001  # as above
    await connection.disconnect(nowait=True)


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
