"""The connections to one server: the pool that an address makes, who holds a connection, and round trips.

A call takes one connection; after it the connection waits for the next call or is given back. Threads that wait for
messages hold one each: `Places` limits them.
"""

from __future__ import annotations

import math
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast
from weakref import WeakKeyDictionary, WeakSet

import redis
import redis.asyncio.retry
from redis.backoff import NoBackoff
from redis.connection import BlockingConnectionPool, Connection, ConnectionPool
from redis.exceptions import ConnectionError, NoScriptError, RedisError, ResponseError, TimeoutError
from redis.retry import Retry

from rqttl.errors import BrokerClosed, InvalidInput, PoolExhausted
from rqttl.protocol.commands import CONFIRMING, Command, Reply, Word, annotated, unconfirmed
from rqttl.protocol.contract import Repeated, fits, pack_command
from rqttl.runtime.interrupt import Timing
from rqttl.store.addresses import Address
from rqttl.store.exchanges import SOCKET_TIMEOUT, NotSent
from rqttl.store.topology import Calls, Trip
from rqttl.text import format_value, type_name

if TYPE_CHECKING:
    from redis.client import PubSub

T = TypeVar("T")

#: The value that redis-py < 8 gives to a pool without a limit.
UNLIMITED = 2**31
#: Seconds for which a command waits for a free connection of a busy pool.
PATIENCE = 15.0
_PAUSE = 0.01
#: Texts of the errors of an exhausted pool. Not every version and pool of redis-py has a class of its own for them.
_EXHAUSTED = ("Too many connections", "No connection available")


class Pool(ConnectionPool):
    """The pool of a client that `connect` makes. It has a limit only if the URL has `max_connections`.

    A signal handler may raise between any two instructions, also while a connection changes its owner. So this pool
    holds only weak references to the connections in use. The finalizer of an unreferenced connection closes it, and the
    limit stops counting it. A connection comes back only through `release`, never after an exception.
    """

    def reset(self) -> None:
        """Forget all connections, as a forked process must."""
        super().reset()
        self._in_use_connections: Any = WeakSet()

    def make_connection(self) -> Any:
        """Make a connection if the limit permits one more. Lost connections do not count."""
        self._created_connections = len(self._available_connections) + living(self._in_use_connections)
        return super().make_connection()

    def get_connection(self, *_: object, **__: object) -> Any:
        """Take an open connection that has no unread reply."""
        self._checkpid()
        with self._lock:
            connection = self._available_connections.pop() if self._available_connections else self.make_connection()
            self._in_use_connections.add(connection)
        try:
            connection.connect()
            try:
                waits = connection.can_read()  # an unread reply, or the end of the connection
            except (ConnectionError, TimeoutError, OSError):
                waits = True
            if waits:
                connection.disconnect()
                connection.connect()
        except Exception:
            self._in_use_connections.discard(connection)  # an error keeps its frames, and so the connection, alive
            raise
        return connection


def is_spoilt(sock: Any) -> bool:
    """Return True if an unread reply, or the end of the connection, lies in a socket: a call on it would be lost."""
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))


def living(references: WeakSet[Any]) -> int:
    """The number of living objects in a set. `len` may count dead ones after an exception of a signal handler."""
    return sum(1 for _ in references)


#: Settings of a client of redis-py that make its connections try again.
_RETRIES = {"retry", "retry_on_error", "retry_on_timeout"}
#: The classes of redis-py, and connections that do not try again.
_THREADS: tuple[Any, ...] = redis.Redis, Pool, BlockingConnectionPool, Retry(NoBackoff(), 0)
_LOOPS: tuple[Any, ...] = (
    *(redis.asyncio.Redis, redis.asyncio.ConnectionPool, redis.asyncio.BlockingConnectionPool),
    redis.asyncio.retry.Retry(NoBackoff(), 0),
)
#: The pools of brokers, by those of the clients that they were given.
_own_pools: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()


def own_client(client: Any, connection_class: Any = None, dropped: Iterable[str] = (), **added: Any) -> Any:
    """A client with the settings and the limit of another one, whose connections never try again by themselves.

    redis-py connects within its pools, so it has a pool of its own: one for all brokers on a client, unless settings
    are `added`.
    """
    pool: Any = client.connection_pool
    kind, used, blocking, retry = _LOOPS if isinstance(pool, redis.asyncio.ConnectionPool) else _THREADS
    settings = {name: value for name, value in pool.connection_kwargs.items() if name not in {*_RETRIES, *dropped}}
    limit = pool.max_connections
    if isinstance(pool, blocking):
        used, settings["timeout"] = blocking, pool.timeout
    elif limit == used().max_connections:  # redis-py's own limit is none that the user has set
        limit = UNLIMITED
    settings |= {"connection_class": connection_class or pool.connection_class, "max_connections": limit}
    made = used(**settings, **added, retry=retry)
    return kind(connection_pool=made if added else _own_pools.setdefault(pool, made))


def checked_client(client: object, kind: type[T]) -> T:
    """Return a client of redis-py that is fit for rqttl. Raises `InvalidInput`."""
    if not isinstance(client, kind):
        module = kind.__module__.removesuffix(".client")
        expected = f"{module}.{kind.__name__} or {module}.RedisCluster"
        raise InvalidInput(f"client: expected a {expected} (or a URL for connect()), got {type_name(client)}")
    if cast("Any", client).connection_pool.connection_kwargs.get("decode_responses"):
        raise InvalidInput("client: decode_responses=True is not supported, bodies are bytes")
    return client


def is_exhausted(error: BaseException | None) -> bool:
    """Return True if the error says that a pool has no connection left. The server is not the cause then."""
    return isinstance(error, ConnectionError) and str(error).startswith(_EXHAUSTED)


class Place:
    """The right of one thread to hold a connection while it waits."""


class Places:
    """The connections of one pool that threads may hold while they wait: all but one, which is kept for commands.

    An unreferenced place is free: a signal handler may raise before the holder gives its place back.
    """

    def __init__(self, pool: ConnectionPool) -> None:
        self.limit = int(pool.max_connections)
        #: The highest number of threads that may wait.
        self.held = max(1, self.limit - 1)
        # callers of a blocking pool queue for a connection, so threads that wait queue for a place
        timeout = pool.timeout if isinstance(pool, BlockingConnectionPool) else 0.0
        self._patience: float = math.inf if timeout is None else timeout
        self._process = 0
        self._lock = threading.Lock()
        self._taken: WeakSet[Place] = WeakSet()

    def take(self, seconds: float, ended: Callable[[], bool]) -> Place | Literal[False] | None:
        """Take a place. A blocking pool lets the thread wait for one, up to `seconds`.

        Returns `None` when the time is over or `ended()` is true, and False if the time-out of the pool is over before.
        """
        place = Place()
        if self.limit >= UNLIMITED:
            return place
        if self._process != os.getpid():  # the waiting threads of the parent process do not exist here
            self._lock, self._taken, self._process = threading.Lock(), WeakSet(), os.getpid()
        started = Timing.seconds()
        while not self._admit(place):
            waited = Timing.seconds() - started
            if waited >= min(seconds, self._patience):
                return None if seconds < self._patience else False
            if ended():
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
        if self.limit < UNLIMITED:
            self._taken.discard(place)


_places: WeakKeyDictionary[ConnectionPool, Places] = WeakKeyDictionary()


def places_of(pool: ConnectionPool) -> Places:
    """The places of a pool, the same for all brokers that share it."""
    # one step of the dictionary: a lock could be held by another thread when this process is forked
    return _places.setdefault(pool, Places(pool))


class Held:
    """One connection for one call, as a context. Its exit closes the connection unless `clean` is set.

    So a connection with an unread reply reaches no later call, at whatever instruction an exception interrupts this.
    """

    __slots__ = ("_connections", "clean", "connection")

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        #: The call sets it when it has read all replies.
        self.clean = False

    def __enter__(self) -> Held:
        self.connection = self._connections.checkout()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.clean:
            self._connections.keep(self.connection)
        else:
            self.connection.disconnect()
            self._connections.pool.release(self.connection)
            # the other ones may be lost, too: the pool looks at each before it is used
            self._connections.release_idle()


#: Seconds for which a used connection is kept for the next call, and after which its socket is polled first.
FRESH = 1.0
QUICK = 0.001
#: The divisor of the pool's limit that gives the number of kept connections.
SHARE = 4
#: Bytes that a socket may not take at once.
LARGE = 1 << 16


class Connections:
    """Recently used connections, and the connections of the pool. Safe to share between threads."""

    def __init__(self, pool: ConnectionPool) -> None:
        self.pool = pool
        self._idle: deque[tuple[Connection, float]] = deque()
        self._process = os.getpid()
        self._closed = False

    def __len__(self) -> int:
        return len(self._idle)

    def checkout(self) -> Connection:
        """A recently used connection, or one that the pool has checked; waits up to `PATIENCE` seconds for one.

        Raises `NotSent`, `PoolExhausted`, `BrokerClosed`.
        """
        if self._process != os.getpid():
            # the connections of the parent process are the parent's
            self._idle, self._process = deque(), os.getpid()
        connection = self._take_idle()
        if connection is not None:
            return connection
        ends = Timing.seconds() + PATIENCE
        while connection is None:
            try:
                return self.pool.get_connection()
            except (ConnectionError, TimeoutError) as error:
                if not is_exhausted(error):
                    raise NotSent from error
                if isinstance(self.pool, BlockingConnectionPool) or Timing.seconds() >= ends:
                    raise PoolExhausted(int(self.pool.max_connections)) from error
            time.sleep(_PAUSE)
            connection = self._take_idle()
        return connection

    def _take_idle(self) -> Connection | None:
        if self._closed:
            raise BrokerClosed
        for connection, since in self._popped():
            idle = Timing.seconds() - since
            if idle < QUICK or (idle < FRESH and not is_spoilt(connection._sock)):  # noqa: SLF001  # can_read is slow
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
            self._idle.append((connection, Timing.seconds()))
        else:
            self.pool.release(connection)
        if self._closed:
            self.close()

    def release_idle(self) -> None:
        """Give all kept connections back to the pool."""
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


class RedisNode:
    """One server, by a client of redis-py. Safe to share between threads.

    No call goes through the client: after an exception its pool would keep a connection with an unread reply, and that
    reply would answer the next call.
    """

    def __init__(self, client: redis.Redis, is_in_use: Callable[[], bool] | None = None) -> None:
        self._client = checked_client(client, redis.Redis)
        self.connections = Connections(client.connection_pool)
        self.loaded: set[str] = set()
        #: Asked after each time-out of a reply in a cluster: only a node that is in use may still answer.
        self._is_in_use = is_in_use
        #: Other connections to the same node, for calls that leave it alone if it does not answer at once.
        self.fast: RedisNode | None = None

    @property
    def address(self) -> Address:
        """Where the server is."""
        return Address.of(self._client.connection_pool)

    def open_fast(self, seconds: float) -> None:
        """Have `fast`, where a reply may take so many seconds. It connects nowhere yet."""
        settings = self._client.connection_pool.connection_kwargs
        limits = {name: min(seconds, settings.get(name) or seconds) for name in TIME_OUTS}
        self.fast = self.fast or RedisNode(own_client(self._client, dropped=TIME_OUTS, **limits))

    @property
    def service(self) -> Any:
        """The `sentinel.ThreadService` that names the server; `None` without Sentinels."""
        return self._client.connection_pool.connection_kwargs.get("service")

    def close(self) -> None:
        """Close all free connections now, and each connection in use after its call."""
        self.connections.close()
        if self.fast is not None:
            self.fast.close()
        if self.service is not None:
            self.service.close()

    def subscription(self) -> PubSub:
        """A subscription of redis-py to channels of this server. It connects nowhere yet."""
        subscription: PubSub = self._client.pubsub()
        return subscription

    def leave(self) -> None:
        """See `Node`."""
        self.connections.renew()
        if self.fast is not None:
            self.fast.leave()

    def send_one(self, command: Command, *, waits: bool = True) -> Reply:
        """Make the first attempt to run a script. Most calls need no other. For `waits` see `round_trip`."""
        with Held(self.connections) as held:
            connection = held.connection
            packed = pack_command(("EVALSHA", command.script.sha, *command.words))
            try:
                connection.send_packed_command([packed])
            except (ConnectionError, TimeoutError) as error:
                raise NotSent from error  # Redis runs only calls that it has received whole
            try:
                in_use = self._is_in_use if waits else None
                reply: Reply = connection.read_response() if in_use is None else _read(connection, in_use)
            except ResponseError:
                held.clean = True
                raise
            command.script.check(reply)
            held.clean = True
        return Repeated(reply) if reply[0] == b"refused" and command.is_replay else reply

    def send_durable(self, command: Command, *, waits: bool = True) -> Reply:
        """The same for a command that Redis has to confirm, with the call that confirms it."""
        if command.script.sha not in self.loaded:
            raise NoScriptError  # without its script the call would wait in vain
        calls = [("EVALSHA", command.script.sha, *command.words), CONFIRMING[command.durability]]
        reply, confirmation = self.round_trip(calls, waits=waits)
        if isinstance(reply, Exception):
            raise reply
        command.script.check(reply)
        if reply[0] == b"refused" and command.is_replay:
            return Repeated(reply)
        return cast("Reply", annotated(reply, unconfirmed(confirmation)))

    def round_trip(self, calls: Calls, *, waits: bool = True) -> list[Any]:
        """Send calls together, and read their replies; errors of Redis are among them.

        A call that does not wait is over after one time-out.
        """
        with Held(self.connections) as held:
            self._send(held.connection, calls)
            return self._replies(held, calls, self._is_in_use if waits else None)

    @contextmanager
    def sent(self, calls: Calls, *, waits: bool) -> Iterator[Callable[[], list[Any]]]:
        """Send the calls of a round trip. Within the block the function reads their replies."""
        with Held(self.connections) as held:
            self._send(held.connection, calls)
            yield lambda: self._replies(held, calls, self._is_in_use if waits else None)

    def rehearse(self, calls: Sequence[Sequence[Word]]) -> list[ResponseError | None]:
        """Return the refusal of each call, or `None`. Raises `ResponseError` if Redis makes no transaction."""
        refusals: list[ResponseError | None] = []
        # never `clean`, so the connection is closed at the end, which discards the transaction
        with Held(self.connections) as held:
            connection = held.connection
            connection.connect()
            connection.send_packed_command(connection.pack_command("MULTI"), check_health=False)
            connection.read_response()  # raises where MULTI itself is denied: what follows would be carried out
            connection.send_packed_command(connection.pack_commands(calls), check_health=False)
            for _ in calls:
                try:
                    connection.read_response()
                    refusals.append(None)
                except ResponseError as error:
                    refusals.append(error)
        return refusals

    def _send(self, connection: Connection, calls: Calls) -> None:
        try:
            connection.connect()
        except (ConnectionError, TimeoutError) as error:
            raise NotSent from error
        try:
            self._write(connection, b"".join([pack_command(call) for call in calls]))
        except (ConnectionError, TimeoutError) as error:
            if len(calls) > 1:
                raise  # the first of the calls may have arrived whole
            raise NotSent from error

    def _write(self, connection: Connection, packed: bytes) -> None:
        sock: Any = getattr(connection, "_sock", None) if self._is_in_use and len(packed) >= LARGE else None
        before = sock and sock.gettimeout()
        if sock:
            sock.settimeout(SOCKET_TIMEOUT)
        connection.send_packed_command([packed])
        if sock:
            sock.settimeout(before)

    def _replies(self, held: Held, calls: Calls, is_in_use: Callable[[], bool] | None) -> list[Any]:
        replies: list[Any] = []
        for _ in calls:
            try:
                replies.append(_read(held.connection, is_in_use))
            except ResponseError as error:
                replies.append(error)
        # a reply that no script gives may be one to another call: then the connection is closed
        held.clean = all(fits(reply) for call, reply in zip(calls, replies, strict=True) if call[0] == "EVALSHA")
        return replies


def _read(connection: Connection, is_in_use: Callable[[], bool] | None) -> Any:
    if is_in_use is None:
        return connection.read_response()
    ends = Timing.seconds() + SOCKET_TIMEOUT
    while True:
        try:
            return connection.read_response(disconnect_on_error=False)
        except TimeoutError:
            if Timing.seconds() >= ends or not is_in_use():
                raise


def made_together(trips: Sequence[Trip], *, waits: bool = True) -> list[Any]:
    """Make trips to several nodes: send all calls, and then read the replies. Returns them, or the error, of each."""
    calls: dict[Any, list[tuple[Any, ...]]] = {}
    for trip in trips:
        calls.setdefault(trip.node, []).extend(trip.calls)
    brief = {trip.node for trip in trips if trip.brief or trip.fails_fast}
    answers: dict[Any, Any] = {}
    begun: dict[Any, Callable[[], list[Any]]] = {}
    with ExitStack() as stack:
        for node, theirs in calls.items():
            try:
                begun[node] = stack.enter_context(node.sent(theirs, waits=waits and node not in brief))
            except (NotSent, ConnectionError, TimeoutError) as error:
                answers[node] = error
        for node, replies in begun.items():
            try:
                answers[node] = iter(replies())
            except (ConnectionError, TimeoutError) as error:
                answers[node] = error
    ends = [answers[trip.node] for trip in trips]
    return [
        end if isinstance(end, Exception) else list(islice(end, len(trip.calls)))
        for end, trip in zip(ends, trips, strict=True)
    ]


# The pools that addresses make.

#: The time-outs of a connection in seconds.
TIME_OUTS: Mapping[str, float] = {"socket_timeout": SOCKET_TIMEOUT, "socket_connect_timeout": 5.0}
_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")


def pool_for(address: Address, kinds: Any = redis.connection, kind_of_pool: Any = Pool, **added: Any) -> Any:
    """A pool for the first place of an address, with time-outs. Raises `InvalidInput` for a wrong option.

    `kinds` is the module of redis-py that has the classes of connections.
    """
    kind = kinds.SSLConnection if address.has_tls else kinds.Connection
    known = {"host": address.host, "port": address.port}
    if address.path is not None:
        kind, known = kinds.UnixDomainSocketConnection, {"path": address.path}
    known |= {"db": address.database, "username": address.user, "password": address.password, **added}
    settings = {"max_connections": UNLIMITED, **TIME_OUTS, **known}
    pool = kind_of_pool(kind, **settings)
    for name, text in address.options.items():
        try:
            if name in known:
                raise ValueError
            settings[name] = kinds.URL_QUERY_ARGUMENT_PARSERS.get(name, str)(text)
            pool = kind_of_pool(kind, **settings)
            kind(**pool.connection_kwargs)  # not opened: its constructor checks the option
        except (ValueError, TypeError, RedisError):
            # the text of these errors holds the value
            raise InvalidInput(f"url: {name}: unknown option, or not a value that it takes") from None
        if name in _FILES and not os.access(text, os.R_OK):
            raise InvalidInput(f"url: {name}: cannot read the file {format_value(text)}")
    return pool
