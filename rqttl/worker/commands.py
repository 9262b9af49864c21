"""Commands as handlers (`--exec`): the body on stdin, details in the environment, the outcome by the exit code.

Each command leads a process group of its own, in the session of its child. The group makes it possible to end one
command with all that it has started, and none beside it. The session leads to all of them when the child is dead.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from rqttl.checks import MAX_DESCRIPTION_BYTES
from rqttl.consuming.handling import CommandFailed, HandlerStopped
from rqttl.delivery import Delivery, Reject, Retry

#: Seconds between SIGTERM and SIGKILL for a command that has to end, and for a handler that takes too long.
TERM_GRACE = 5.0
#: Seconds within which a child ends a command. After that the worker ends the child.
COMMAND_GRACE = TERM_GRACE + 1
#: The bytes of stderr that become the description of a failure: the last ones. The rest is for the exit code.
KEPT = MAX_DESCRIPTION_BYTES - 128
#: Seconds for which the end of stderr is awaited after the end of the command. A process that it left may hold it.
LATE = 1.0
_OWN_GROUP: dict[str, Any] = {"process_group": 0} if sys.version_info >= (3, 11) else {"preexec_fn": os.setpgrp}
#: Held while a process starts. `end_all` keeps it, so that no further one can start.
_starting = threading.Lock()
_NOT_IN_NAMES = re.compile(r"[^A-Z0-9]")
#: The commands that run, by their deliveries.
_running: dict[int, CommandProcess] = {}


def run(words: Sequence[str], delivery: Delivery) -> None:
    """Run a command for one message. Raises the decision, or `CommandFailed`, unless the exit code is 0.

    Raises `HandlerStopped` if the worker has ended the command, and the exit code decides nothing.
    """
    process, tail = CommandProcess(), bytearray()
    _running[id(delivery)] = process
    try:
        popen = process.start(words, environment(delivery, os.environ))
        reader = threading.Thread(target=_keep_tail, args=[popen.stderr, tail], daemon=True)
        reader.start()
        threading.Thread(target=_feed, args=[popen.stdin, delivery.body], daemon=True).start()
        code = process.wait(popen)
        reader.join(LATE)
    finally:
        del _running[id(delivery)]
    # an undecodable byte becomes three bytes: the text may be too long
    text = bytes(tail).decode("utf-8", "replace").strip().encode()[-KEPT:].decode(errors="ignore")
    way = f"the command {ending(code)}"
    if code == os.EX_DATAERR:  # the input is wrong for good
        raise Reject(text or way)
    if code == os.EX_TEMPFAIL:  # the cause ends by itself
        raise Retry(description=text or way)
    if code and process.kill_at is not None:
        raise HandlerStopped(f"the worker ended the command: {way}: {text}".rstrip(": "))
    if code:
        raise CommandFailed(f"{way}: {text}".rstrip(": "))


def end(delivery: Delivery) -> None:
    """Let the command of a message end: SIGTERM now, SIGKILL after `TERM_GRACE`, or after a shorter lease."""
    process = _running.get(id(delivery))
    if process is not None:
        process.end(min(TERM_GRACE, delivery.lease / 1000))


def kill_running() -> None:
    """End all commands of this process at once."""
    for process in list(_running.values()):
        process.kill()


def environment(delivery: Delivery, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a command: that of this process, and the details of the message.

    A header `Trace-Id` is `RQTTL_HEADER_TRACE_ID`. The environment holds text without NUL, so a NUL becomes U+FFFD.
    """
    details = {
        "RQTTL_QUEUE": delivery.queue,
        "RQTTL_ID": delivery.id,
        "RQTTL_DELIVERY": str(delivery.delivery_count),
        "RQTTL_CONTENT_TYPE": delivery.content_type,
    }
    for name, value in delivery.headers.items():
        text = value.decode("utf-8", "replace") if isinstance(value, bytes) else "" if value is None else str(value)
        details[f"RQTTL_HEADER_{_NOT_IN_NAMES.sub('_', name.upper())}"] = text
    clean = {name: value.replace("\0", "�").encode("utf-8", "replace").decode() for name, value in details.items()}
    return {**inherited, **clean}


def _feed(stdin: IO[bytes], body: bytes) -> None:
    with suppress(BrokenPipeError), stdin:  # the command may have read enough
        stdin.write(body)


def _keep_tail(stderr: IO[bytes], tail: bytearray) -> None:
    """Copy stderr to that of the worker, and keep its last bytes."""
    with stderr:
        while data := os.read(stderr.fileno(), 65_536):
            tail += data
            del tail[:-KEPT]
            with suppress(OSError):  # nobody reads the errors of the worker: the command must not notice
                sys.stderr.buffer.write(data)
                sys.stderr.flush()


class CommandProcess:
    """One process with its group. `end` may come from another thread, also before `start`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._group = 0
        #: The time of SIGKILL, after `end`.
        self.kill_at: float | None = None
        self._is_over = False

    def start(self, words: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """Start the process, with pipes for stdin and stderr. Raises `HandlerStopped` after `end`, and `OSError`."""
        with self._lock, _starting:
            if self.kill_at is not None:
                raise HandlerStopped("the worker ended the command before it had begun")
            process = subprocess.Popen(
                words, stdin=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, **_OWN_GROUP
            )
            self._group = process.pid
        return process

    def end(self, grace: float) -> None:
        """Let the process end: SIGTERM to its group now, SIGKILL after `grace` seconds. Only the first call counts."""
        with self._lock:
            if self._is_over or self.kill_at is not None:
                return
            self.kill_at = time.monotonic() + grace
            self._signal(signal.SIGTERM)
            self._signal(signal.SIGCONT)  # a stopped process gets SIGTERM when it goes on
        killer = threading.Timer(grace, self.kill)
        killer.daemon = True
        killer.start()

    def kill(self) -> None:
        """End the process and its group at once."""
        with self._lock:
            self._signal(signal.SIGKILL)

    def wait(self, process: subprocess.Popen[bytes]) -> int:
        """Wait for the end. Returns the exit code. After `end` its whole group ends: SIGKILL ends those that stay."""
        code = process.wait()
        with self._lock:
            self._is_over = self.kill_at is None
        if self.kill_at is not None:
            with suppress(ProcessLookupError):  # while the group has a process, no other group gets its number
                while time.monotonic() < self.kill_at:
                    with suppress(PermissionError):  # one has become another user's
                        os.killpg(self._group, 0)
                    time.sleep(0.02)
            self.kill()
            self._is_over = True
        return code

    def _signal(self, number: int) -> None:
        if self._group and not self._is_over:
            with suppress(ProcessLookupError, PermissionError):  # the group has ended
                os.killpg(self._group, number)


def end_all() -> None:
    """End this process at once, all that commands have started, and its group. No further command can start."""
    _starting.acquire(timeout=1.0)
    kill_session(os.getsid(0))
    os.killpg(0, signal.SIGKILL)


def kill_session(leader: int) -> None:
    """End all other processes of a session at once, those of all its groups."""
    killed = {os.getpid()}
    while living := _members(leader) - killed:
        for pid in living:
            with suppress(ProcessLookupError, PermissionError):  # it has ended
                os.kill(pid, signal.SIGKILL)
        killed |= living


def _members(session: int) -> set[int]:
    if Path("/proc/self").exists():
        words = [name for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208  # quick: it is for numbers
    else:
        command = ["ps", "-A", "-o", "pid="]
        words = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False).stdout.split()
    members = set[int]()
    for pid in map(int, words):
        with suppress(ProcessLookupError, PermissionError):  # it has ended
            if os.getsid(pid) == session:
                members.add(pid)
    return members


def ending(code: int) -> str:
    """Say how a process ended, by its exit code."""
    if code >= 0:
        return f"ended with exit code {code}"
    names = {number.value: number.name for number in signal.Signals}
    return f"was ended by {names.get(-code, f'signal {-code}')}"
