"""Blocking calls: each thread that waits holds a connection, and reads from it for as long as its call may take."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any

import redis
from redis.connection import Connection
from redis.exceptions import ConnectionError, ResponseError, TimeoutError

from rqttl.errors import PoolExhausted
from rqttl.flows.messages import ENDED
from rqttl.runtime.interrupt import Interrupt
from rqttl.store.pools import Held, free_connection, places_of, pool_of_waits
from rqttl.store.retry import NotSent

#: Seconds that the reply to a blocking call may take beyond the time for which it blocks. After that the connection
#: counts as dead.
REPLY = 15.0
#: Seconds after the time for which a call blocks. Then this side ends its connection: Redis measures that time by
#: its own clock, and ends a call late when the clock steps back.
SLACK = 1.0
#: Seconds after a lost connection, before the queue is looked at.
PAUSE = 0.02
#: The longest that a call blocks where its time-out cannot be changed, if the connection has none: in ms.
BLIND = 5_000
#: Seconds, seconds and a number: a machine that is gone is noticed in a minute. macOS has another name for the first.
_KEEPALIVE = (("TCP_KEEPIDLE", 30), ("TCP_KEEPALIVE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))


class Listener:
    """Waits for elements of lists. Safe to share between threads.

    `ask` sends a command on a connection and reads the reply. `make_room` gives the pool what its caller keeps of it.
    `interrupt` ends all waits.
    """

    def __init__(
        self,
        client: redis.Redis,
        ask: Callable[[Any, tuple[Any, ...]], Any],
        make_room: Callable[[], None],
        interrupt: Interrupt,
    ) -> None:
        self._call = ask
        self._make_room = make_room
        self._pool = pool_of_waits(client)
        self._shared = self._pool is client.connection_pool
        self._places = places_of(self._pool)
        self._interrupt = interrupt

    def listen(self, key: str, ms: int, interrupt: Interrupt | None = None) -> bytes | PoolExhausted | None:
        """Wait for an element of a list, at most `ms`. Returns the error if there is no connection to wait on.

        `ENDED` after the interrupt of all waits, and after the given one. A lost connection ends the wait too: what
        comes next looks at the queue and finds out whether Redis is there.
        """
        interrupts = [self._interrupt] if interrupt is None else [self._interrupt, interrupt]
        place = self._places.take(ms / 1000, partial(_asked, interrupts))
        if not place:
            exhausted = PoolExhausted(self._places.limit, self._places.held)
            return exhausted if place is False else ENDED if _asked(interrupts) else None
        try:
            reply = self._block(key, ms, interrupts)
        except PoolExhausted as error:
            return error
        except (ConnectionError, TimeoutError, NotSent):
            if _asked(interrupts):
                return ENDED
            time.sleep(PAUSE)
            return None
        except ResponseError as error:
            if "UNBLOCKED" not in str(error):
                raise
            return b""
        finally:
            self._places.give_back(place)
        if reply is None:
            return ENDED if _asked(interrupts) else None
        element: bytes = reply[1]
        return element

    def _block(self, key: str, ms: int, interrupts: Sequence[Interrupt]) -> Any:
        """One blocking call, which the interrupts may end."""
        with Held(self) as held:
            connection = held.connection
            # this very socket: once the connection is back in its pool, another thread may use it with a new one
            sock = getattr(connection, "_sock", None)
            hang_up, line = partial(_hang_up, sock), _Line(connection, sock, ms / 1000 + SLACK)
            try:
                with patiently(connection, ms) as longest, ExitStack() as stack:
                    for interrupt in interrupts:
                        stack.enter_context(interrupt.ending(hang_up))
                    # looked at only now: whoever asks from here on finds the socket
                    if _asked(interrupts):
                        return None
                    reply = self._call(line, ("BLPOP", key, f"{longest / 1000:.3f}"))
            except ResponseError as error:
                # Redis closes it after UNBLOCKED, perhaps after the next call was sent
                held.clean = not (_asked(interrupts) or line.ended or "UNBLOCKED" in str(error))
                raise
            held.clean = not (_asked(interrupts) or line.ended)
            return reply

    def checkout(self) -> Connection:
        """A connection to wait on."""
        return free_connection(self._pool, self._make_room)

    def keep(self, connection: Connection) -> None:
        """Give a connection back to its pool."""
        self._pool.release(connection)

    drop = keep

    def close(self) -> None:
        """Close the connections that the client does not know. Those of waits are closed when the waits end."""
        if not self._shared:
            self._pool.disconnect(inuse_connections=False)


class _Line:
    """A connection on which a reply may take so many seconds. Then our half ends, and what Redis has sent still counts.

    The time is measured here, by a clock that never steps.
    """

    def __init__(self, connection: Connection, sock: Any, seconds: float) -> None:
        self._connection = connection
        self._sock = sock
        self._seconds = seconds
        #: The reply did not come in time. Nobody else can use the connection.
        self.ended = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def read_response(self) -> Any:
        """Read the reply to the call."""
        if isinstance(self._sock, socket.socket) and not self._connection.can_read(self._seconds):
            self.ended = True
            _hang_up(self._sock)
            self._sock.settimeout(REPLY)  # a server that hangs does not notice
        return self._connection.read_response()


def _asked(interrupts: Sequence[Interrupt]) -> bool:
    return any(interrupt.asked() for interrupt in interrupts)


def _hang_up(sock: Any) -> None:
    """End a read of another thread, without losing a reply that Redis has sent or is about to send."""
    if isinstance(sock, socket.socket):
        with suppress(OSError):  # it is closed already
            # only our half, and not as TLS does it: what Redis has taken from the list for us still arrives
            socket.socket.shutdown(sock, socket.SHUT_WR)


@contextmanager
def patiently(connection: Connection, ms: int) -> Iterator[int]:
    """Let a reply take `ms` and `REPLY`, for one call. Gives how long the call may block, in ms.

    TCP asks meanwhile whether the other machine is there. Where redis-py shows no socket, a call blocks for half of
    the connection's time-out.
    """
    sock = getattr(connection, "_sock", None)
    if not isinstance(sock, socket.socket):
        timeout = connection.socket_timeout
        yield min(max(10, ms), BLIND if not timeout else max(10, int(timeout * 500)))
        return
    _keep_alive(sock)
    before = sock.gettimeout()
    sock.settimeout(ms / 1000 + REPLY)
    try:
        yield max(10, ms)
    finally:
        with suppress(OSError):  # it was closed
            sock.settimeout(before)


def _keep_alive(sock: socket.socket) -> None:
    """Let TCP find out that the other machine is gone, if nobody has set how."""
    if sock.family == socket.AF_UNIX or sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE):
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE:
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
