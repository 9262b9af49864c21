"""Clients for an event loop, and Sentinel: connections that ask for the primary, and the tasks that watch it."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import redis.asyncio.connection
from redis.asyncio import Connection, ConnectionPool, Redis, RedisCluster, SSLConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError

from rqttl.store import sentinel
from rqttl.store.addresses import Address, Place
from rqttl.store.blocking import keep_alive
from rqttl.store.cluster import Seeds, borrowed
from rqttl.store.connections import checked_client, pool_for
from rqttl.store.sentinel import Service, check_role, check_switches, pool_of_service
from rqttl.store.watcher import AGAIN, CHANNELS


class AsyncService(Service):
    """A service for one event loop."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._watchers: list[asyncio.Task[None]] = []
        self._closed = False

    async def primary(self) -> Place:
        """The address of the primary. The first call starts the watchers, a task for each Sentinel."""
        if not self._watchers and not self._closed:
            loop = asyncio.get_running_loop()
            self._watchers = [loop.create_task(self._watch(one)) for one in self.sentinels]
        return await self.ask(self._query)

    async def close(self) -> None:
        """End the watchers."""
        self._closed = True
        watchers, self._watchers = self._watchers, []
        for watcher in watchers:
            watcher.cancel()
        await asyncio.gather(*watchers, return_exceptions=True)

    async def _query(self, one: Mapping[str, Any]) -> Any:
        connection = _plain(one)
        try:
            await connection.connect()
            await connection.send_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.name)
            return await connection.read_response()
        finally:
            await connection.disconnect()

    async def _watch(self, one: Mapping[str, Any]) -> None:
        # `wait_for` of Python before 3.12 can swallow a cancellation: with it alone, `close` would wait for ever
        while not self._closed:
            connection = _plain(one)
            try:
                await connection.connect()
                await connection.send_command("SUBSCRIBE", *CHANNELS)
                connection.socket_timeout = None
                keep_alive(connection._writer.get_extra_info("socket"))  # noqa: SLF001  # redis-py has no other way
                while not self._closed:
                    for old in self.hear(one, await connection.read_response()):
                        old.cut()
            except (RedisError, OSError):
                await asyncio.sleep(AGAIN)
            finally:
                await connection.disconnect()


def _plain(one: Mapping[str, Any]) -> Any:
    settings: dict[str, Any] = {"retry": Retry(NoBackoff(), 0), **one}
    return (_BriefTLSConnection if settings.pop("has_tls") else _BriefConnection)(**settings)


class _BriefConnection(Connection):
    """A connection that is closed at once: with TLS it would stay open until the Sentinel ends TLS, too."""

    async def disconnect(self, nowait: bool = False, **options: Any) -> None:  # type: ignore[override]  # redis-py has more
        del nowait
        if self._writer is not None:
            self._writer.transport.abort()
        await super().disconnect(nowait=True, **options)


class _BriefTLSConnection(_BriefConnection, SSLConnection):
    """The same with TLS."""


class AsyncPrimaryConnection(Connection):
    """See `PrimaryConnection`."""

    def __init__(self, *, service: AsyncService, **settings: Any) -> None:
        super().__init__(**settings)
        self._service = service
        own: Any = self.redis_connect_func
        self.greet, self.redis_connect_func = own or type(self).on_connect, _greet

    def cut(self) -> None:
        """Shut the socket down: a call that waits for its reply has lost it."""
        writer: Any = self._writer
        if writer is not None and not writer.is_closing():  # else its number may be that of another socket
            # no socket of an event loop can be shut down, and uvloop raises errors after `abort`
            with suppress(OSError), socket.socket(fileno=os.dup(writer.get_extra_info("socket").fileno())) as sock:
                sock.shutdown(socket.SHUT_RDWR)

    async def _connect(self) -> None:
        service = self._service
        switches = service.switches
        self.host, self.port = await service.primary()
        service.connections[id(self)] = self
        await super()._connect()  # type: ignore[no-untyped-call]  # of redis-py
        check_switches(service, switches)


class AsyncTLSPrimaryConnection(AsyncPrimaryConnection, SSLConnection):
    """The same with TLS."""


async def _greet(connection: Any) -> None:
    greeted = connection.greet(connection)
    if asyncio.iscoroutine(greeted):
        await greeted
    with suppress(ResponseError):
        await connection.send_command("HELLO")
        check_role(await connection.read_response(), connection)


KINDS: sentinel.Kinds = (AsyncService, AsyncPrimaryConnection, AsyncTLSPrimaryConnection)


def taken_over(client: Redis | RedisCluster | Seeds | None) -> Redis | Seeds:
    """See `rqttl.store.cluster.taken_over`. Raises `InvalidInput`."""
    if isinstance(client, Seeds | RedisCluster):
        return client if isinstance(client, Seeds) else borrowed(client)
    return checked_client(sentinel.taken_over(client, KINDS), Redis)


def open_client(address: Address) -> Redis | Seeds:
    """See `rqttl.store.cluster.open_client`. Raises `InvalidInput`."""
    pool = pool_for(address, redis.asyncio.connection, ConnectionPool, retry=Retry(NoBackoff(), 0))
    if address.is_cluster:
        return Seeds(pool, address.places)
    return Redis(connection_pool=pool_of_service(pool, address, KINDS) if address.service else pool)
