"""The worker's end of the pipes: child processes as hosts of handlers, and this process itself (`--processes 0`).

Frames are arrays as msgpack, one after the other, in both directions.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from typing import TYPE_CHECKING, Any

from rqttl.delivery import config_of, parcel
from rqttl.worker import commands, handlers
from rqttl.worker.child import CHUNK, Frame, FrameReader, pack
from rqttl.worker.handlers import Handler
from rqttl.worker.in_flight import Host, InFlight, Task
from rqttl.worker.outcomes import Outcome
from rqttl.worker.pool import Reports, pool_for

if TYPE_CHECKING:
    from rqttl.broker import Broker
    from rqttl.options import QueueOptions
    from rqttl.worker.settings import Settings

logger = logging.getLogger("rqttl.worker")

#: Bytes that wait for a child above which it gets no further message.
BUFFERED = 1 << 22
#: The number of versions of options whose text the worker remembers. Workers for months meet many queues.
KNOWN = 1000
#: Seconds that a process has to end after the end of its socket, and after the order to end when it has no message.
LAST, QUIT_GRACE = 2.0, 5.0
#: Seconds that handlers of this process have to end after `kill`. Threads cannot be killed.
LAST_OF_THREADS = 0.2


class ChildProcess(Host):
    """A child of the worker. The main loop of the worker reads its frames; any thread may send it messages.

    `wants_write` is called when bytes wait for room in the socket.
    """

    def __init__(
        self, in_flight: InFlight, number: int, setup: Mapping[str, Any], wants_write: Callable[[], None]
    ) -> None:
        super().__init__()
        self.sock, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "rqttl.worker.child", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the worker, which ends its children
            )
        self.sock.setblocking(False)  # of the standard library
        self.number = number
        #: The reason for which the handler could not be loaded, and the traceback of the user's code.
        self.broken, self.trace = "", ""
        #: The cause for which another child takes its place, and the time of the order to end.
        self.retiring = ""
        self.quit_at: float | None = None
        #: The number of handlers that have ended.
        self.handled = 0
        self.left = setup["max_messages"]
        self._in_flight = in_flight
        self._wants_write = wants_write
        self._runs_commands = bool(setup["exec"])
        self._known: dict[int, tuple[QueueOptions, str]] = {}
        self._reader = FrameReader()
        self._out = bytearray()
        self._send(pack(Frame.SETUP, dict(setup)))

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    @property
    def is_ready(self) -> bool:
        """True after the child has loaded its handler."""
        return self.slots > 0

    @property
    def takes(self) -> bool:
        """See `Host`."""
        return self.is_ready and not self.retiring and self.quit_at is None and len(self._out) < BUFFERED

    @property
    def has_output(self) -> bool:
        """True if bytes wait for room in the socket."""
        return bool(self._out)

    # To the child

    def send(self, tasks: list[Task]) -> None:
        """See `Host`."""
        packed = []
        for options, group in groupby(tasks, lambda task: config_of(task.delivery).options):
            messages = [(task.key, parcel(task.delivery)) for task in group]
            packed.append(pack(Frame.RUN, options.queue, self._text_of(options), messages))
        self._send(b"".join(packed))

    def _text_of(self, options: QueueOptions) -> str:
        """Return the JSON of options. All messages of one version of the options share the object."""
        known = self._known.get(id(options))
        if known is None:
            if len(self._known) >= KNOWN:
                self._known.clear()
            known = self._known[id(options)] = options, options.as_json()
        return known[1]

    def stop(self) -> None:
        """See `Host`. The child ends when its handlers have ended."""
        if self.quit_at is None:
            self.quit_at = time.monotonic()
            self._send(pack(Frame.STOP))

    def cancel(self, key: int) -> None:
        """See `Host`."""
        self._send(pack(Frame.CANCEL, key))

    def signal(self, number: int) -> None:
        """Send a signal to the child and to all processes of its group."""
        with suppress(ProcessLookupError, PermissionError):  # the group has ended
            os.killpg(self.pid, number)

    def flush(self) -> None:
        """Send bytes that wait, as far as there is room."""
        with self._in_flight.lock:
            while self._out and (sent := self._send_now(self._out[:CHUNK])):
                del self._out[:sent]

    def _send_now(self, data: bytes | bytearray) -> int:
        """Send bytes, as far as there is room. Returns the number of bytes that need no further try."""
        try:
            return self.sock.send(data)
        except BlockingIOError:
            return 0
        except OSError:
            return len(data)  # the end of the socket follows

    def _send(self, data: bytes) -> None:
        with self._in_flight.lock:
            if not self._out:
                data = data[self._send_now(data) :]
            if data:
                self._out += data
                self._wants_write()

    # From the child

    def receive(self) -> bool:
        """Read what the child has sent, and report it. Returns False at the end of its socket."""
        try:
            data = self.sock.recv(CHUNK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        if not data:
            return False
        done: list[tuple[int, float]] = []
        for kind, *content in self._reader.feed(data):
            if kind == Frame.DONE:
                done.append((content[0], content[1]))
                continue
            self._report(done)
            done = []
            self._take(kind, content)
        self._report(done)
        return True

    def _report(self, done: list[tuple[int, float]]) -> None:
        if done:
            self.handled += len(done)
            self._in_flight.done(self, done)

    def _take(self, kind: int, content: Sequence[Any]) -> None:
        if kind == Frame.FAILED:
            key, outcome, seconds = content
            self.handled += 1
            self._in_flight.ended(self, key, None if outcome is None else Outcome(*outcome), seconds)
        elif kind == Frame.SETTLED:
            self._in_flight.settled(self, content[0], Outcome(*content[1]))
        elif kind == Frame.RENEW:
            self._in_flight.renewed(self, *content)
        elif kind == Frame.UNSEEN:
            self._in_flight.unseen(self, content[0])
        elif kind == Frame.READY:
            self.slots, self.cancel_grace = content
        elif kind == Frame.BROKEN:
            self.broken, self.trace = content

    def end(self) -> str:
        """Wait for the end of the process, and end what is left of its group. Returns the way in which it ended."""
        self.sock.close()
        try:
            code = self._process.wait(LAST)
        except subprocess.TimeoutExpired:
            self.signal(signal.SIGKILL)
            code = self._process.wait()
        self.signal(signal.SIGKILL)
        if self._runs_commands:
            commands.kill_session(self.pid)  # commands have groups of their own
        return f"the child process {commands.ending(code)}"


class ThisProcess(Host):
    """The threads or coroutines of the worker itself: for debuggers and tiny machines."""

    def __init__(self, in_flight: InFlight, settings: Settings, broker: Broker) -> None:
        super().__init__()
        self._in_flight = in_flight
        self._handler = handlers.watched(_handler_for(settings), broker.observer)
        self._pool = pool_for(self._handler, settings.threads, settings.asyncio, self._reports())
        self.slots, self.cancel_grace = self._pool.slots, self._pool.cancel_grace
        self._was_killed = self._is_stopping = False
        self._thread = threading.Thread(target=self._pool.run, name="rqttl-handlers", daemon=True)

    def _reports(self) -> Reports:
        flight = self._in_flight
        return Reports(
            lambda key, seconds: flight.done(self, [(key, seconds)]),
            lambda key, outcome, seconds: flight.ended(self, key, outcome, seconds),
            lambda key, outcome: flight.settled(self, key, outcome),
            lambda key, lease: flight.renewed(self, key, lease),
        )

    @property
    def takes(self) -> bool:
        """See `Host`."""
        return not self._is_stopping

    def start(self) -> None:
        """Begin to handle messages."""
        self._thread.start()

    def send(self, tasks: list[Task]) -> None:
        """See `Host`."""
        self._pool.put([(task.key, config_of(task.delivery), parcel(task.delivery)) for task in tasks])

    def stop(self) -> None:
        """See `Host`."""
        if not self._is_stopping:
            self._is_stopping = True
            self._in_flight.unseen(self, self._pool.stop())

    def cancel(self, key: int) -> None:
        """See `Host`."""
        self._pool.cancel(key)

    def kill(self) -> None:
        """End at once what handlers have started outside of this process."""
        self._was_killed = True
        self._handler.kill()

    def close(self) -> None:
        """End the handlers after their messages, and wait for that: as for a child, or for a moment after `kill`."""
        self.stop()
        self._thread.join(LAST_OF_THREADS if self._was_killed else QUIT_GRACE)


def _handler_for(settings: Settings) -> Handler:
    """Load the handler of these settings. Raises `HandlerNotLoaded`."""
    if settings.exec is not None:
        return commands.handler(settings.exec)
    if settings.function is not None:
        return handlers.of_function(settings.function, "call", with_delivery=settings.delivery)
    return handlers.load(settings.call or "", with_delivery=settings.delivery)
