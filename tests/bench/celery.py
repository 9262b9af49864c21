"""`make compare-celery`: the transport beside the Redis transport of kombu: outcomes of tests, and rates with goals."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.celery.conftest import TRANSPORT, Worker
from tests.ports import free_port
from tests.repository import ROOT
from tests.servers import Server, server_binary
from tests.waiting import until

TRANSPORTS = {"rqttl": TRANSPORT, "kombu": ""}


@contextmanager
def stage(name: str, **variables: str) -> Iterator[tuple[redis.Redis, dict[str, str]]]:
    """A server of its own for one transport, and the variables of its workers."""
    port = free_port()
    server, url = Server(server_binary("7.0"), port=port, bind="127.0.0.1"), f"redis://127.0.0.1:{port}"
    own = {"BROKER": f"{url}/0", "BACKEND": f"{url}/1", "TRANSPORT": TRANSPORTS[name], "NOTES": os.devnull}
    try:
        with server.client() as client:
            yield client, {**os.environ, **own, **variables}
    finally:
        server.remove()


def send(environment: dict[str, str], count: int, **options: Any) -> float:
    """Tasks sent in a second, by a process of its own."""
    code = (
        "import time; from tests.celery.app import app; t = app.tasks['tests.celery.app.noop']; t.delay(); "
        f"s = time.perf_counter(); [t.apply_async(**{options!r}) for _ in range({count})]; "
        "print(time.perf_counter() - s)"
    )
    told = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return count / float(told.stdout)


def work(client: redis.Redis, environment: dict[str, str]) -> float:
    """Tasks done in a second by a worker with two children."""

    def left() -> int:
        return int(client.xlen("rqttl:{celery}:log") + client.llen("celery"))

    with tempfile.TemporaryDirectory() as folder:
        most = left()
        worker = Worker(Path(folder, "log"), environment, "--concurrency", "2", "--loglevel", "ERROR")
        try:
            until(lambda: left() < most)
            before, began = left(), time.perf_counter()
            until(lambda: left() <= most // 20)
            return (before - left()) / (time.perf_counter() - began)
        finally:
            worker.kill()


def idle(client: redis.Redis, environment: dict[str, str], seconds: int = 30) -> tuple[float, int]:
    """The commands that an idle worker sends in a minute, and its connections."""
    with tempfile.TemporaryDirectory() as folder:
        worker = Worker(Path(folder, "log"), environment, "--concurrency", "2").ready()
        try:
            time.sleep(5)
            sent, connections = 0, len(client.client_list()) - 1
            with client.monitor() as monitor:
                ends = time.monotonic() + seconds
                while time.monotonic() < ends:  # a worker sends its heartbeat each 2 s
                    sent += monitor.next_command()["client_type"] != "lua"
            return sent * 60 / seconds, connections
        finally:
            worker.kill()


def memory(client: redis.Redis, environment: dict[str, str], count: int = 10_000) -> float:
    """The megabytes that countdowns cost a worker."""
    with tempfile.TemporaryDirectory() as folder:
        worker = Worker(Path(folder, "log"), environment, "--concurrency", "1").ready()

        def resident() -> float:
            status = Path(f"/proc/{worker.process.pid}/status").read_text()
            return int(status.partition("VmRSS:")[2].split()[0]) / 1024

        try:
            before = resident()
            send(environment, count, countdown=600)
            time.sleep(10)
            return resident() - before
        finally:
            worker.kill()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Write an outcome and its figures down: this module is a plugin of pytest, too."""
    if report.when == "call" or not report.passed:
        why = getattr(getattr(report.longrepr, "reprcrash", None), "message", "")
        with Path(os.environ["OUTCOMES"]).open("a") as lines:
            lines.write(json.dumps([report.location[2], report.outcome, report.user_properties, why]) + "\n")


def outcomes(name: str) -> dict[tuple[str, str], object]:
    """What the tests with workers say of a transport: by test, the outcome (as `""`) and the figures."""
    with tempfile.TemporaryDirectory() as folder:
        told = Path(folder, "outcomes")
        own = {"RQTTL_TEST_TRANSPORT": TRANSPORTS[name], "RQTTL_TEST_KILLS": "15", "RQTTL_TEST_REDIS": "7.0"}
        tests = ["tests/celery/test_workers.py", "-k", "not guide and not example and not cluster", "-o", "timeout=120"]
        command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.bench.celery", *tests]
        environment = {**os.environ, **own, "OUTCOMES": str(told)}
        subprocess.run(command, cwd=ROOT, env=environment, stdout=sys.stderr, check=False)
        found: dict[tuple[str, str], object] = {}
        for line in told.read_text().splitlines():
            test, outcome, figures, why = json.loads(line)
            row = test.removeprefix("test_").replace("_", " ")
            found[row, ""] = {"passed": "yes", "failed": "NO", "skipped": "-"}[outcome]
            found |= {(row, figure): value for figure, value in figures}
            if why:
                found[row, "why not"] = why.partition("\n")[0]
        return found


def main(count: int) -> int:
    """Measure both, and print tables. Returns 1 if a test fails with rqttl, or a goal is missed."""
    said = {name: outcomes(name) for name in TRANSPORTS}
    print(f"{'':82}{'rqttl':>8}  kombu")
    for test, figure in sorted({*said["rqttl"], *said["kombu"]}):
        told = [said[name].get((test, figure), "") for name in TRANSPORTS]
        print(f"{'    ' + figure if figure else test:82}{told[0]:>8}  {told[1]}")
    found: dict[str, dict[str, float]] = {}
    for name in TRANSPORTS:
        row = found[name] = {}
        with stage(name) as (client, environment):
            used = client.info("memory")["used_memory"]
            row["sent/s"] = send(environment, count)
            row["bytes"] = (client.info("memory")["used_memory"] - used) / count
        for multiplier in (4, 64):
            with stage(name, MULTIPLIER=str(multiplier)) as (client, environment):
                send(environment, count)
                row[f"done/s, multiplier {multiplier}"] = work(client, environment)
        with stage(name, ACKS_LATE="1") as (client, environment):
            send(environment, count)
            row["done/s, acks late"] = work(client, environment)
        with stage(name) as (client, environment):
            row["idle commands/min"], row["connections"] = idle(client, environment)
        with stage(name) as (client, environment):
            row["MB of 10,000 countdowns"] = memory(client, environment)
    print(f"{'':26}{'rqttl':>10}{'kombu':>10}{'ratio':>8}")
    for key, value in found["rqttl"].items():
        other = found["kombu"][key]
        print(f"{key:26}{value:>10,.0f}{other:>10,.0f}{value / other if other else 0:>8.2f}")
    ratio = {key: value / max(found["kombu"][key], 1) for key, value in found["rqttl"].items()}
    measured = found["rqttl"]
    goals = {
        "sends at 0.75 of its rate or more": ratio["sent/s"] >= 0.75,
        "does 2 times as many tasks": ratio["done/s, multiplier 4"] >= 2,
        "does 4 times as many with a multiplier of 64": ratio["done/s, multiplier 64"] >= 4,
        "a waiting task takes 700 bytes or less": measured["bytes"] <= 700,
        "10,000 countdowns cost a worker less than 5 MB": measured["MB of 10,000 countdowns"] < 5,
        "an idle worker makes 60 commands a minute or less": measured["idle commands/min"] <= 60,
    }
    print(*(f"{'met' if met else 'MISSED'}: {goal}" for goal, met in goals.items()), sep="\n")
    return int("NO" in said["rqttl"].values() or not all(goals.values()))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000))
