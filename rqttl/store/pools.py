"""Connection pools: the one of `connect`, how many threads may wait on the connections of any, and its exhaustion."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from functools import lru_cache
from types import TracebackType
from typing import Any, Literal, Protocol
from weakref import WeakKeyDictionary, WeakSet

import redis
from redis.connection import BlockingConnectionPool, Connection, ConnectionPool
from redis.exceptions import ConnectionError

from rqttl.errors import PoolExhausted
from rqttl.protocol.resp import Packer

#: The value that redis-py < 8 gives to a pool without a limit.
UNLIMITED = 2**31
#: Seconds for which a command waits for a free connection. The pool of a user may be busy for a moment.
PATIENCE = 15.0
_PAUSE = 0.01
#: redis-py has no error of its own for it in all versions and pools, only these texts.
_EXHAUSTED = ("Too many connections", "No connection available")


class Pool(ConnectionPool):
    """The pool of a client that `connect` makes. It has a limit only if the URL has `max_connections`.

    A signal handler may raise between any two instructions, also in the moment in which a connection changes hands.
    So this pool does not own the connections that are in use: one that nobody refers to any more is closed by its
    finalizer, and counts no longer. And a connection comes back only through `release`, never after an exception.
    """

    def reset(self) -> None:
        """Forget all connections, as a forked process must."""
        super().reset()
        self._in_use_connections: Any = WeakSet()

    def make_connection(self) -> Any:
        """Make a connection, if the limit lets it. Those that were lost do not count."""
        self._created_connections = len(self._available_connections) + living(self._in_use_connections)
        return super().make_connection()

    def get_connection(self, *_: object, **__: object) -> Any:
        """Take a connection that is open, and on which nothing is on its way."""
        self._checkpid()
        with self._lock:
            connection = self._available_connections.pop() if self._available_connections else self.make_connection()
            self._in_use_connections.add(connection)
        try:
            _make_ready(connection)
        except Exception:
            self._in_use_connections.discard(connection)  # an error keeps its frames, and so the connection, alive
            raise
        return connection


def living(references: WeakSet[Any]) -> int:
    """The number of things that are alive. `len` may count others.

    An exception of a signal handler keeps them in the set.
    """
    return sum(1 for _ in references)


def _make_ready(connection: Connection) -> None:
    connection.connect()
    try:
        waits = connection.can_read()  # unasked: a reply that nobody has read, or the end of the connection
    except (ConnectionError, TimeoutError, OSError):
        waits = True
    if waits:
        connection.disconnect()
        connection.connect()


def open_pool(url: str, **settings: object) -> Pool:
    """A pool for a URL, without a limit unless the URL has one."""
    return Pool.from_url(url, max_connections=UNLIMITED, command_packer=Packer(), **settings)


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


class Place:
    """The right of one thread to hold a connection while it waits."""


class Places:
    """The connections of one pool that threads may hold while they wait: all but one, so that commands go on.

    A pool of one connection has one place. A place that nobody refers to any more is free: a signal handler may raise
    before its holder could give it back.
    """

    def __init__(self, pool: ConnectionPool) -> None:
        self.limit = int(pool.max_connections)
        # a pool that lets its callers queue lets those who wait queue too
        self._patience: float | None = pool.timeout if isinstance(pool, BlockingConnectionPool) else 0.0
        self._process = 0
        self._lock = threading.Lock()
        self._taken: WeakSet[Place] = WeakSet()

    @property
    def held(self) -> int:
        """The highest number of threads that may wait."""
        return max(1, self.limit - 1)

    def take(self, seconds: float, ended: Callable[[], bool]) -> Place | Literal[False] | None:
        """Take a place; within `seconds`, if the pool is one that blocks. `None` when the time is over or `ended`.

        False when the pool's own time-out is over.
        """
        place = Place()
        if self.limit >= UNLIMITED:
            return place
        if self._process != os.getpid():  # those who waited in the parent process do not wait here
            self._lock, self._taken, self._process = threading.Lock(), WeakSet(), os.getpid()
        started = time.monotonic()
        while not self._admit(place):
            waited = time.monotonic() - started
            if self._patience is not None and waited >= self._patience:
                return False
            if waited >= seconds or ended():
                return None
            time.sleep(_PAUSE)
        return place

    def _admit(self, place: Place) -> bool:
        with self._lock:
            if living(self._taken) >= self.held:
                return False
            self._taken.add(place)
            return True

    def give_back(self, place: Place) -> None:
        """Give a place back."""
        self._taken.discard(place)


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


class Keeper(Protocol):
    """Gives connections, and takes them back for the next call."""

    def checkout(self) -> Connection:
        """A connection that nobody else uses."""

    def keep(self, connection: Connection) -> None:
        """Take back a connection on which nothing is on its way."""

    def drop(self, connection: Connection) -> None:
        """Take back a connection that was closed."""


class Held:
    """One connection for one call, as a context. It is closed unless the call says that all replies were read.

    So nothing depends on what an exception interrupts: a connection on which a reply may still be on its way reaches
    no later call, even if another exception interrupts its closing.
    """

    __slots__ = ("_keeper", "clean", "connection")

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        #: Set by the call: all replies were read.
        self.clean = False

    def __enter__(self) -> Held:
        self.connection = self._keeper.checkout()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.clean:
            self._keeper.keep(self.connection)
        else:
            self.connection.disconnect()
            self._keeper.drop(self.connection)
