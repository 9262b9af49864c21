"""Sentinel: connections that ask on every connect which server is the primary of a service, and their pools.

A connection asks within `_connect`, which no way to a new socket leaves out. `rqttl.store.watcher` cuts connections to
a server that is the primary no longer.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import suppress
from types import coroutine
from typing import Any, TypeVar, cast
from weakref import WeakValueDictionary

import redis
import redis.asyncio.sentinel
import redis.sentinel
from redis.backoff import NoBackoff
from redis.connection import Connection, SSLConnection
from redis.exceptions import AuthenticationError, ConnectionError, RedisError, ResponseError
from redis.retry import Retry

from rqttl.errors import InvalidInput
from rqttl.flows.steps import drive
from rqttl.store.addresses import SSL, Address, Place
from rqttl.store.connections import Pool, own_client
from rqttl.store.watcher import Watcher

S = TypeVar("S", bound="Service")
T = TypeVar("T")

#: Seconds for which a call that was certainly not carried out is made again. A failover takes less.
PATIENCE = 30.0
#: Seconds that a Sentinel may take to answer, before the next one is asked.
_ANSWER = 2.0
_SENTINEL_POOLS = (redis.sentinel.SentinelConnectionPool, redis.asyncio.sentinel.SentinelConnectionPool)


class Service:
    """A service of Sentinel, as the connections of one client share it. It does no I/O itself."""

    def __init__(self, name: str, sentinels: Sequence[Mapping[str, Any]], host: str | None = None) -> None:
        self.name = name
        #: The settings of the connections to the Sentinels.
        self.sentinels = tuple(sentinels)
        #: The number of times that a Sentinel told of a new primary.
        self.switches = 0
        #: The connections that may be open.
        self.connections: WeakValueDictionary[int, Any] = WeakValueDictionary()
        self._order = list(self.sentinels)  # first the one that told of the last change, last those that failed
        self._host = host  # in the place of what Sentinels say, if the user wants so
        self._is_known = False

    async def ask(self, query: Callable[[Mapping[str, Any]], Awaitable[Any]]) -> Place:
        """Ask the Sentinels in turn for the primary. `query` gets the settings of one, and returns its reply.

        Raises `ConnectionError`; and `InvalidInput` if all answer, and none has ever known the service.
        """
        failed: list[Mapping[str, Any]] = []
        faults, refusals = [], 0
        for sentinel in self._order:
            try:
                reply = await query(sentinel)
            except ResponseError as error:
                refusals += 1
                is_server = "unknown command" in str(error)
                fault = "is a Redis server, no Sentinel: use redis:// for it" if is_server else f"refuses: {error}"
            except AuthenticationError as error:
                refusals += 1
                fault = f"refuses: {error}"
            except (RedisError, OSError) as error:
                fault = f"does not answer: {error}"
            else:
                if reply is not None:
                    # its answer puts it before no other: it may be the one that has not heard of the new primary
                    self._order = [*(one for one in self._order if one not in failed), *failed]
                    self._is_known = True
                    return self._address(*reply)
                refusals += 1
                fault = "does not know it"
            failed.append(sentinel)
            faults.append(f"{sentinel['host']}:{sentinel['port']} {fault}")
        line = f"service {self.name!r}: no Sentinel names its primary: {'; '.join(faults)}"
        if refusals == len(faults) and not self._is_known:
            raise InvalidInput(line)
        raise ConnectionError(line)

    def hear(self, sentinel: Mapping[str, Any], message: Any) -> list[Any]:
        """Take a message of a Sentinel. Returns the connections to cut."""
        if not isinstance(message, list) or message[0] != b"message":
            return []
        words = message[2].decode(errors="replace").split()
        if message[1] == b"+switch-master" and words[:1] == [self.name]:
            primary = self._address(*words[3:5])
        elif message[1] == b"+promoted-slave" and words[5:6] == [self.name]:
            primary = self._address(*words[2:4])
        else:
            return []
        self._order = [sentinel, *(one for one in self._order if one is not sentinel)]
        self.switches += 1
        open_ones = [reference() for reference in self.connections.valuerefs()]
        return [one for one in open_ones if one is not None and (one.host, one.port) != primary]

    def _address(self, host: bytes | str, port: bytes | str) -> Place:
        return self._host or (host.decode() if isinstance(host, bytes) else host), int(port)


def check_switches(service: Service, switches: int) -> None:
    """Raise `ConnectionError` if the primary has changed since: the watcher has not seen the new socket."""
    if service.switches != switches:
        raise ConnectionError(f"service {service.name!r}: the primary has changed")


def check_role(hello: Any, connection: Any) -> None:
    """Raise `ConnectionError` if the reply to a HELLO is that of a replica. Every user may send HELLO."""
    said = list(hello.values() if isinstance(hello, dict) else hello)
    if b"replica" in said or "replica" in said:
        raise ConnectionError(f"{connection.host}:{connection.port} is not the primary yet, or no longer")


class ThreadService(Service):
    """A service for threads."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.watcher = Watcher(self)

    def open(self, sentinel: Mapping[str, Any]) -> Any:
        """A connection to a Sentinel."""
        settings = {"retry": Retry(NoBackoff(), 0), **sentinel}
        connection: Any = (SSLConnection if settings.pop("has_tls") else Connection)(**settings)
        connection.connect()
        return connection

    def query(self, sentinel: Mapping[str, Any], question: str = "GET-MASTER-ADDR-BY-NAME") -> Any:
        """Ask one Sentinel about the service, as a rule for the primary."""
        connection = self.open(sentinel)
        try:
            connection.send_command("SENTINEL", question, self.name)
            return connection.read_response()
        finally:
            connection.disconnect()

    def survey(self) -> tuple[Any, Any, Any]:
        """What the first Sentinel that answers says of the primary, of the replicas, and of the other Sentinels."""
        for sentinel in self._order:
            with suppress(RedisError, OSError):
                return tuple(self.query(sentinel, of) for of in ("MASTER", "REPLICAS", "SENTINELS"))
        raise ConnectionError(f"service {self.name!r}: no Sentinel answers")

    def close(self) -> None:
        """End the watcher."""
        self.watcher.close()


@coroutine
def _as_step(sentinel: Mapping[str, Any]) -> Generator[Mapping[str, Any], Any, Any]:
    """Let `drive` perform the query."""
    return (yield sentinel)


class PrimaryConnection(Connection):
    """A connection to the primary of a service."""

    def __init__(self, *, service: ThreadService, **settings: Any) -> None:
        super().__init__(**settings)  # type: ignore[no-untyped-call]  # of redis-py
        self._service = service
        self._socket: socket.socket | None = None
        # redis-py has no other place, in all its versions, whose error closes the connection
        own: Any = self.redis_connect_func
        greet: Any = _greet
        self.greet, self.redis_connect_func = own or type(self).on_connect, greet

    def cut(self) -> None:
        """Shut the socket down. Any thread may call this; a call that waits for its reply has lost it."""
        if self._socket is not None:
            with suppress(OSError):  # it is closed already
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)  # below TLS

    def _connect(self) -> Any:
        service = self._service
        service.watcher.start()
        switches = service.switches
        self.host, self.port = drive(service.ask(_as_step), service.query)
        service.connections[id(self)] = self
        self._socket = sock = super()._connect()  # type: ignore[no-untyped-call]  # of redis-py
        try:
            check_switches(service, switches)  # after `_socket` is set, so either side sees the other
        except ConnectionError:
            sock.close()
            raise
        return sock


class TLSPrimaryConnection(PrimaryConnection, SSLConnection):
    """The same with TLS."""


def _greet(connection: Any) -> None:
    connection.greet(connection)
    with suppress(ResponseError):
        connection.send_command("HELLO")
        check_role(connection.read_response(), connection)


# Pools: of addresses, and of clients of redis-py

#: The service, and the two classes of connections, of threads and of asyncio.
Kinds = tuple[type[Service], Any, Any]
THREADS: Kinds = (ThreadService, PrimaryConnection, TLSPrimaryConnection)


def service_at(address: Address, settings: Mapping[str, Any], kind: type[S]) -> S:
    """The service that an address names. Connections to its Sentinels have these settings."""
    own = {"username": address.sentinel_user, **settings}
    return kind(str(address.service), [_sentinel(*place, address.has_tls, own) for place in address.places])


def pool_of_service(pool: Any, address: Address, kinds: Kinds = THREADS) -> Any:
    """A pool whose connections ask the Sentinels at an address, with the settings of a pool for one server."""
    settings = pool.connection_kwargs
    shared = {name: value for name, value in settings.items() if name.startswith("ssl_")}
    del settings["host"], settings["port"]
    settings["service"] = service_at(address, {"password": address.sentinel_password, **shared}, kinds[0])
    pool.connection_class = kinds[2 if address.has_tls else 1]
    return pool


def taken_over(client: T, kinds: Kinds = THREADS) -> T:
    """See `own_client`. The one for a client that asks Sentinel in redis-py's way has its Sentinels as well."""
    pool: Any = getattr(client, "connection_pool", None)
    if not isinstance(pool, _SENTINEL_POOLS):
        is_own = pool is None or type(pool) is Pool
        return client if is_own else cast("T", own_client(client))
    if not pool.is_master:
        raise InvalidInput("client: slave_for() names replicas, which take no calls: use master_for()")
    manager = pool.sentinel_manager
    given = []
    for sentinel in manager.sentinels:
        theirs = sentinel.connection_pool
        own = {name: theirs.connection_kwargs[name] for name in _KEPT & theirs.connection_kwargs.keys()}
        own |= {name: value for name, value in theirs.connection_kwargs.items() if name.startswith("ssl_")}
        host, port = theirs.connection_kwargs["host"], int(theirs.connection_kwargs["port"])
        given.append(_sentinel(host, port, issubclass(theirs.connection_class, SSL), own))
    service = kinds[0](pool.service_name, given, getattr(manager, "_force_master_ip", None))
    kind = kinds[2 if issubclass(pool.connection_class, SSL) else 1]
    return cast("T", own_client(client, kind, _DROPPED, service=service))


#: Settings of a client of a Sentinel that count, and those of a client for the primary that do not.
_KEPT = {"username", "password", "credential_provider", "socket_timeout", "socket_connect_timeout", "client_name"}
_DROPPED = {"connection_pool", "host", "port"}


def _sentinel(host: str, port: int, has_tls: bool, settings: Mapping[str, Any]) -> dict[str, Any]:
    times = {
        name: _ANSWER if settings.get(name) is None else settings[name]
        for name in ("socket_timeout", "socket_connect_timeout")
    }
    # RESP2 has no push messages beside those that the watcher waits for
    return {**settings, **times, "host": host, "port": port, "protocol": 2, "has_tls": has_tls}


def is_service(client: Any) -> bool:
    """Return True for a client that asks Sentinels."""
    return "service" in getattr(getattr(client, "connection_pool", None), "connection_kwargs", ())
