"""Connections of kombu, an application of Celery, and workers as processes, on the shared server."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from kombu import Connection, pools

import rqttl
from rqttl import Broker
from tests.repository import ROOT
from tests.waiting import PATIENCE, until

TRANSPORT = os.environ.get("RQTTL_TEST_TRANSPORT", "rqttl.celery:Transport")  # or "", for that of kombu


def pytest_configure(config: pytest.Config) -> None:
    # the result backend of Celery leaves connections to the collector
    config.addinivalue_line("filterwarnings", "ignore:unclosed <socket:ResourceWarning")


@pytest.fixture
def connect(redis_url: str) -> Iterator[Callable[..., Any]]:
    """`connect(**transport_options)`: a connection of kombu; `connect(url=…)` to another server."""
    made = []

    def connect(url: str = redis_url, **options: Any) -> Any:
        made.append(Connection(url, transport=TRANSPORT, transport_options=options))
        return made[-1]

    yield connect
    for connection in made:
        connection.release()


class Worker:
    """A worker in its own process group."""

    def __init__(self, log: Path, environment: dict[str, str], *arguments: str) -> None:
        app = environment.get("APP", "tests.celery.app")
        command = [sys.executable, "-m", "celery", "-A", app, "worker", "--loglevel", "INFO", *arguments]
        self.log = log
        with log.open("w") as out:
            self.process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
            )

    @property
    def text(self) -> str:
        """What it has logged."""
        return self.log.read_text()

    def ready(self) -> "Worker":
        """Wait until it consumes."""
        until(lambda: " ready." in self.text or self.process.poll() is not None)
        assert self.process.poll() is None, self.text
        return self

    def stop(self) -> int:
        """End it as an operator does."""
        self.process.terminate()
        return self.process.wait(PATIENCE)

    def kill(self) -> None:
        """End all of its processes at once."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(PATIENCE)


Start = Callable[..., Worker]
Tell = Callable[[str, object], None]


@pytest.fixture
def environment(redis_url: str, tmp_path: Path) -> dict[str, str]:
    """What the processes of a test have in common."""
    own = {"BROKER": redis_url, "BACKEND": redis_url, "NOTES": str(tmp_path / "notes"), "TRANSPORT": TRANSPORT}
    return {**os.environ, "PYTHONUNBUFFERED": "1", **own}


@pytest.fixture
def start(environment: dict[str, str], tmp_path: Path) -> Iterator[Start]:
    """`start("--pool", "solo", LEASE="4")`: a worker with these arguments and variables."""
    started: list[Worker] = []

    def start(*arguments: str, **variables: str) -> Worker:
        log = tmp_path / f"worker-{len(started)}.log"
        name = ("--hostname", f"w{len(started)}@%h", "--concurrency", "2")
        started.append(Worker(log, environment | variables, *name, *arguments))
        return started[-1]

    yield start
    for worker in started:
        if worker.process.poll() is None:
            worker.kill()


@pytest.fixture
def app_of(environment: dict[str, str]) -> Iterator[Callable[[str], Any]]:
    """`app_of(url)`: the application in this process, with this broker."""
    from tests.celery.app import configure

    apps = []

    def app_of(url: str) -> Any:
        apps.append(configure({**environment, "BROKER": url}))
        return apps[-1]

    yield app_of
    pools.reset()
    for app in apps:
        app.backend.client.close()


@pytest.fixture
def app(app_of: Callable[[str], Any], redis_url: str) -> Any:
    """The application in this process."""
    return app_of(redis_url)


@pytest.fixture
def notes(environment: dict[str, str]) -> Callable[[], list[str]]:
    """The lines that tasks have written, without the processes that wrote them."""
    path = Path(environment["NOTES"])
    return lambda: [line.partition(" by ")[0] for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def tell(record_property: Tell) -> Tell:
    """`tell("kills", 3)`: a figure for reports, which `-s` prints."""

    def tell(name: str, figure: object) -> None:
        record_property(name, figure)
        sys.stdout.write(f"{name:48}{figure:>8}\n")

    return tell


@pytest.fixture
def looker(redis_url: str) -> Iterator[Broker]:
    """A broker of rqttl, which sees what Celery does."""
    if not TRANSPORT:
        pytest.skip("the test looks into queues of rqttl")
    with rqttl.connect(redis_url) as broker:
        yield broker
