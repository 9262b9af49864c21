"""Connections of a client to an embedded server: one that finds the server dead has it started again.

So running programs need no luck when redis-server and its guard are killed: the next connection of any of them brings
the server back, and a call that was certainly not sent is made again on it (`_redis` decides which calls that are).
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import redis
from redis import exceptions
from redis.connection import UnixDomainSocketConnection

from rqttl.embedded.guard import PING, PONG
from rqttl.errors import EmbeddedUnavailable

#: Seconds after which a server that did not come back counts as a time-out: the call is not made again and again.
SLOW = 5.0


def revive_with(client: redis.Redis, revive: Callable[[], Path]) -> None:
    """Let new connections of a client call `revive` where no server answers. It returns the path of the socket."""

    class Connection(UnixDomainSocketConnection):
        path: str

        def _connect(self) -> Any:
            try:
                connected: socket.socket = super()._connect()  # type: ignore[no-untyped-call]  # redis-py has no types here
                if _answers(connected):
                    return connected
            except TimeoutError:
                raise  # the server is there and hangs
            except OSError:
                pass  # a killed server leaves its socket, one that was stopped leaves nothing
            self.path = os.fspath(_revived(revive))
            return super()._connect()  # type: ignore[no-untyped-call]  # as above

    client.connection_pool.connection_class = Connection


def _answers(connection: socket.socket) -> bool:
    """Tell whether a server answers that has loaded its data. Closes the connection if not."""
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
