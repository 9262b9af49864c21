"""The line: one connection that all calls of an event loop share. Calls of one pass of the loop go out together."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from contextlib import suppress
from copy import copy
from typing import Any, final

from redis.exceptions import BusyLoadingError, ConnectionError, ResponseError, TimeoutError

from rqttl.errors import ContractError
from rqttl.protocol.commands import Command, Joined
from rqttl.protocol.contract import pack_command
from rqttl.store.exchanges import SOCKET_TIMEOUT, NotSent

#: Unsent bytes beyond which callers wait until Redis has taken some.
FULL = 1 << 20
#: Seconds between the first sight of a late reply and the second one. A loop that was blocked reads it meanwhile.
GRACE = 1.0


class Call:
    """A call on the line. Its answer is the reply, or an error as a value.

    A cancelled caller, or a task in its place, may await the call again: the answer is kept. The fastest way to it is
    `if call.is_open: await call.arrival()`, and then `call.answer`.
    """

    __slots__ = ("_arrival", "answer", "at", "command", "is_open")

    def __init__(self, arrival: asyncio.Future[None], command: Command | None) -> None:
        self._arrival = arrival
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
        """Set the answer."""
        self.answer, self.is_open = answer, False
        if not self._arrival.done():
            self._arrival.set_result(None)


@final
class Calls(Call):
    """Several commands in one call. Its answer is the list of their replies, or an error as a value."""

    __slots__ = ("_left", "_replies")

    def __init__(self, arrival: asyncio.Future[None], count: int) -> None:
        super().__init__(arrival, None)
        self._left = count
        self._replies: list[Any] = []

    def take(self, reply: Any) -> bool:
        self._replies.append(reply)
        self._left -= 1
        return self._left == 0 and super().take(self._replies)


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


class Line:
    """A connection that callers share. Replies come in the order of the calls. Only for the loop that made it.

    The calls of one pass of the loop go out in one write. A task reads the replies, by the method of redis-py.
    """

    def __init__(self, connection: Any, pool: Any) -> None:
        self._loop = asyncio.get_running_loop()
        self._connection = connection
        self._pool = pool
        self._unsent: list[Call | JoinedCall] = []
        self._packed: list[bytes | JoinedCall] = []
        self._size = 0
        self._sent: deque[Call | JoinedCall] = deque()
        self._suspect: Call | JoinedCall | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_lone = False  # the last calls went out one by one
        # redis-py shows no other way to write at once
        self._writer: asyncio.StreamWriter = connection._writer  # noqa: SLF001
        #: False once the connection is lost or closed.
        self.usable = True
        self._patience, connection.socket_timeout = connection.socket_timeout, None  # the line watches the oldest call
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
        with suppress(OSError):  # the connection is lost, and the line is not usable
            await self._writer.drain()

    def call(self, packed: bytes, count: int = 1) -> Call:
        """Send packed commands in this pass of the loop. `count` is the number of their replies.

        A call goes out at once where a pass had one call only: then it saves a pass of the loop.
        """
        arrival = self._loop.create_future()
        return self._put(Call(arrival, None) if count == 1 else Calls(arrival, count), packed)

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
        elif Joined.can_begin(last.command):
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
            self._timer = self._loop.call_later(SOCKET_TIMEOUT, self._look)
        return call

    def _flush(self) -> None:
        unsent, packed = self._unsent, self._packed
        if not unsent or not self.usable:
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
        if sent and isinstance(error, BusyLoadingError):
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
        self._timer = self._loop.call_later(left if left > 0 else GRACE, self._look)

    async def close(self) -> None:
        """Wait for the replies to all calls, and close the connection."""
        if self.usable:
            await self.call(pack_command(("PING",)))
        self.abandon(ConnectionError("the connection was closed"))
        await asyncio.shield(self._reading)


def _single(calls: Iterable[Call | JoinedCall]) -> Iterator[Call]:
    for call in calls:
        yield from call.calls if isinstance(call, JoinedCall) else [call]
