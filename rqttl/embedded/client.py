"""Connections of a client to an embedded server. A connection to a dead server starts the server again.

So running programs survive a kill of redis-server and its guard: the next connection of any program starts the server,
and `rqttl.store` repeats each call that was certainly not sent.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import redis
import redis.asyncio
from redis import exceptions
from redis.asyncio.connection import UnixDomainSocketConnection as AsyncUnixConnection
from redis.connection import UnixDomainSocketConnection

from rqttl.embedded.guard import PING, PONG
from rqttl.errors import EmbeddedUnavailable

#: Seconds to wait for the server. Later the call ends with a time-out instead of further attempts.
SLOW = 5.0


def revive_with(client: redis.Redis, revive: Callable[[], Path]) -> None:
    """Make new connections of a client call `revive` if no server answers. `revive` returns the path of the socket."""

    class Connection(UnixDomainSocketConnection):
        path: str

        def _connect(self) -> Any:
            try:
                connected: socket.socket = super()._connect()  # type: ignore[no-untyped-call]  # redis-py has no types here
                if _answers(connected):
                    return connected
            except TimeoutError:
                raise  # the server is alive and hangs
            except OSError:
                pass  # a killed server leaves its socket, a stopped server removes it
            self.path = os.fspath(_revived(revive))
            return super()._connect()  # type: ignore[no-untyped-call]  # as above

    client.connection_pool.connection_class = Connection


def revive_async_with(client: redis.asyncio.Redis, revive: Callable[[], Path]) -> None:
    """Do for an asyncio client as `revive_with` does. A thread looks for the server and starts it."""

    class Connection(AsyncUnixConnection):
        path: str

        async def _connect(self) -> None:
            self.path = await asyncio.get_running_loop().run_in_executor(None, _reachable, self.path, revive)
            await super()._connect()  # type: ignore[no-untyped-call]  # redis-py has no types here

    client.connection_pool.connection_class = Connection


def _reachable(path: str, revive: Callable[[], Path]) -> str:
    """Return the path of the socket of a server that answers."""
    try:
        with socket.socket(socket.AF_UNIX) as connected:
            connected.settimeout(SLOW)
            connected.connect(path)
            if _answers(connected):
                return path
    except TimeoutError:
        return path  # the server is alive and hangs
    except OSError:
        pass  # as in `revive_with`
    return os.fspath(_revived(revive))


def _answers(connection: socket.socket) -> bool:
    """Tell whether a server answers and has loaded its data. Otherwise the connection is closed."""
    ready = False
    try:
        connection.sendall(PING)
        ready = connection.recv(len(PONG) + 2) == PONG + b"\r\n"
        return ready
    finally:
        if not ready:
            connection.close()


def _revived(revive: Callable[[], Path]) -> Path:
    started = time.monotonic()
    try:
        return revive()
    except EmbeddedUnavailable as error:
        slow = time.monotonic() - started > SLOW
        raise (exceptions.TimeoutError if slow else exceptions.ConnectionError)(str(error)) from error
