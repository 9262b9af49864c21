"""The guard of an embedded server: a process of its own that starts redis-server and stops it after its last user.

`rqttl.embedded` runs this file by its path, in an isolated interpreter with the standard library only, so the guard
starts fast and works from a wheel, a checkout and any folder. `server.py` beside it explains the lock files.

    python -I -S guard.py BINARY FOLDER SOCKET SERVER_LOCK     (the lock: an open descriptor)
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
from collections.abc import Callable
from pathlib import Path

PING, PONG = b"PING\r\n", b"+PONG"
_INFO = b"INFO server\r\n"
SHUTDOWN = b"SHUTDOWN NOSAVE\r\n"  # NOSAVE: no snapshot; the append-only file is flushed and synced all the same

_ASK_TIMEOUT = 5.0  # seconds; a server that loads its data answers within one chunk of the file
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


def command(binary: str, folder: Path, address: Path) -> list[str]:
    """The command line of redis-server."""
    settings = {
        "port": "0",
        "unixsocket": str(address),
        "unixsocketperm": "700",
        "dir": str(folder),
        "appendonly": "yes",
        "appendfsync": "everysec",
        "save": "",
        "maxmemory-policy": "noeviction",
    }
    if (folder / "appendonlydir").is_dir():
        # Redis 6 does not know this setting, so it does not start. It would take the data of a later version for none.
        settings["appenddirname"] = "appendonlydir"
    return [binary, *(word for name, value in settings.items() for word in (f"--{name}", value))]


def run(binary: str, folder: Path, address: Path, server_lock: int) -> None:
    """Run redis-server until it ends. Another thread waits for the end of its last use."""
    users, wake, starts = (open_lock(folder / name) for name in ("users.lock", "wake.lock", "start.lock"))
    # The server inherits the description of server.lock and nothing else: that lock says that it lives.
    child = subprocess.Popen(
        command(binary, folder, address),
        stdin=subprocess.DEVNULL,
        pass_fds=[server_lock],
        preexec_fn=end_with_parent(),  # noqa: PLW1509  # one system call, resolved before the fork
    )

    def stop_after_last_user() -> None:
        while True:
            fcntl.flock(wake, fcntl.LOCK_EX)  # returns when no process holds a shared lock
            fcntl.flock(wake, fcntl.LOCK_UN)  # at once: the holder of start.lock may wait for this process
            fcntl.flock(starts, fcntl.LOCK_EX)
            if try_lock(users, fcntl.LOCK_EX):
                break
            fcntl.flock(starts, fcntl.LOCK_UN)
        # Both locks stay until this process ends, after the server: no other server starts in between.
        # SHUTDOWN acts at once, the signal only at the next tick of the server's clock. Another server may listen at
        # the address, so the process id is compared first.
        if f"process_id:{child.pid}\r".encode() in ask(address, _INFO):
            ask(address, SHUTDOWN)
        child.terminate()

    threading.Thread(target=stop_after_last_user, daemon=True).start()
    child.wait()
    if address.parent != folder:
        with contextlib.suppress(OSError):  # a killed server leaves its socket there
            address.parent.rmdir()


def end_with_parent() -> Callable[[], object] | None:
    """A function with which the child gets SIGTERM at the guard's death; `None` if the kernel has no such call."""
    if sys.platform != "linux":
        return None
    try:
        import ctypes

        prctl = ctypes.CDLL(None).prctl
    except (ImportError, OSError, AttributeError):
        return None
    return lambda: prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def main(binary: str, folder: str, address: str, descriptor: str) -> None:
    """Detach from the starting process, run the server to its end, and release the lock."""
    if os.fork():
        return  # the starting process gets no zombie, and the guard has no parent
    # The server must not inherit blocked or ignored signals of the starting process.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    server_lock = int(descriptor)
    try:
        run(binary, Path(folder), Path(address), server_lock)
    finally:
        # Explicitly: a fork of the starting process at the wrong instant may hold another copy of the descriptor.
        fcntl.flock(server_lock, fcntl.LOCK_UN)


if __name__ == "__main__":
    main(*sys.argv[1:])
