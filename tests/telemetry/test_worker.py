"""Traces of real `rqttl worker` processes, with handlers in children and in the process of the worker."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rqttl import Broker
from rqttl.telemetry import names
from tests.telemetry.recording import Recording, place

pytestmark = pytest.mark.once

ROOT = Path(__file__).parents[2]
#: The module that Python imports at its start: `opentelemetry-instrument` brings one, too.
SITE = """
from tests.telemetry.handlers import configure
from rqttl.telemetry.instrumentor import RqttlInstrumentor
configure()
RqttlInstrumentor().instrument()
"""


def run_worker(url: str, home: Path, how: str, *arguments: str, call: str = "work") -> None:
    """Run `rqttl worker` until the queue `orders` is empty. `how` is the way in which telemetry is configured."""
    (home / "site").mkdir()
    if how == "start":
        (home / "site" / "sitecustomize.py").write_text(SITE)
    path = f"{home / 'site'}{os.pathsep}{ROOT}"
    environment = {
        **os.environ,
        "RQTTL_URL": url,
        "RQTTL_TEST_HOME": str(home),
        "RQTTL_TEST_TELEMETRY": how,
        "PYTHONPATH": path,
    }
    command = [
        sys.executable,
        "-m",
        "rqttl.cli",
        "worker",
        "orders",
        "--burst",
        "--call",
        f"tests.telemetry.handlers:{call}",
        *arguments,
    ]
    subprocess.run(command, env=environment, cwd=home, check=True, timeout=100)


def spans(home: Path) -> dict[str, list[tuple[str, dict[str, Any]]]]:
    """The spans of all processes by name, each with the name of its file."""
    found: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for path in home.glob("spans-*"):
        for line in path.read_text().splitlines():
            span = json.loads(line)
            found.setdefault(span["name"], []).append((path.name, span))
    return found


def ids(span: dict[str, Any]) -> tuple[int, int]:
    """The ids of the trace and of a span in JSON."""
    return int(span["context"]["trace_id"], 16), int(span["context"]["span_id"], 16)


def parent(span: dict[str, Any]) -> tuple[int, int]:
    """The ids of the trace and of the parent of a span in JSON."""
    return int(span["context"]["trace_id"], 16), int(span["parent_id"] or "0", 16)


@pytest.mark.parametrize(
    "how, call, arguments",
    [
        ("module", "work", ["--processes", "2"]),
        ("start", "work", ["--processes", "1", "--threads", "2"]),
        ("start", "work_async", ["--processes", "1"]),
        ("start", "work", ["--processes", "0"]),
    ],
    ids=["configured by the module", "configured at the start", "coroutines", "in the worker"],
)
def test_a_span_of_a_handler_in_a_child_belongs_to_the_trace_of_its_sender(
    broker: Broker, redis_url: str, recording: Recording, tmp_path: Path, how: str, call: str, arguments: list[str]
) -> None:
    recording.instrument(broker)
    queue = broker.declare_queue("orders")
    for number in range(4):
        queue.enqueue(b"%d" % number)
    run_worker(redis_url, tmp_path, how, *arguments, call=call)
    sent = {place(span) for span in recording.spans("enqueue orders")}
    found = spans(tmp_path)
    process = {ids(span): (file, span) for file, span in found["process orders"]}
    assert {parent(span) for _, span in process.values()} == sent
    assert len(process) == 4
    assert sorted(parent(span) for _, span in found["work"]) == sorted(process)
    for file, span in found["work"]:
        assert file == process[parent(span)][0]
    links = [
        (int(link["context"]["trace_id"], 16), int(link["context"]["span_id"], 16))
        for _, span in found.get("receive orders", [])
        for link in span["links"]
    ]
    assert set(links) == (sent if how == "start" else set())  # the module is not imported in the worker itself
    in_children = "0" not in arguments
    received_in = {file for file, _ in found.get("receive orders", [])}
    assert received_in.isdisjoint(file for file, _ in process.values()) is (in_children or not received_in)


def test_a_failed_handler_in_a_child_has_its_error(
    broker: Broker, redis_url: str, recording: Recording, tmp_path: Path
) -> None:
    recording.instrument(broker)
    dead = broker.declare_queue("dead")
    queue = broker.declare_queue("orders", dead_letter="dead", max_deliveries=1)
    queue.enqueue(b"bad")
    run_worker(redis_url, tmp_path, "module", "--processes", "1")
    assert dead.redrive() == 1
    delivery = queue.receive()
    assert delivery is not None
    with delivery:
        pass
    ((_, failed),) = spans(tmp_path)["process orders"]
    done = recording.one("process orders")
    assert failed["attributes"][names.ERROR_TYPE] == "ValueError"
    assert failed["status"] == {"status_code": "ERROR"}
    assert parent(failed) == place(recording.one("enqueue orders"))
    assert done.context.trace_id == ids(failed)[0]
