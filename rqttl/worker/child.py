"""The child's end of a pipe: `python -m rqttl.worker.child SOCKET` runs handlers for a worker.

The argument is the file descriptor of a socket for frames in both directions. The child never talks to Redis. At the
end of its socket the worker is dead. Then its messages are no longer leased to anybody, so the child ends at once with
all processes of its group.
"""

from __future__ import annotations

import enum
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import msgpack

from rqttl import events as hook
from rqttl.options import QueueOptions
from rqttl.protocol.commands import QueueConfig
from rqttl.protocol.keys import Keyspace
from rqttl.worker import commands, handlers
from rqttl.worker.handlers import Handler, HandlerNotLoaded
from rqttl.worker.pool import Reports, pool_for

CHUNK = 1 << 18
_LARGEST = 2**31 - 1


class Frame(enum.IntEnum):
    """The kinds of frames, with their contents."""

    # From the worker to a child
    SETUP = 0  #: the first frame: the settings of the child, as a mapping
    RUN = 1  #: the queue, the JSON of its options, and the key and the parcel of each message
    CANCEL = 2  #: cancel the coroutine of a key, or end its command
    STOP = 3  #: begin nothing more, give back what waits, and end when the handlers have ended
    # From a child to the worker
    READY = 10  #: slots, and the seconds in which it can end one handler alone or none
    BROKEN = 11  #: the handler cannot be loaded: one line for people, and a traceback
    DONE = 12  #: a handler has ended well: its key, and the seconds that it took
    FAILED = 13  #: a handler has ended in another way: its key, the outcome or none if it has settled, and the seconds
    SETTLED = 14  #: a handler has settled its message and goes on: its key and the outcome
    RENEW = 15  #: a handler renews its lease: its key and the length in ms
    UNSEEN = 16  #: after STOP: the keys of messages that no handler has begun


def pack(kind: Frame, *content: Any) -> bytes:
    """Encode a frame."""
    frame = (int(kind), *content)
    packed: bytes = msgpack.packb(frame, use_bin_type=True, unicode_errors="backslashreplace")  # errors of users
    return packed


class FrameReader:
    """Cuts received bytes into frames."""

    def __init__(self) -> None:
        self._unpacker = msgpack.Unpacker(raw=False, use_list=False, max_buffer_size=_LARGEST)

    def feed(self, data: bytes) -> Iterator[tuple[Any, ...]]:
        """Add received bytes. Returns the frames that are complete now."""
        self._unpacker.feed(data)
        yield from self._unpacker


class Child:
    """Reads frames in a thread of its own, so that it answers while handlers work."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._lock = threading.Lock()
        self._frames = self._received()
        if hasattr(os, "register_at_fork"):  # the worker sees the death of this child by the end of its socket
            os.register_at_fork(after_in_child=sock.close)

    def run(self) -> None:
        """Handle messages until the worker ends this child."""
        _, setup = next(self._frames)
        try:
            handler = handlers.watched(_load(setup), hook.observer_of_new(None))
            self._pool = pool_for(handler, setup["threads"], setup["asyncio"], self._reports())
        except HandlerNotLoaded as error:
            self._send(Frame.BROKEN, str(error), error.trace)
            return
        self._send(Frame.READY, self._pool.slots, self._pool.cancel_grace)
        threading.Thread(target=self._read, daemon=True).start()
        self._pool.run()

    def _reports(self) -> Reports:
        return Reports(
            lambda key, seconds: self._send(Frame.DONE, key, seconds),
            lambda key, outcome, seconds: self._send(Frame.FAILED, key, outcome, seconds),
            lambda key, outcome: self._send(Frame.SETTLED, key, outcome),
            lambda key, lease: self._send(Frame.RENEW, key, lease),
        )

    def _send(self, kind: Frame, *content: Any) -> None:
        data = pack(kind, *content)
        with self._lock:
            try:
                self._sock.sendall(data)
            except OSError:
                _end_at_once()

    def _received(self) -> Iterator[tuple[Any, ...]]:
        reader = FrameReader()
        while True:
            try:
                data = self._sock.recv(CHUNK)
            except OSError:
                data = b""
            if not data:
                _end_at_once()
            yield from reader.feed(data)

    def _read(self) -> None:
        pool = self._pool
        for kind, *content in self._frames:
            if kind == Frame.RUN:
                queue, text, messages = content
                config = _config(queue, text)
                pool.put([(key, config, parcel) for key, parcel in messages])
            elif kind == Frame.CANCEL:
                pool.cancel(content[0])
            elif kind == Frame.STOP:
                self._send(Frame.UNSEEN, pool.stop())


@lru_cache(1000)
def _config(queue: str, text: str) -> QueueConfig:
    options = QueueOptions.from_json(queue, text)
    return QueueConfig(Keyspace(), queue, b"", options, options)


def _load(setup: Mapping[str, Any]) -> Handler:
    """Load the handler of a setup. Raises `HandlerNotLoaded`."""
    sys.path.extend(place for place in setup["path"] if place not in sys.path)
    if setup["exec"]:
        return commands.handler(setup["exec"])
    return handlers.load(setup["call"], with_delivery=setup["delivery"])


def _end_at_once() -> None:
    """End this process, the commands that it runs, and all others of its group."""
    commands.end_all()
    os.killpg(0, signal.SIGKILL)


def main() -> None:
    """Run a child on the socket whose number is the argument."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the worker ends a handler that takes too long
    sock = socket.socket(fileno=int(sys.argv[1]))
    sock.setblocking(True)
    os.set_inheritable(sock.fileno(), False)  # commands of handlers must not hold the socket
    Child(sock).run()


if __name__ == "__main__":
    main()
