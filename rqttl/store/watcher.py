"""The watcher: a thread that hears each Sentinel tell of a new primary, and cuts the connections to the old one.

Without it a call to a server that is paused would wait for its time-out, and a server that goes on after a pause would
confirm messages that are lost when it learns that it is a replica.
"""

from __future__ import annotations

import os
import selectors
import socket
import threading
import weakref
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from redis.exceptions import RedisError

from rqttl.runtime.interrupt import Interrupt
from rqttl.store.blocking import keep_alive

#: What Sentinels tell: a new primary; and, earlier and only from the one that leads, a promoted replica.
CHANNELS = ("+switch-master", "+promoted-slave")
#: Seconds between attempts to reach a Sentinel.
AGAIN = 1.0


class Watcher:
    """The watcher of a service: a thread in each process that connects. It ends when its service is forgotten, too."""

    def __init__(self, service: Any) -> None:
        self._service = weakref.ref(service, lambda _: self.close())
        self._wakers: dict[int, socket.socket] = {}  # by process: a forked one has no thread
        self._closed = Interrupt()

    def start(self) -> None:
        """Start the thread, unless it runs."""
        process = os.getpid()
        if self._closed.asked() or process in self._wakers:
            return
        waker, heard = socket.socketpair()
        if self._wakers.setdefault(process, waker) is not waker:  # one step: no lock, which a fork could copy
            waker.close()
            heard.close()
            return
        with suppress(RuntimeError):  # the interpreter ends
            threading.Thread(target=self._run, args=[waker, heard], name="rqttl-sentinel", daemon=True).start()
        if self._closed.asked():  # meanwhile
            self.close()

    def close(self) -> None:
        """End the thread of this process. Any thread may call this."""
        self._closed.ask()
        waker = self._wakers.pop(os.getpid(), None)
        if waker is not None:
            with suppress(OSError):
                waker.shutdown(socket.SHUT_WR)

    def _run(self, waker: socket.socket, heard: socket.socket) -> None:
        with waker, heard, selectors.DefaultSelector() as selector:
            selector.register(heard, selectors.EVENT_READ)
            service = self._service()
            missing = [] if service is None else list(service.sentinels)
            del service
            while True:
                missing = [sentinel for sentinel in missing if not self._subscribe(sentinel, selector)]
                ready = [key for key, _ in selector.select(AGAIN if missing else None)]
                if any(key.data is None for key in ready):
                    break
                for key in ready:
                    sentinel, connection = key.data
                    if not self._listen(sentinel, connection):
                        selector.unregister(key.fileobj)
                        connection.disconnect()
                        missing.append(sentinel)
            for key in list(selector.get_map().values()):
                if key.data is not None:
                    key.data[1].disconnect()

    def _subscribe(self, sentinel: Mapping[str, Any], selector: selectors.BaseSelector) -> bool:
        service = self._service()
        try:
            if service is not None:
                connection = service.open(sentinel)
                connection.send_command("SUBSCRIBE", *CHANNELS)
                sock = connection._sock  # noqa: SLF001  # redis-py shows it nowhere
                keep_alive(sock)
                selector.register(sock, selectors.EVENT_READ, (sentinel, connection))
        except (RedisError, OSError):
            return False
        return True

    def _listen(self, sentinel: Mapping[str, Any], connection: Any) -> bool:
        """Take all messages that have come. Returns False if the Sentinel is away."""
        service = self._service()
        try:
            while service is not None and connection.can_read(0):
                for one in service.hear(sentinel, connection.read_response()):
                    one.cut()
        except (RedisError, OSError):
            return False
        return True
