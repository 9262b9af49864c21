"""Processes of commands: each leads a process group of its own, in the session of its child.

The group makes it possible to end one command with all that it has started, and none beside it. The session leads to
all of them when the child is dead. Commands of a worker without children are in its own session; a guard ends them.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

#: Seconds between two looks at a group whose leader has ended.
_LOOK = 0.02
#: Seconds for which the end of a group is awaited after SIGKILL. Containers without an init keep dead processes in it.
LAST = 0.5
_OWN_GROUP: dict[str, Any] = {"process_group": 0} if sys.version_info >= (3, 11) else {"preexec_fn": os.setpgrp}
#: Held while a process starts. `end_commands` keeps it, so that no further one can start.
_starting = threading.Lock()


class NotStarted(Exception):
    """The command was to end before it had begun."""


class Guard:
    """A process that ends all groups of commands when this one is killed. It starts with the first group.

    Safe to share between threads: `began` and `ended` write one short line at once.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def start(self) -> None:
        """Start the process, unless it runs."""
        with self._lock:  # a second process would replace the first one, which would end its groups then
            if self._process is None:
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-S", str(Path(__file__).with_name("guard.py"))],
                    bufsize=0,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,  # Ctrl-C is for the worker
                )

    def began(self, group: int) -> None:
        """A group is to end with this process."""
        self._send(b"+%d\n" % group)

    def ended(self, group: int) -> None:
        """A group has ended. Its number may belong to another one soon."""
        self._send(b"-%d\n" % group)

    def close(self) -> None:
        """End the process, and all groups that have not ended."""
        if self._process is not None:
            self._stdin.close()
            self._process.wait()

    @property
    def _stdin(self) -> IO[bytes]:
        assert self._process is not None  # noqa: S101  # for the type checker
        assert self._process.stdin is not None  # noqa: S101  # for the type checker
        return self._process.stdin

    def _send(self, line: bytes) -> None:
        with suppress(BrokenPipeError):  # the guard was killed: commands go on without one
            self._stdin.write(line)


class CommandProcess:
    """One process with its group. `end` may come from another thread, also before `start`."""

    #: True if this process has started one.
    has_started = False

    def __init__(self, guard: Guard | None = None) -> None:
        self._guard = guard
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._kill_at: float | None = None
        self._killer: threading.Timer | None = None
        self._is_over = False

    @property
    def was_ended(self) -> bool:
        """True if the worker has told the process to end while it ran."""
        return self._kill_at is not None

    def start(self, words: Sequence[str], environment: Mapping[str, str]) -> tuple[IO[bytes], IO[bytes]]:
        """Start the process. Returns its stdin and stderr. Raises `NotStarted` after `end`, and `OSError`."""
        with self._lock, _starting:
            if self._kill_at is not None:
                raise NotStarted
            CommandProcess.has_started = True
            if self._guard is not None:
                self._guard.start()
            self._process = process = subprocess.Popen(
                words, stdin=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, **_OWN_GROUP
            )
            if self._guard is not None:
                self._guard.began(process.pid)
        assert process.stdin is not None  # noqa: S101  # for the type checker
        assert process.stderr is not None  # noqa: S101  # for the type checker
        return process.stdin, process.stderr

    def end(self, grace: float) -> None:
        """Let the process end: SIGTERM to its group now, SIGKILL after `grace` seconds. Only the first call counts."""
        with self._lock:
            if self._is_over or self._kill_at is not None:
                return
            self._kill_at = time.monotonic() + grace
            if self._process is None:
                return
            self._signal(signal.SIGTERM)
            self._signal(signal.SIGCONT)  # a stopped process gets SIGTERM when it goes on
            self._killer = threading.Timer(grace, self.kill)
            self._killer.daemon = True
            self._killer.start()

    def kill(self) -> None:
        """End the process and its group at once."""
        with self._lock:
            if not self._is_over and self._process is not None:
                self._signal(signal.SIGKILL)

    def wait(self) -> int:
        """Wait for the end. Returns the exit code.

        After `end` no process of the group is left. A killed process counts as ended after `LAST` seconds.
        """
        assert self._process is not None  # noqa: S101  # for the type checker
        code = self._process.wait()
        with self._lock:
            kill_at = self._kill_at
            self._is_over = kill_at is None
        if kill_at is not None:
            self._wait_for_group(kill_at)
            self.kill()
            self._wait_for_group(time.monotonic() + LAST)  # they are dead when they get the CPU next
            self._is_over = True
        if self._guard is not None:
            self._guard.ended(self._process.pid)
        if self._killer is not None:
            self._killer.cancel()
        return code

    def _wait_for_group(self, until: float) -> None:
        while time.monotonic() < until and self._has_members():
            time.sleep(_LOOK)

    def _has_members(self) -> bool:
        """Return True while the group has a process: its number belongs to no other group until then."""
        assert self._process is not None  # noqa: S101  # for the type checker
        try:
            os.killpg(self._process.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True  # it has become another user's
        return True

    def _signal(self, number: int) -> None:
        assert self._process is not None  # noqa: S101  # for the type checker
        with suppress(ProcessLookupError, PermissionError):  # the group has ended
            os.killpg(self._process.pid, number)


def end_commands() -> None:
    """End all commands of this process at once, with all that they have started. No further command can start."""
    _starting.acquire(timeout=1.0)
    if CommandProcess.has_started:
        kill_session(os.getsid(0))


def kill_session(leader: int) -> None:
    """End all other processes of a session at once, those of all its groups."""
    killed = {os.getpid()}
    while living := {pid for pid in _processes() if pid not in killed and _session_of(pid) == leader}:
        for pid in living:
            with suppress(ProcessLookupError, PermissionError):  # it has ended
                os.kill(pid, signal.SIGKILL)
        killed |= living


def _processes() -> Iterable[int]:
    """Return the numbers of all processes of the machine."""
    if Path("/proc/self").exists():
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208  # quick: it is for numbers
    listed = subprocess.run(["ps", "-A", "-o", "pid="], stdout=subprocess.PIPE, check=False)  # noqa: S607  # the system's
    return [int(word) for word in listed.stdout.split()]


def _session_of(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except (ProcessLookupError, PermissionError):
        return None  # it has ended
