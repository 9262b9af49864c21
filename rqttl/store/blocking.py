"""Blocking calls. Each thread that waits holds a connection of its own until its call ends."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from redis.connection import Connection
from redis.exceptions import ConnectionError, ResponseError, TimeoutError

from rqttl.errors import PoolExhausted
from rqttl.flows.steps import ENDED
from rqttl.outages import refuses_for_now
from rqttl.protocol.contract import pack_command
from rqttl.runtime.interrupt import Interrupt
from rqttl.store.connections import Connections, Held, places_of
from rqttl.store.exchanges import NotSent

#: Seconds that a reply may take beyond the time for which its call blocks. After that the connection counts as dead.
REPLY = 15.0
#: Seconds beyond the time of a call after which the client ends it: Redis ends it late if its clock steps back.
SLACK = 1.0
#: Seconds between the loss of a connection and the next look at the queue.
PAUSE = 0.02
#: The ms for which a call blocks at most if redis-py shows no socket and the connection has no time-out.
BLIND = 5_000
#: Options of TCP keepalive that show within a minute that a machine is gone. macOS has another name for the first one.
_KEEPALIVE = (("TCP_KEEPIDLE", 30), ("TCP_KEEPALIVE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))


class Listener:
    """Waits for elements of lists. Safe to share between threads. `interrupt` ends all waits.

    They share the `connections` for calls, because the caller makes a call next.
    """

    def __init__(self, connections: Connections, interrupt: Interrupt) -> None:
        self.connections = connections
        self.places = places_of(connections.pool)
        self._interrupt = interrupt

    def listen(
        self, keys: Sequence[str], ms: int, interrupt: Interrupt | None = None
    ) -> tuple[str, bytes] | bytes | PoolExhausted | None:
        """Wait up to `ms` for an element of one of the lists. Returns the list with the element; `None` after `ms`.

        Returns an empty text after `CLIENT UNBLOCK`, `ENDED` after an interrupt, and the error if no connection is
        free. A lost connection, and a refusal that may pass, give `None`, too: the caller's next call shows more.
        """
        interrupts = (self._interrupt, interrupt or self._interrupt)
        place = self.places.take(ms / 1000, partial(asked, interrupts))
        if not place:
            exhausted = PoolExhausted(self.places.limit, self.places.held)
            return exhausted if place is False else ENDED if asked(interrupts) else None
        try:
            reply = self._block(keys, ms, interrupts)
        except PoolExhausted as error:
            return error
        except (NotSent, ConnectionError, TimeoutError, ResponseError) as error:
            if "UNBLOCKED" in str(error):
                return b""
            if isinstance(error, ResponseError) and not refuses_for_now(error):
                raise
            if asked(interrupts):
                return ENDED
            time.sleep(PAUSE)
            return None
        finally:
            self.places.give_back(place)
        if reply is None:
            return ENDED if asked(interrupts) else None
        key, element = reply
        return key.decode(), element

    def _block(self, keys: Sequence[str], ms: int, interrupts: tuple[Interrupt, Interrupt]) -> Any:
        """Make one blocking call. Each of the two interrupts ends it."""
        with Held(self.connections) as held:
            connection = held.connection
            # an interrupt shuts down this socket, not the connection: another thread may use the connection later
            sock = getattr(connection, "_sock", None)
            hang_up = partial(shut_down, sock)
            of_all, of_this = interrupts
            is_late = False
            try:
                with patiently(connection, ms) as longest, of_all.ending(hang_up), of_this.ending(hang_up):
                    # this check comes after the registration of `hang_up`: a later interrupt shuts the socket down
                    if asked(interrupts):
                        return None
                    connection.send_packed_command([pack_command(("BLPOP", *keys, f"{longest / 1000:.3f}"))])
                    # measured by a clock of this process, which never steps
                    if isinstance(sock, socket.socket) and not connection.can_read(ms / 1000 + SLACK):
                        is_late = True
                        hang_up()  # a reply that Redis has already sent still arrives and counts
                        sock.settimeout(REPLY)  # a server that hangs does not notice the shutdown
                    reply = connection.read_response()
            except ResponseError as error:
                # Redis closes the connection after UNBLOCKED, perhaps after the client sent its next call
                held.clean = not (asked(interrupts) or is_late or "UNBLOCKED" in str(error))
                raise
            held.clean = not (asked(interrupts) or is_late)
            return reply

    def close(self) -> None:
        """Close the free connections. The end of a wait closes the connection of that wait."""
        self.connections.close()


def asked(interrupts: Iterable[Interrupt]) -> bool:
    """Return True after an `ask` of one of some interrupts."""
    return any(map(Interrupt.asked, interrupts))


def shut_down(sock: Any) -> None:
    """End the read of another thread. A reply that Redis has sent or is about to send still arrives."""
    if isinstance(sock, socket.socket):
        with suppress(OSError):  # the socket is closed already
            # only the sending half, and below TLS: an element that Redis has taken from the list still arrives
            socket.socket.shutdown(sock, socket.SHUT_WR)


@contextmanager
def patiently(connection: Connection, ms: int) -> Iterator[int]:
    """Set the time-out of a connection to `ms` and `REPLY` for one call. Yields the ms for which the call may block.

    If redis-py shows no socket, that is half of the connection's time-out.
    """
    sock = getattr(connection, "_sock", None)
    if not isinstance(sock, socket.socket):
        timeout = connection.socket_timeout
        yield min(max(10, ms), BLIND if not timeout else max(10, int(timeout * 500)))
        return
    keep_alive(sock)
    before = sock.gettimeout()
    sock.settimeout(ms / 1000 + REPLY)
    try:
        yield max(10, ms)
    finally:
        with suppress(OSError):  # the socket was closed
            sock.settimeout(before)


def keep_alive(sock: socket.socket) -> None:
    """Turn on TCP keepalive, unless the client's settings have done so."""
    if sock.family == socket.AF_UNIX or sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE):
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE:
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
