"""Both ends of the pipes between a worker and its children.

A child is a process that runs `main`: it runs handlers, and never talks to Redis. Its argument is the file descriptor
of its end. At the end of its socket the worker is dead. Then its messages are no longer leased to anybody,
so the child ends at once with all processes of its group. With `--processes 0` the only child is a thread.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from rqttl import events
from rqttl.delivery import Delivery
from rqttl.events import Observer
from rqttl.options import QueueOptions
from rqttl.protocol.commands import QueueConfig
from rqttl.protocol.keys import Keyspace
from rqttl.worker import commands, pool
from rqttl.worker.pool import CHUNK, CoroutinePool, Frame, Handler, ThreadPool, pack, unpacker

if TYPE_CHECKING:
    from rqttl.worker.queue_source import QueueSource

#: What a child runs. The working folder comes last until it has imported itself: users have a `queue.py` there.
START = """import sys
sys.path.append(sys.argv[2])
sys.path.sort(key=bool, reverse=True)
from rqttl.worker.child import main
main()"""
#: Seconds that a process has to end after the end of its socket.
LAST = 2.0
#: Seconds below which handlers are so fast that one more message waits in the pipe of each slot.
BRISK = 0.05


@dataclass(slots=True, eq=False)
class Task:
    """A message that is out: its child, and the time at which its handler began it, as far as the worker knows."""

    source: QueueSource
    delivery: Delivery
    key: int = field(init=False)
    child: ChildProcess = field(init=False)
    begun_at: float | None = None
    #: The number of steps that the worker has taken to end the handler, because it takes too long.
    steps: int = 0
    #: True after the handler has settled the message itself.
    settled: bool = False


class ChildProcess:
    """A child of the worker. The main loop of the worker reads its frames; any thread may send it messages.

    A child begins its messages in their order, and reports the end of one before it begins another. So the oldest
    messages without a report, one for each slot, are those that run. `lock` guards its messages and its output.
    """

    #: The number of the process; 0 for a thread.
    pid = 0

    def __init__(self, lock: threading.RLock, setup: Mapping[str, Any], wants_write: Callable[[], None]) -> None:
        self._lock, self._wants_write, self._runs_commands = lock, wants_write, bool(setup["exec"])
        self.sock, theirs = socket.socketpair()
        self._begin_child(theirs)
        self.sock.setblocking(False)  # of the standard library
        #: The number of handlers that can work at a time; 0 until the child has loaded its handler.
        self.slots = 0
        #: The seconds in which the child can end one handler alone; `None` if it cannot.
        self.cancel_grace: float | None = None
        #: The reason for which the handler could not be loaded, and the traceback of the user's code.
        self.broken, self.trace = "", ""
        #: The limit that the child has reached, and the time of the order to end.
        self.retiring = ""
        self.quit_at: float | None = None
        #: The number of handlers that have ended, and of further messages that the child may get; `None` for any.
        self.handled = 0
        self.left: int | None = setup["max_messages"]
        self.running: dict[int, Task] = {}
        self.waiting: dict[int, Task] = {}
        self._newest_key = 0
        self._frames = unpacker()
        self.output = bytearray()
        self._send(pack(Frame.SETUP, dict(setup)))

    def _begin_child(self, theirs: socket.socket) -> None:
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", START, str(theirs.fileno()), str(Path(__file__).parents[2])],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the worker, which ends its children
            )
            self.pid = self._process.pid
            if hasattr(fcntl, "F_SETSIG"):  # a child that was stopped goes on at a frame, and at the end of its worker
                fcntl.fcntl(theirs, fcntl.F_SETOWN, self.pid)
                fcntl.fcntl(theirs, fcntl.F_SETSIG, signal.SIGCONT)
                fcntl.fcntl(theirs, fcntl.F_SETFL, fcntl.fcntl(theirs, fcntl.F_GETFL) | os.O_ASYNC)

    def room(self, mean: float) -> int:
        """Return the number of messages that the child may get now, if a handler takes `mean` seconds."""
        if not self.slots or self.retiring or self.quit_at is not None:
            return 0
        room = self.slots * (2 if self.is_brisk(mean) else 1) - len(self.running) - len(self.waiting)
        return max(0, room if self.left is None else min(room, self.left))

    def is_brisk(self, mean: float) -> bool:
        """Return True if handlers are fast, and not all slots have had their messages for `BRISK` seconds."""
        if len(self.running) < self.slots:
            return mean < BRISK
        newest = next(reversed(self.running.values())).begun_at
        return mean < BRISK and time.monotonic() - (newest or 0.0) < BRISK

    def take(self, tasks: list[Task]) -> None:
        """Give each message a key, and send them."""
        for task in tasks:
            self._newest_key += 1
            task.key, task.child = self._newest_key, self
            self.waiting[task.key] = task
        if self.left is not None:
            self.left -= len(tasks)
        packed = []
        for options, group in groupby(tasks, lambda task: task.delivery.config.options):
            messages = [(task.key, task.delivery.fields()) for task in group]
            packed.append(pack(Frame.RUN, options.queue, options.as_json(), messages))
        self._send(b"".join(packed))

    def remove(self, key: int) -> Task | None:
        """Remove and return the message of a key; `None` if it has none."""
        return self.running.pop(key, None) or self.waiting.pop(key, None)

    # To the child

    def stop(self) -> None:
        """Let the child begin nothing more, give back what waits, and end when its handlers have ended."""
        if self.quit_at is None:
            self.quit_at = time.monotonic()
            self._send(pack(Frame.STOP))

    def cancel(self, key: int) -> None:
        """End the handler of a message alone, where `cancel_grace` says that this is possible."""
        self._send(pack(Frame.CANCEL, key))

    def signal(self, number: int) -> None:
        """Send a signal to the child and to all processes of its group. A child ignores a SIGTERM of others."""
        if number == signal.SIGTERM:
            self._send(pack(Frame.TERMINATE))
        with suppress(ProcessLookupError, PermissionError):  # the group has ended
            os.killpg(self.pid, number)

    def flush(self) -> None:
        """Send bytes that wait, as far as there is room."""
        with self._lock:
            try:
                while self.output:
                    del self.output[: self.sock.send(self.output[:CHUNK])]
            except BlockingIOError:
                return
            except OSError:
                self.output.clear()  # the end of the socket follows

    def _send(self, data: bytes) -> None:
        with self._lock:
            self.output += data
            self.flush()
            if self.output:
                self._wants_write()

    # From the child

    def receive(self) -> list[Any] | None:
        """Return the frames that the child has sent; `None` at the end of its socket."""
        try:
            data = self.sock.recv(CHUNK)
        except BlockingIOError:
            return []
        except OSError:
            return None
        self._frames.feed(data)
        return list(self._frames) if data else None

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


class ChildThread(ChildProcess):
    """A thread of the worker in the place of a child process: for debuggers and tiny machines. Nothing can kill it."""

    def __init__(
        self,
        lock: threading.RLock,
        setup: Mapping[str, Any],
        wants_write: Callable[[], None],
        function: Any,
        observer: Observer | None,
    ) -> None:
        self._function, self._observer = function, observer
        super().__init__(lock, setup, wants_write)

    def _begin_child(self, theirs: socket.socket) -> None:
        def run() -> None:
            try:
                Child(theirs, lambda: self._observer, lambda: None, lambda: None, self._function).run()
            finally:
                with suppress(OSError):  # the worker has closed its end
                    theirs.shutdown(socket.SHUT_RDWR)  # ends the thread that reads
                theirs.close()

        self._thread = threading.Thread(target=run, name="rqttl-handlers", daemon=True)
        self._thread.start()

    def signal(self, number: int) -> None:
        """End what the handlers have started outside of this process, and listen to them no more."""
        if number == signal.SIGKILL:
            commands.kill_running()
            with suppress(OSError):  # it is closed
                self.sock.shutdown(socket.SHUT_RDWR)

    def end(self) -> str:
        """See `ChildProcess`."""
        self.sock.close()
        self._thread.join(0 if self.running else LAST)
        return "the thread of the handlers ended"


class Child:
    """Reads frames in a thread of its own, so that it answers while handlers work. `end` is for the end of the socket.

    `terminate` is for a SIGTERM of the worker, `function` is the handler of a thread of the worker.
    """

    def __init__(
        self,
        sock: socket.socket,
        observer: Callable[[], Observer | None],
        end: Callable[[], None],
        terminate: Callable[[], None],
        function: Any,
    ) -> None:
        self._sock, self._observer, self._end, self._function = sock, observer, end, function
        self._terminate = terminate
        self._lock, self._pid = threading.Lock(), os.getpid()
        # A file would keep the socket open after its end.
        self._frames = unpacker(SimpleNamespace(read=sock.recv))

    def run(self) -> None:
        """Handle messages until the worker ends this child."""
        _, setup = next(self._frames, (0, None))
        if setup is None:  # the worker has died
            return
        try:
            handler = self._load(setup)
            observer = self._observer()  # the module of the handler may have configured it
            if observer is not None:
                handler = replace(handler, watch=partial(events.handling, observer))
            slots = self._pool(handler, setup["threads"], setup["asyncio"])
        except pool.HandlerNotLoaded as error:
            self._send(Frame.BROKEN, *error.args)
            return
        self._send(Frame.READY, slots.slots, handler.end_grace)
        slots.run(threading.Thread(target=self._read, args=[slots], daemon=True).start)

    def _load(self, setup: Mapping[str, Any]) -> Handler:
        sys.path[:] = dict.fromkeys((*setup["path"], *sys.path))
        if setup["exec"]:
            run = partial(commands.run, setup["exec"])
            return Handler(run, is_async=False, end=commands.end, end_grace=commands.COMMAND_GRACE)
        return pool.load(setup["call"] or "call", self._function, with_delivery=setup["delivery"])

    def _pool(self, handler: Handler, threads: int | None, coroutines: int | None) -> ThreadPool | CoroutinePool:
        if not handler.is_async:
            return ThreadPool(handler, threads or coroutines or 1, self._send)
        if threads is not None:
            raise pool.HandlerNotLoaded(
                "threads: the function of `call` is a coroutine function: use `asyncio` instead", ""
            )
        return CoroutinePool(handler, coroutines or pool.COROUTINES, self._send)

    def _send(self, kind: Frame, *content: Any) -> None:
        if os.getpid() != self._pid:  # a process that a handler has forked returns: it must not report the end
            os._exit(1)
        data = pack(kind, *content)
        with self._lock:
            try:
                self._sock.sendall(data)
            except OSError:
                self._end()

    def _read(self, slots: ThreadPool | CoroutinePool) -> None:
        try:
            for kind, *content in self._frames:
                if kind == Frame.RUN:
                    queue, text, messages = content
                    config = _config(queue, text)
                    slots.put([(key, config, fields) for key, fields in messages])
                elif kind == Frame.CANCEL:
                    slots.cancel(content[0])
                elif kind == Frame.TERMINATE:
                    self._terminate()
                elif kind == Frame.STOP:
                    self._send(Frame.UNSEEN, slots.take_back())  # before the end of all handlers ends this process
                    slots.stop()
        except OSError:
            pass  # the worker is dead
        except BaseException:  # noqa: BLE001  # without this thread messages would stay leased for ever
            traceback.print_exc()
        self._end()
        slots.take_back()
        slots.stop()  # a thread of the worker goes on after the end of its socket


@lru_cache(1000)
def _config(queue: str, text: str) -> QueueConfig:
    options = QueueOptions.from_json(queue, text)
    return QueueConfig(Keyspace(), queue, b"", options, options)


class Sigterm:
    """Lets SIGTERM end this process only if its worker announces it: systemd sends it to all processes at once."""

    def __init__(self) -> None:
        self._announced = self._came = False
        self._pid = os.getpid()
        signal.signal(signal.SIGTERM, self._take)

    def _take(self, number: int, _: object) -> None:
        self._came = True
        if self._announced or os.getpid() != self._pid:  # a process that a handler has forked ends as usual
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    def announce(self) -> None:
        """Let the next SIGTERM end this process, or the one that has come."""
        self._announced = True
        if self._came:
            os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    """Run a child on the socket whose number is the argument."""
    sigterm = Sigterm()
    if sys.stdout is not None:
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # Python has made it
    sock = socket.socket(fileno=int(sys.argv[1]))
    sock.setblocking(True)
    os.set_inheritable(sock.fileno(), False)  # commands of handlers must not hold the socket
    # the worker sees the death of this child by the end of its socket
    os.register_at_fork(after_in_child=lambda: os.close(sock.detach()))
    Child(sock, lambda: events.observer_of_new(None), commands.end_all, sigterm.announce, None).run()
