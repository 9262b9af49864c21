"""The connections of one client. A call takes one; after it the connection waits for the next call or is given back."""

from __future__ import annotations

import os
import time
from collections import deque
from itertools import islice

from redis.connection import Connection, ConnectionPool
from redis.exceptions import ConnectionError, TimeoutError

from rqttl.errors import BrokerClosed
from rqttl.store.pools import free_connection
from rqttl.store.retry import NotSent

#: Seconds for which a used connection is kept for the next call. The pool would poll its socket first.
FRESH = 1.0
#: The divisor of the pool's limit that gives the number of kept connections.
SHARE = 4


class Connections:
    """Recently used connections, and the connections of the pool. Safe to share between threads."""

    def __init__(self, pool: ConnectionPool) -> None:
        self.pool = pool
        self._idle: deque[tuple[Connection, float]] = deque()
        self._process = os.getpid()
        self._closed = False

    def __len__(self) -> int:
        return len(self._idle)

    def check_open(self) -> None:
        """Raise `BrokerClosed` after `close`."""
        if self._closed:
            raise BrokerClosed

    def checkout(self) -> Connection:
        """A connection for one call: a recently used one, or one that the pool has checked.

        Raises `NotSent`, `PoolExhausted`, `BrokerClosed`.
        """
        if self._process != os.getpid():
            # the connections of the parent process are the parent's
            self._idle, self._process = deque(), os.getpid()
        try:
            return self._take_idle() or free_connection(self.pool, self._take_idle)
        except (ConnectionError, TimeoutError) as error:
            raise NotSent from error

    def _take_idle(self) -> Connection | None:
        self.check_open()
        for connection, since in self._popped():
            if time.monotonic() - since < FRESH:
                return connection
            self.pool.release(connection)
        return None

    def _popped(self) -> list[tuple[Connection, float]]:
        """Up to one idle connection. It changes containers in one instruction, so no signal handler can lose it."""
        taken: list[tuple[Connection, float]] = []
        try:  # noqa: SIM105  # each call comes here, and `suppress` makes three calls more
            taken.extend(islice(iter(self._idle.pop, None), 1))
        except IndexError:
            pass  # no connection is idle
        return taken

    def keep(self, connection: Connection) -> None:
        """Keep a connection for the next call, but leave most of a small pool to others. After `close`, close it."""
        if len(self._idle) < self.pool.max_connections // SHARE:
            self._idle.append((connection, time.monotonic()))
        else:
            self.pool.release(connection)
        if self._closed:
            self.close()

    def drop(self, connection: Connection) -> None:
        """Give a closed connection back to the pool."""
        self.pool.release(connection)

    def release_idle(self) -> None:
        """Give all kept connections back to the pool. Another caller needs one of them if the pool is small."""
        while taken := self._popped():
            self.pool.release(taken[0][0])

    def renew(self) -> None:
        """Close all free connections. The next calls open new ones, perhaps to another server."""
        self.release_idle()
        self.pool.disconnect(inuse_connections=False)

    def close(self) -> None:
        """Close all free connections now, and each connection in use after its call."""
        self._closed = True
        self.renew()
