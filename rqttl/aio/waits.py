"""Blocking calls of an event loop. Each wait has a connection of its own."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from redis.exceptions import ConnectionError, ResponseError, TimeoutError

from rqttl.errors import PoolExhausted
from rqttl.flows.receive import ENDED
from rqttl.protocol.contract import pack_command
from rqttl.runtime.interrupt import Interrupt
from rqttl.store.blocking import PAUSE, REPLY, SLACK, keep_alive
from rqttl.store.connections import is_exhausted


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
