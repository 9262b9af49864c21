"""A child process as a place for handlers: its process, its socket, and the frames in both directions."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from typing import Any

from rqttl.delivery import config_of, parcel
from rqttl.options import QueueOptions
from rqttl.worker import board as boards
from rqttl.worker import frames, groups
from rqttl.worker.crew import Crew
from rqttl.worker.outcomes import Outcome
from rqttl.worker.places import Place, Task
from rqttl.worker.supervision import Step

logger = logging.getLogger("rqttl.worker")

_CHUNK = 1 << 18
#: Bytes that wait for a child above which it gets no further message.
BUFFERED = 1 << 22
#: The number of versions of options that a child knows at most. Workers for months meet many queues.
KNOWN = 1000
#: Seconds that a process has to end after the end of its socket.
LAST = 2.0


class ChildProcess(Place):
    """A child of the worker. The main loop of the worker reads its frames; any thread may send it messages.

    `wants_write` is called when bytes wait for room in the socket.
    """

    def __init__(self, crew: Crew, number: int, setup: Mapping[str, Any], wants_write: Callable[[], None]) -> None:
        with boards.shared() as fd:
            super().__init__(boards.mapped(fd))
            self._start(fd)
        self.number = number
        #: The folder or file of the handler's source.
        self.source = ""
        #: The reason for which the handler could not be loaded, and the traceback of the user's code.
        self.broken, self.trace = "", ""
        #: The cause for which another child takes its place, and the time of the order to end.
        self.retiring = ""
        self.quit_at: float | None = None
        #: True after the end of a handler. The death of such a child is not an early one.
        self.has_finished = False
        #: The time since which the process is known to be stopped (SIGSTOP); `None` while it goes on.
        self.stopped_since: float | None = None
        #: The time of its start, as files have it.
        self.began = time.time()
        self._crew = crew
        self._wants_write = wants_write
        self._runs_commands = bool(setup["exec"])
        self._known: dict[int, tuple[QueueOptions, int]] = {}
        self._reader = frames.FrameReader()
        self._out = bytearray()
        self._send(frames.pack(frames.SETUP, dict(setup)))

    def _start(self, board: int) -> None:
        """Start the process, with the file descriptor of its board."""
        self.sock, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "rqttl.worker.child", str(theirs.fileno()), str(board)],
                pass_fds=[theirs.fileno(), board],
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the worker, which ends its children
            )
        self.sock.setblocking(False)  # of the standard library

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
        """See `Place`."""
        is_free = self.stopped_since is None and len(self._out) < BUFFERED
        return self.is_ready and not self.retiring and self.quit_at is None and is_free

    @property
    def has_output(self) -> bool:
        """True if bytes wait for room in the socket."""
        return bool(self._out)

    # To the child

    def send(self, tasks: list[Task]) -> None:
        """See `Place`."""
        packed: list[bytes] = []
        for options, group in groupby(tasks, lambda task: config_of(task.delivery).options):
            known = self._known.get(id(options))
            if known is None:
                known = self._introduce(options, packed)
            packed.append(frames.pack(frames.TASKS, known[1], [(task.key, parcel(task.delivery)) for task in group]))
        self._send(b"".join(packed))

    def recall(self) -> None:
        """See `Place`."""
        self._send(frames.pack(frames.RECALL))

    def retire(self, cause: str) -> None:
        """Let the child end after the messages at hand."""
        if not self.retiring:
            self.retiring = cause
            self.recall()

    def quit(self, now: float) -> None:
        """Let the child end. It has no message."""
        if self.quit_at is None:
            self.quit_at = now
            self._send(frames.pack(frames.QUIT))

    def carry_out(self, step: Step, key: int) -> None:
        """Take a step against a handler that takes too long."""
        if step is Step.CANCEL:
            self.cancel(key)
            return
        logger.warning("child %d: a handler takes too long; %s", self.pid, "TERM" if step is Step.TERM else "KILL")
        self.signal(signal.SIGTERM if step is Step.TERM else signal.SIGKILL)

    def cancel(self, key: int) -> None:
        """See `Place`."""
        self._send(frames.pack(frames.CANCEL, key))

    def signal(self, number: int) -> None:
        """Send a signal to the child and to all processes of its group."""
        with suppress(ProcessLookupError, PermissionError):  # the group has ended
            os.killpg(self.pid, number)

    def look_whether_stopped(self, now: float) -> bool:
        """Ask the system if the process is stopped. Returns True if that has changed."""
        before, is_stopped = self.stopped_since, _is_stopped(self.pid)
        self.stopped_since = None if not is_stopped else now if before is None else before
        return (before is None) == is_stopped

    def flush(self) -> None:
        """Send bytes that wait, as far as there is room."""
        with self._crew.lock:
            while self._out and (sent := self._send_now(self._out[:_CHUNK])):
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
        with self._crew.lock:
            if not self._out:
                data = data[self._send_now(data) :]
            if data:
                self._out += data
                self._wants_write()

    def _introduce(self, options: QueueOptions, packed: list[bytes]) -> tuple[QueueOptions, int]:
        """Tell the child the options of a queue. All messages of one version of the options share the object.

        Beyond `KNOWN` the numbers begin again, and each takes the place of an older one in the child, too.
        """
        if len(self._known) >= KNOWN:
            self._known.clear()
        number = len(self._known)
        packed.append(frames.pack(frames.QUEUE, number, options.queue, options.as_json()))
        known = self._known[id(options)] = options, number
        return known

    # From the child

    def receive(self) -> bool:
        """Read what the child has sent, and report it to the crew. Returns False at the end of its socket."""
        try:
            data = self.sock.recv(_CHUNK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        if not data:
            return False
        for kind, *content in self._reader.feed(data):
            self._take(kind, content)
        return True

    def _take(self, kind: int, content: Sequence[Any]) -> None:
        crew = self._crew
        if kind == frames.SUCCEEDED:
            self.has_finished = True
            crew.collect(self, content[0])
        elif kind == frames.ENDED:
            key, outcome = content
            self.has_finished = True
            crew.done(self, key, None if outcome is None else Outcome(*outcome))
        elif kind == frames.SETTLED:
            crew.settled(self, content[0], Outcome(*content[1]))
        elif kind == frames.RENEW:
            crew.renewed(self, *content)
        elif kind == frames.RETIRING:
            self.retiring = content[0]
        elif kind == frames.UNSEEN:
            crew.unseen(self, content[0])
        elif kind == frames.READY:
            self.slots, self.cancel_grace, self.source = content
        elif kind == frames.BROKEN:
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
            groups.kill_session(self.pid)  # commands have groups of their own
        if code >= 0:
            return f"the child process ended with exit code {code}"
        with suppress(ValueError):
            return f"the child process was ended by {signal.Signals(-code).name}"
        return f"the child process was ended by signal {-code}"


def _is_stopped(pid: int) -> bool:
    """Return True if a child process of this one is stopped. Its end stays to be asked for."""
    if not hasattr(os, "waitid"):  # macOS before Python 3.13
        return False
    with suppress(ChildProcessError):  # it has ended
        return os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None
    return False
