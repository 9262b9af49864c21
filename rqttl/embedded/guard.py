"""The guard of an embedded server: a process of its own that starts redis-server and stops it after its last user.

The guard owns the life of one redis-server and imports the standard library only. `rqttl.embedded` runs this file by
its path, in an isolated interpreter, so the guard starts fast and works from a wheel, a checkout and any folder.
`rqttl/embedded/server.py` explains the lock files and the need for a guard.

    python -I -S guard.py BINARY FOLDER SOCKET GUARD_LOCK SERVER_LOCK     (the locks: open descriptors)
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

PING, PONG = b"PING\r\n", b"+PONG"
_INFO = b"INFO server\r\n"
SHUTDOWN = b"SHUTDOWN NOSAVE\r\n"  # NOSAVE: no snapshot; the append-only file is flushed and synced all the same

_ASK_TIMEOUT = 5.0  # seconds; a server that loads its data answers within one chunk of the file
_SYNC_PERIOD = 1.0  # seconds; a crash of the machine loses the writes since the last sync
_TOO_SOON = 1.0  # a server that is killed sooner than this after its start would be killed again
_PR_SET_PDEATHSIG = 1


def open_lock(path: Path) -> int:
    """A new file description of a lock file. Locks belong to it, through every fork, until its last copy is closed."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def try_lock(descriptor: int, kind: int) -> bool:
    """Take `LOCK_SH` or `LOCK_EX` if that is possible without waiting."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def ask(address: Path, request: bytes, timeout: float = _ASK_TIMEOUT) -> bytes:
    """The first bytes of the server's reply; empty if no server answers or the server closed the connection."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout)
        connection.connect(os.fspath(address))
        connection.sendall(request)
        return connection.recv(4096)
    return b""


class _Guard:
    """Runs redis-server as its child. The main thread waits for the child, another one for the end of the last use."""

    def __init__(self, binary: str, folder: Path, address: Path, server_lock: int) -> None:
        self._command = _command(binary, folder, address)
        self._folder = folder
        self._address = address
        names = ("users.lock", "wake.lock", "start.lock")
        self._users, self._wake, self._starts = (open_lock(folder / name) for name in names)
        self._server_lock = server_lock
        self._turn = threading.Lock()  # for the start of a child, or the decision to start no other
        self._stopping = threading.Event()
        self._child: subprocess.Popen[bytes] | None = None

    def run(self) -> int:
        threading.Thread(target=self._stop_after_last_user, daemon=True).start()
        threading.Thread(target=_keep_synced, args=(self._folder,), daemon=True).start()
        while True:
            with self._turn:
                if self._stopping.is_set():
                    return 0
                born = time.monotonic()
                child = self._child = self._start()
            code = child.wait()
            if self._stopping.is_set():
                self._remove_short_folder()
                return 0
            # A server that was killed is started again for its users. A server that ended by itself cannot start,
            # or was shut down: then the next `acquire` decides.
            if code >= 0 or time.monotonic() - born < _TOO_SOON:
                return 1

    def _start(self) -> subprocess.Popen[bytes]:
        # The server inherits the description of server.lock and nothing else: that lock says that it lives.
        return subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            pass_fds=[self._server_lock],
            preexec_fn=_end_with_parent(),  # noqa: PLW1509  # one system call, resolved before the fork
        )

    def _stop_after_last_user(self) -> None:
        while True:
            fcntl.flock(self._wake, fcntl.LOCK_EX)  # returns when no process holds a shared lock
            fcntl.flock(self._wake, fcntl.LOCK_UN)  # at once: the holder of start.lock may wait for this process
            fcntl.flock(self._starts, fcntl.LOCK_EX)
            if try_lock(self._users, fcntl.LOCK_EX):
                break
            fcntl.flock(self._starts, fcntl.LOCK_UN)
        # Both locks stay until this process ends, after the server: no other server starts in between.
        with self._turn:
            self._stopping.set()
        if (child := self._child) is not None:
            # SHUTDOWN acts at once, the signal only at the next tick of the server's clock. Another server may listen
            # at the address, so the process id is compared first.
            if f"process_id:{child.pid}\r".encode() in ask(self._address, _INFO):
                ask(self._address, SHUTDOWN)
            child.terminate()

    def _remove_short_folder(self) -> None:
        if self._address.parent != self._folder:
            with contextlib.suppress(OSError):
                self._address.parent.rmdir()


def _command(binary: str, folder: Path, address: Path) -> list[str]:
    settings = {
        "port": "0",
        "unixsocket": str(address),
        "unixsocketperm": "700",
        "dir": str(folder),
        "appendonly": "yes",
        # With `everysec` Redis confirms writes that it holds back in its memory while the disk syncs: they would be
        # lost if it was killed. With `no` it writes before it confirms, and the guard syncs every second.
        "appendfsync": "no",
        "aof-load-truncated": "yes",
        "save": "",
        "maxmemory-policy": "noeviction",
        "daemonize": "no",
        "supervised": "no",
    }
    return [binary, *(word for name, value in settings.items() for word in (f"--{name}", value))]


def _keep_synced(folder: Path) -> None:
    """Sync the appended data of redis-server to the disk once a second, as long as this process lives."""
    synced: dict[Path, tuple[int, ...]] = {}
    while True:
        time.sleep(_SYNC_PERIOD)
        synced = sync(folder, synced)


def sync(folder: Path, synced: Mapping[Path, tuple[int, ...]]) -> dict[Path, tuple[int, ...]]:
    """Sync each append-only file that has changed since the last call. `synced` is the result of that call."""
    files = [*folder.glob("appendonly.aof"), *folder.glob("appendonlydir/*")]  # of Redis 6, and of Redis 7
    states: dict[Path, tuple[int, ...]] = {}
    for path in (*{path.parent for path in files}, *files):  # a folder changes when a name in it does
        try:
            status = path.stat()
            states[path] = status.st_ino, status.st_size, status.st_mtime_ns
            if states[path] != synced.get(path):
                _sync_file(path)
        except FileNotFoundError:  # a rewrite has just replaced it
            states.pop(path, None)
        except OSError as error:
            states.pop(path, None)  # tried again next time
            print(f"rqttl: {path} was not synced: {error}", file=sys.stderr)  # noqa: T201  # stderr is the server's log
    return states


def _sync_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _end_with_parent() -> Callable[[], object] | None:
    """A function with which the child gets SIGTERM at the guard's death; `None` if the kernel has no such call."""
    if sys.platform != "linux":
        return None
    try:
        import ctypes

        prctl = ctypes.CDLL(None).prctl
    except (ImportError, OSError, AttributeError):
        return None
    return lambda: prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def main(binary: str, folder: str, address: str, *descriptors: str) -> int:
    """Detach from the starting process, run the server to its end, and release the locks."""
    if os.fork():
        return 0  # the starting process gets no zombie, and the guard has no parent
    # The server must not inherit blocked or ignored signals of the starting process.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    guard_lock, server_lock = map(int, descriptors)
    os.set_inheritable(guard_lock, False)
    try:
        return _Guard(binary, Path(folder), Path(address), server_lock).run()
    finally:
        # Explicitly: a fork of the starting process at the wrong instant may hold other copies of the descriptors.
        fcntl.flock(server_lock, fcntl.LOCK_UN)
        fcntl.flock(guard_lock, fcntl.LOCK_UN)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
