"""A real Prometheus scrapes the exporter, a worker and a reaper: each panel of the dashboard shows data."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
import yaml

from rqttl import Broker, Message
from tests.metrics.test_deploy import ALERTS, targets
from tests.metrics.test_programs import Start, spawn, start
from tests.ports import free_port
from tests.waiting import until
from tests.worker.processes import WorkerProcess

__all__ = ["spawn", "start"]  # fixtures

PROMETHEUS = shutil.which("prometheus")
#: The values of the variables of the dashboard.
VARIABLES = {"$__rate_interval": "1m", "$job": ".*", "$instance": ".*", "$queue": ".*"}

pytestmark = [
    pytest.mark.once,
    pytest.mark.slow,
    pytest.mark.skipif(PROMETHEUS is None, reason="prometheus is not installed (Debian: apt-get install prometheus)"),
]


@contextmanager
def prometheus(folder: Path, ports: dict[str, int]) -> Iterator[Callable[[str], Any]]:
    """Run Prometheus with a target for each job, and yield a function that asks its interface."""
    jobs = [{"job_name": name, "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]} for name, port in ports.items()]
    every = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    configuration = {"global": every, "rule_files": [str(ALERTS)], "scrape_configs": jobs}
    (folder / "prometheus.yml").write_text(yaml.safe_dump(configuration))
    port = free_port()

    def ask(path: str) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/{path}", timeout=60) as reply:
            return json.load(reply)["data"]

    def answers() -> bool:
        try:
            return bool(ask("status/buildinfo"))
        except OSError:
            assert process.poll() is None, (folder / "prometheus.log").read_text()
            return False

    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            [
                "prometheus",
                "--config.file",
                "prometheus.yml",
                "--storage.tsdb.path",
                "data",
                "--web.listen-address",
                f"127.0.0.1:{port}",
            ],
            cwd=folder,
            stdout=log,
            stderr=log,
        )
    try:
        until(answers)
        yield ask
    finally:
        process.kill()
        process.wait()


def health_of(targets: Iterable[dict[str, Any]]) -> dict[str, str]:
    """The health of each job at its last scrape, which may have been a slow one."""
    return {target["labels"]["job"]: target["health"] for target in targets}


def test_each_panel_of_the_dashboard_shows_data_of_a_real_prometheus(
    tmp_path: Path, start: Start, spawn: Callable[..., WorkerProcess], broker: Broker
) -> None:
    queue = broker.declare_queue("orders", lease="1m", max_length=1000, max_length_bytes=100_000)
    short = broker.declare_queue("short")
    health = free_port()
    ports = {
        "rqttl": start("metrics", "--listen", "127.0.0.1:0").port,
        "rqttl-reapers": start("reaper", "--health", "127.0.0.1:0").port,
        "rqttl-workers": health,
    }
    spawn("orders", "--processes", "1", "--health", f"127.0.0.1:{health}", call="plain")
    with prometheus(tmp_path, ports) as ask:

        def missing() -> list[str]:
            queue.enqueue(b"x")
            short.enqueue(Message(b"x", ttl="1ms"))  # work for the reaper
            empty = []
            for title, text, _ in targets():
                expression = reduce(lambda words, item: words.replace(*item), VARIABLES.items(), text)
                series = ask(f"query?{urllib.parse.urlencode({'query': expression})}")["result"]
                if not any(sample["value"][1] != "NaN" for sample in series):
                    empty.append(f"{title}: {expression}")
            return empty

        try:
            until(lambda: missing() == [])
        except TimeoutError:
            assert missing() == []
        until(lambda: health_of(ask("targets")["activeTargets"]) == dict.fromkeys(ports, "up"))
        until(lambda: "RqttlDown" not in {alert["labels"]["alertname"] for alert in ask("alerts")["alerts"]})
        rules = [rule for group in ask("rules")["groups"] for rule in group["rules"]]
        assert {rule["health"] for rule in rules} <= {"ok", "unknown"}
