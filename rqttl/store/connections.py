"""The connections of one client: taken for a call, kept for the next one, given back to the pool."""

from __future__ import annotations

import os
import time
from collections import deque
from contextlib import suppress
from itertools import islice

from redis.connection import Connection, ConnectionPool
from redis.exceptions import ConnectionError, TimeoutError

from rqttl.errors import BrokerClosed
from rqttl.store.pools import Held, free_connection
from rqttl.store.retry import NotSent

#: Seconds for which a connection that was just used is used again without asking the pool, which polls its socket.
FRESH = 1.0
#: Such connections are no more than one in so many of those that the pool may have.
SHARE = 4


class Connections:
    """Connections that were in use a moment ago, and those of the pool. Safe to share between threads."""

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

    def hold(self) -> Held:
        """Return a context that has a connection for one call. Raises `NotSent`, `PoolExhausted`, `BrokerClosed`."""
        return Held(self)

    def checkout(self) -> Connection:
        """A connection that nobody else uses: one that was in use a moment ago, or one that the pool has checked."""
        if self._process != os.getpid():
            # the connections of the parent process are the parent's
            self._idle, self._process = deque(), os.getpid()
        try:
            return free_connection(self.pool, self._take_idle)
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
        """Up to one idle connection: from one container into another without an instruction of Python in between."""
        taken: list[tuple[Connection, float]] = []
        with suppress(IndexError):  # there is none
            taken.extend(islice(iter(self._idle.pop, None), 1))
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
        """Give a connection that was closed back to the pool."""
        self.pool.release(connection)

    def release_idle(self) -> None:
        """Leave all connections to the pool: it may have room for a few only, and others need one of them."""
        while taken := self._popped():
            self.pool.release(taken[0][0])

    def renew(self) -> None:
        """Close all connections that are not in use: the next calls make new ones, perhaps to another server."""
        self.release_idle()
        self.pool.disconnect(inuse_connections=False)

    def close(self) -> None:
        """Close all connections but those that are in use at this moment, which are closed after that."""
        self._closed = True
        self.renew()
