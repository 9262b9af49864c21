"""The child's end of a pipe: `python -m rqttl.worker.child SOCKET` runs handlers for a worker.

The argument is the file descriptor of a socket for frames in both directions. The child never talks to Redis. At the
end of its socket the worker is dead. Then its messages are no longer leased to anybody, so the child ends at once with
all processes of its group. With `--processes 0` a thread of the worker is its only child.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from rqttl import events as hook
from rqttl.events import Observer
from rqttl.options import QueueOptions
from rqttl.protocol.commands import QueueConfig
from rqttl.protocol.keys import Keyspace
from rqttl.worker import commands, handlers
from rqttl.worker.handlers import Handler, HandlerNotLoaded
from rqttl.worker.pool import CHUNK, CoroutinePool, Frame, ThreadPool, pack, pool_for, unpacker


class Child:
    """Reads frames in a thread of its own, so that it answers while handlers work. `end` is for the end of the socket.

    `function` is the handler of a child that is a thread of the worker.
    """

    def __init__(
        self,
        sock: socket.socket,
        observer: Callable[[], Observer | None],
        end: Callable[[], None] = lambda: None,
        function: Any = None,
    ) -> None:
        self._sock, self._observer, self._end, self._function = sock, observer, end, function
        self._lock, self._pid = threading.Lock(), os.getpid()
        self._frames = self._received()
        self._pool: ThreadPool | CoroutinePool | None = None

    def run(self) -> None:
        """Handle messages until the worker ends this child."""
        _, setup = next(self._frames)
        try:
            loaded = self._load(setup)
            handler = handlers.watched(loaded, self._observer())  # the module of the handler may have configured it
            self._pool = pool = pool_for(handler, setup["threads"], setup["asyncio"], self._send)
        except HandlerNotLoaded as error:
            self._send(Frame.BROKEN, str(error), error.trace)
            return
        self._send(Frame.READY, pool.slots, pool.cancel_grace)
        threading.Thread(target=self._read, args=[pool], daemon=True).start()
        pool.run()

    def _load(self, setup: Mapping[str, Any]) -> Handler:
        sys.path.extend(place for place in setup["path"] if place not in sys.path)
        if setup["exec"]:
            return commands.handler(setup["exec"])
        if self._function is not None:
            return handlers.of_function(self._function, "call", with_delivery=setup["delivery"])
        return handlers.load(setup["call"], with_delivery=setup["delivery"])

    def _send(self, kind: Frame, *content: Any) -> None:
        if os.getpid() != self._pid:  # a process that a handler has forked returns: it must not report the end
            os._exit(1)
        data = pack(kind, *content)
        with self._lock:
            try:
                self._sock.sendall(data)
            except OSError:
                self._end()

    def _received(self) -> Iterator[tuple[Any, ...]]:
        frames = unpacker()
        while True:
            try:
                data = self._sock.recv(CHUNK)
            except OSError:
                data = b""
            if not data:
                self._end()
                return
            frames.feed(data)
            yield from frames

    def _read(self, pool: ThreadPool | CoroutinePool) -> None:
        for kind, *content in self._frames:
            if kind == Frame.RUN:
                queue, text, messages = content
                config = _config(queue, text)
                pool.put([(key, config, fields) for key, fields in messages])
            elif kind == Frame.CANCEL:
                pool.cancel(content[0])
            elif kind == Frame.STOP:
                self._send(Frame.UNSEEN, pool.stop())
        pool.stop()  # a thread of the worker goes on after the end of its socket


@lru_cache(1000)
def _config(queue: str, text: str) -> QueueConfig:
    options = QueueOptions.from_json(queue, text)
    return QueueConfig(Keyspace(), queue, b"", options, options)


def main() -> None:
    """Run a child on the socket whose number is the argument."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the worker ends a handler that takes too long
    sock = socket.socket(fileno=int(sys.argv[1]))
    sock.setblocking(True)
    os.set_inheritable(sock.fileno(), False)  # commands of handlers must not hold the socket
    if hasattr(os, "register_at_fork"):  # the worker sees the death of this child by the end of its socket
        os.register_at_fork(after_in_child=sock.close)

    def end() -> None:
        """End this process, the commands that it runs, and all others of its group."""
        commands.end_all()
        os.killpg(0, signal.SIGKILL)

    Child(sock, lambda: hook.observer_of_new(None), end).run()


if __name__ == "__main__":
    main()
