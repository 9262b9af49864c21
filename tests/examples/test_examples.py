"""Each file of `examples/`, as its first line says that it is run."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from rqttl import Broker
from tests.ports import free_port
from tests.repository import ROOT
from tests.waiting import PATIENCE, until

pytestmark = [pytest.mark.slow, pytest.mark.once]

#: Examples that run where their library is installed.
ELSEWHERE = {"celery_app": "tests/celery/test_workers.py", "django_project": "tests/django/test_tasks.py"}


@pytest.fixture
def run(redis_url: str, tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    """Starts `python` in the project with this Redis; its output goes to a file."""

    def start(*arguments: str) -> subprocess.Popen[str]:
        environment = {
            **os.environ,
            "RQTTL_URL": redis_url,
            "PYTHONUNBUFFERED": "1",
            "PYTHONPATH": str(ROOT),
            "PYSPARK_PYTHON": sys.executable,
        }
        with (tmp_path / "out").open("a") as out:
            return subprocess.Popen(
                [sys.executable, *arguments],
                cwd=ROOT,
                env=environment,
                stdout=out,
                stderr=out,
                text=True,
                start_new_session=True,
            )

    return start


@contextmanager
def ended(process: subprocess.Popen[str]) -> Iterator[None]:
    """A context in which a program runs; SIGTERM ends it, and all that it started."""
    try:
        yield
        process.terminate()
        process.wait(PATIENCE)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_dramatiq(run: Callable[..., subprocess.Popen[str]], broker: Broker) -> None:
    assert run("-m", "examples.dramatiq_broker").wait(PATIENCE) == 0
    with ended(run("-m", "dramatiq", "examples.dramatiq_broker", "--processes", "1", "--threads", "2")):
        until(lambda: (stats := broker.stats()).get("default/dead") and stats["default/dead"].ready == 1)
        # its main process may lose what a worker prints at once: all is done but the last attempt, which died
        until(lambda: broker.queue("default").stats().acked == 3)

    [letter] = broker.queue("default/dead").peek()
    assert letter.headers == {"actor": "ship"}
    assert letter.deaths[0].description == "ValueError('no such item')"
    assert json.loads(letter.body)["options"]["retries"] == 2
    assert broker.queue("default").stats().depth == 0


def test_taskiq(run: Callable[..., subprocess.Popen[str]], broker: Broker, tmp_path: Path) -> None:
    assert run("-m", "examples.taskiq_broker").wait(PATIENCE) == 0
    with ended(run("-m", "taskiq", "worker", "examples.taskiq_broker:broker", "--workers", "1")):
        until(lambda: "shipped item 7" in (tmp_path / "out").read_text())
        until(lambda: "shipped item 8" in (tmp_path / "out").read_text())
        until(lambda: broker.queue("taskiq").stats().depth == 0)


def test_fastapi(run: Callable[..., subprocess.Popen[str]], broker: Broker) -> None:
    port = free_port()
    with ended(run("-m", "uvicorn", "examples.fastapi_service:api", "--port", str(port))):

        def ask(path: str, data: bytes | None = None) -> str:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", data) as answer:  # our own
                return str(answer.read().decode())

        def is_up() -> bool:
            with suppress(OSError):
                return "title" in ask("/queues/")
            time.sleep(0.05)
            return False

        until(is_up)
        assert json.loads(ask("/orders/7", b""))["id"]
        until(lambda: broker.queue("orders").stats().acked == 1)
        assert "orders" in ask("/queues/queue?name=orders")


@pytest.mark.spark
def test_spark(run: Callable[..., subprocess.Popen[str]], broker: Broker, redis_url: str, tmp_path: Path) -> None:
    queue = broker.declare_queue("orders", dead_letter="{queue}/dead")
    queue.enqueue_many(["a", "b"])
    for delivery in queue.receive_many(2):
        delivery.reject()

    assert run("examples/spark_dead_letters.py", redis_url, "orders/dead").wait(PATIENCE) == 0, (
        tmp_path / "out"
    ).read_text()
    assert "rejected: 2" in (tmp_path / "out").read_text()


def test_each_example_has_a_test_and_a_place_in_the_gallery() -> None:
    examples = {path.relative_to(ROOT / "examples").parts[0] for path in (ROOT / "examples").rglob("*.py")}
    tests = {name: Path(ROOT, ELSEWHERE.get(name.removesuffix(".py"), __file__)).read_text() for name in examples}
    linked = re.findall(r"^\| \[([\w.]+)\]\(\1[)/]", (ROOT / "examples/README.md").read_text(), re.MULTILINE)

    assert sorted(linked) == sorted(examples)
    assert [
        name for name, text in tests.items() if not re.search(rf"examples[./]{name.removesuffix('.py')}\b", text)
    ] == []
