"""Connection pools: the one of `connect`, how many threads may wait on the connections of any, and its exhaustion."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from functools import lru_cache
from weakref import WeakKeyDictionary

import redis
from redis.connection import BlockingConnectionPool, Connection, ConnectionPool
from redis.exceptions import ConnectionError

from rqttl.errors import PoolExhausted

#: The value that redis-py < 8 gives to a pool without a limit.
UNLIMITED = 2**31
#: Seconds for which a command waits for a free connection. The pool of a user may be busy for a moment.
PATIENCE = 15.0
_PAUSE = 0.01
#: redis-py has no error of its own for it in all versions and pools, only these texts.
_EXHAUSTED = ("Too many connections", "No connection available")


class Pool(ConnectionPool):
    """The pool of a client that `connect` makes. It has a limit only if the URL has `max_connections`."""


def open_pool(url: str, **settings: object) -> Pool:
    """A pool for a URL, without a limit unless the URL has one."""
    return Pool.from_url(url, max_connections=UNLIMITED, **settings)


def pool_of_waits(client: redis.Redis) -> ConnectionPool:
    """The pool whose connections threads hold while they wait.

    It is the client's own. Where that has the limit which redis-py >= 8 sets by itself, it is another one without a
    limit: nobody chose that number, and it is no more than the number of threads of some programs.
    """
    pool = client.connection_pool
    if type(pool) is ConnectionPool and pool.max_connections == _limit_of_redis_py() < UNLIMITED:
        return ConnectionPool(pool.connection_class, UNLIMITED, **pool.connection_kwargs)
    return pool


@lru_cache(maxsize=1)
def _limit_of_redis_py() -> int:
    return ConnectionPool().max_connections


def is_exhausted(error: BaseException | None) -> bool:
    """Return True if a pool has no connection left. No server is the cause then."""
    return isinstance(error, ConnectionError) and str(error).startswith(_EXHAUSTED)


class Places:
    """The connections of one pool that threads may hold while they wait: all but one, so that commands go on.

    A pool of one connection has one place.
    """

    def __init__(self, pool: ConnectionPool) -> None:
        self.limit = int(pool.max_connections)
        # a pool that lets its callers queue lets those who wait queue too
        self._patience: float | None = pool.timeout if isinstance(pool, BlockingConnectionPool) else 0.0
        self._process = 0
        self._free = threading.Semaphore(0)

    @property
    def held(self) -> int:
        """The highest number of threads that may wait."""
        return max(1, self.limit - 1)

    def take(self, seconds: float, ended: Callable[[], bool]) -> bool | None:
        """Take a place; within `seconds`, if the pool is one that blocks. `None` when the time is over or `ended`.

        False when the pool's own time-out is over.
        """
        if self.limit >= UNLIMITED:
            return True
        if self._process != os.getpid():  # those who waited in the parent process do not wait here
            self._free, self._process = threading.Semaphore(self.held), os.getpid()
        started = time.monotonic()
        while not self._free.acquire(timeout=_PAUSE):
            waited = time.monotonic() - started
            if self._patience is not None and waited >= self._patience:
                return False
            if waited >= seconds or ended():
                return None
        return True

    def give_back(self) -> None:
        """Give a place back."""
        if self.limit < UNLIMITED:
            self._free.release()


_places: WeakKeyDictionary[ConnectionPool, Places] = WeakKeyDictionary()
_lock = threading.Lock()


def places_of(pool: ConnectionPool) -> Places:
    """The places of a pool, the same for all brokers that share it."""
    with _lock:
        return _places.setdefault(pool, Places(pool))


def free_connection(pool: ConnectionPool, spare: Callable[[], Connection | None]) -> Connection:
    """A connection that `spare` gives or the pool. Waits for one for `PATIENCE`: a command holds it for milliseconds.

    Raises `PoolExhausted`, and errors of redis-py.
    """
    started = time.monotonic()
    while True:
        connection = spare()
        try:
            return connection or pool.get_connection()
        except ConnectionError as error:
            if not is_exhausted(error):
                raise
            if isinstance(pool, BlockingConnectionPool) or time.monotonic() - started >= PATIENCE:
                raise PoolExhausted(int(pool.max_connections)) from error
        time.sleep(_PAUSE)
