"""`/metrics` of `rqttl metrics`, of a worker and of a reaper, as processes."""

import json
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rqttl import Broker, Message
from rqttl.metrics import QUEUES, REAPER, WORKER
from tests.cli.conftest import Run, run
from tests.cli.processes import command, environment
from tests.cli.test_errors import failed
from tests.metrics.scrapes import fetch, parse, types_in, value
from tests.metrics.test_queues import names_of
from tests.ports import free_port
from tests.servers import Server
from tests.waiting import PATIENCE, until
from tests.worker.conftest import spawn
from tests.worker.processes import WorkerProcess

pytestmark = pytest.mark.once

__all__ = ["run", "spawn"]  # fixtures

Start = Callable[..., "Program"]


class Program:
    """A command that serves. `port` is in its first line on stderr that names one."""

    def __init__(self, folder: Path, url: str, *arguments: str) -> None:
        self.errors = folder / f"stderr-{arguments[0]}"
        with self.errors.open("w") as errors:
            self.process = subprocess.Popen(
                command(*arguments), env=environment(RQTTL_URL=url), stderr=errors, stdout=subprocess.DEVNULL
            )

    @property
    def port(self) -> int:
        until(lambda: self._place() or self.process.poll() is not None)
        place = self._place()
        assert place, self.errors.read_text()
        return int(place[1])

    def _place(self) -> re.Match[str] | None:
        return re.search(r"on 127\.0\.0\.1:(\d+)", self.errors.read_text())

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(PATIENCE)


@pytest.fixture
def start(tmp_path: Path, redis_url: str) -> Iterator[Start]:
    programs: list[Program] = []

    def begin(*arguments: str, url: str = redis_url) -> Program:
        programs.append(Program(tmp_path, url, *arguments))
        return programs[-1]

    yield begin
    for program in programs:
        program.process.kill()
        program.process.wait()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_queues_are_served_until_a_signal(start: Start, broker: Broker, number: int) -> None:
    broker.declare_queue("orders.eu").enqueue(b"x")
    broker.declare_queue("mails")
    program = start("metrics", "--listen", "127.0.0.1:0", "--queues", "orders.*")

    status, content_type, text = fetch(program.port)

    assert (status, content_type) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert types_in(text) == names_of(QUEUES)
    assert value(parse(text), "rqttl_queue_messages", queue="orders.eu", state="ready") == 1
    assert "mails" not in text
    assert "/metrics" in fetch(program.port, "/")[2]
    assert program.stop(number) == 0


def test_once_prints_the_metrics_and_json_prints_the_samples(run: Run, broker: Broker) -> None:
    broker.declare_queue("q").enqueue(b"x")

    text, document = run("metrics", "--once").stdout, json.loads(run("metrics", "--once", "--json").stdout)

    assert types_in(text) == names_of(QUEUES)
    labels = {"queue": "q", "state": "ready"}
    assert {"metric": "rqttl_queue_messages", "labels": labels, "value": 1} in document


@pytest.mark.parametrize(
    "words, line",
    [
        (["--listen", "nowhere"], "listen: expected HOST:PORT, got 'nowhere' [invalid_input]"),
        (["--json"], "--json is for --once"),
    ],
)
def test_wrong_usage_of_the_exporter_is_named(run: Run, words: list[str], line: str) -> None:
    assert failed(run("metrics", *words), 2).startswith(line)


def test_an_address_in_use_is_named(start: Start, run: Run) -> None:
    port = start("metrics", "--listen", "127.0.0.1:0").port

    assert f"cannot listen on 127.0.0.1:{port}" in failed(run("metrics", "--listen", f"127.0.0.1:{port}"), 2)


def test_a_worker_serves_its_counters_and_those_of_its_reaper(
    spawn: Callable[..., WorkerProcess], broker: Broker
) -> None:
    port, queue = free_port(), broker.declare_queue("orders", lease="1m")
    worker = spawn("orders", "--processes", "1", "--reaper", "--health", f"127.0.0.1:{port}", call="plain")
    queue.enqueue_many([b"x"] * 3)
    worker.until_journal("done", 3)
    until(lambda: queue.stats(sweep=False).acked == 3)

    text = fetch(port)[2]

    samples = parse(text)
    assert types_in(text) == names_of((*WORKER, *REAPER))
    assert value(samples, "rqttl_worker_messages_total", queue="orders", outcome="ack") == 3
    assert value(samples, "rqttl_worker_handling_seconds_count", queue="orders") == 3
    assert value(samples, "rqttl_worker_waiting_seconds_count", queue="orders") == 3
    assert value(samples, "rqttl_worker_waiting_seconds_bucket", queue="orders", le="+Inf") == 3
    assert value(samples, "rqttl_worker_running", queue="orders") == 0
    assert value(samples, "rqttl_worker_slots") == 1
    assert value(samples, "rqttl_worker_last_claim_timestamp_seconds") > 1_700_000_000
    assert worker.stop() == 0


def test_a_reaper_serves_health_and_counters(start: Start, broker: Broker) -> None:
    queue = broker.declare_queue("q")
    queue.enqueue(Message(b"x", ttl="100ms"))
    queue.enqueue(b"y", delay="100ms")
    program = start("reaper", "--health", "127.0.0.1:0")
    port = program.port
    until(lambda: fetch(port, "/readyz")[0] == 200)
    until(lambda: value(parse(fetch(port)[2]), "rqttl_reaper_swept_total", duty="expired") == 1)
    until(lambda: value(parse(fetch(port)[2]), "rqttl_reaper_swept_total", duty="activated") == 1)

    text = fetch(port)[2]

    samples = parse(text)
    assert types_in(text) == names_of(REAPER)
    assert value(samples, "rqttl_reaper_sweeps_total") >= 1
    assert value(samples, "rqttl_reaper_queues") == 1
    assert value(samples, "rqttl_reaper_failures_total") == 0
    assert value(samples, "rqttl_reaper_last_pass_timestamp_seconds") > 1_700_000_000
    assert fetch(port, "/livez") == (200, "text/plain; charset=utf-8", "ok\n")
    assert program.stop() == 0


def test_a_reaper_without_redis_is_alive_and_not_ready(start: Start, start_server: Callable[..., Server]) -> None:
    server = start_server()
    program = start("reaper", "--health", "127.0.0.1:0", url=server.url)
    port = program.port
    until(lambda: fetch(port, "/readyz")[0] == 200)

    server.kill()

    until(lambda: fetch(port, "/readyz")[::2] == (503, "Redis does not answer\n"))
    assert fetch(port, "/livez")[0] == 200
    server.start()
    until(lambda: fetch(port, "/readyz")[0] == 200)
