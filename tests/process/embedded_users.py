"""Helpers of the embedded server's tests: processes that use it, and a list of running ones."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import redis

from rqttl.embedded import server
from tests.servers import server_binary
from tests.waiting import PATIENCE, until

ROOT = Path(__file__).resolve().parents[2]

Users = Callable[..., "subprocess.Popen[str]"]
#: As patient as the fixture in `conftest.py`.
BEGIN = f"""import os, sys, redis
from rqttl.embedded import server
server._CLOSE_TIMEOUT = server.acquire.__kwdefaults__['timeout'] = {PATIENCE}
if 'BINARY' in os.environ:
    server.find_binary = lambda: os.environ['BINARY']
"""
USE = "server = server.acquire(os.environ['FOLDER']); print(server.url, flush=True); sys.stdin.read()"


def running(folder: Path, what: str = "") -> list[int]:
    """The guard and the server of a folder: both have it in their command lines."""
    return processes_with("cmdline", os.fsencode(folder), what.encode())


def processes_with(file: str, *texts: bytes) -> list[int]:
    """The processes that have all these texts in a file of `/proc`, sorted (a zombie has none)."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):  # it may end meanwhile
                content = (entry / file).read_bytes()
                if all(text in content for text in texts):
                    found.append(int(entry.name))
    return sorted(found)


def identity(url: str) -> tuple[int, str]:
    with redis.Redis.from_url(url, retry=None, socket_timeout=PATIENCE) as client:
        info = client.info("server")
        return info["process_id"], info["run_id"]


def starts(folder: Path) -> int:
    return (folder / "server.log").read_text().lower().count("ready to accept connections")


def spawn(folder: Path, code: str, **environment: str) -> subprocess.Popen[str]:
    """A process that runs `code`, in another folder than ours and without rqttl being installed."""
    return subprocess.Popen(
        [sys.executable, "-c", BEGIN + code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=folder.parent,
        env={**os.environ, "PYTHONPATH": str(ROOT), "FOLDER": str(folder), **environment},
    )


def told(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    assert line, "the process ended without a word"
    return line


def choose_binary(monkeypatch: pytest.MonkeyPatch, series: str) -> None:
    """Make the server of a test leg that of embedded servers, also in processes of `spawn`."""
    binary = server_binary(series)
    monkeypatch.setattr(server, "find_binary", lambda: binary)
    monkeypatch.setenv("BINARY", str(binary))


def data_folder() -> Iterator[Path]:
    """A folder for data, to be made. Whatever the test does with it, in the end nothing runs there."""
    base = Path(tempfile.mkdtemp(prefix="rqttl-")).resolve()
    yield base / "data"
    try:
        until(lambda: not running(base))
    finally:
        for pid in running(base):
            os.kill(pid, signal.SIGKILL)
        shutil.rmtree(base)


def user_processes(folder: Path) -> Iterator[Users]:
    """Starts processes on the folder; all are gone after the test."""
    processes: list[subprocess.Popen[str]] = []

    def start(code: str = USE, **environment: str) -> subprocess.Popen[str]:
        processes.append(spawn(folder, code, **environment))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.communicate()
