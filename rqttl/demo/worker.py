"""The other processes of the demo: `python -m rqttl.demo.worker` runs a consumer or the reaper, as its input says.

A consumer is `rqttl worker` in a process of its own, which calls `Agents`. Each process prints one line when it has
begun, and one line of results at the end. At the end of its input it finishes its work and ends, so it also ends when
its parent is killed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import rqttl
from rqttl.demo.names import boarding
from rqttl.reaper import Reaper

#: Variables of the environment for the handler: the ms for a call, and the file for its counts.
HANDLING, TALLIES = "RQTTL_DEMO_HANDLING_MS", "RQTTL_DEMO_TALLIES"


@dataclass(slots=True)
class Tally:
    """The calls of one carrier that one consumer handled or rejected."""

    handled: int = 0
    rejected: int = 0


class Agents:
    """The handler of a consumer: some agents, one for each thread. At the end it writes its counts into a file."""

    def __init__(self) -> None:
        self._seconds = float(os.environ[HANDLING]) / 1000
        self._file = Path(os.environ[TALLIES])
        self._lock = threading.Lock()
        self._tallies: dict[str, Tally] = {}

    def __call__(self, call: rqttl.Delivery) -> None:
        """Handle a call, or reject a cancelled one."""
        time.sleep(self._seconds)  # the work
        cancelled = call.decode()["cancelled"]
        with self._lock:
            tally = self._tallies.setdefault(call.queue, Tally())
            tally.rejected += cancelled
            tally.handled += not cancelled
        if cancelled:
            raise rqttl.Reject("cancelled")

    def close(self) -> None:
        """Write the counts by queue."""
        self._file.write_text(json.dumps({queue: asdict(tally) for queue, tally in self._tallies.items()}))


def arguments(task: Mapping[str, Any]) -> list[str]:
    """Return the arguments of `rqttl worker` for a consumer: all queues have the same weight."""
    queues = [f"{boarding(carrier)}=1" for carrier in task["carriers"]]
    redis = [*(["--url", task["url"]] if task["url"] else []), "--namespace", task["namespace"]]
    handler = ["--call", "rqttl.demo.worker:Agents", "--delivery"]
    return ["worker", *queues, *redis, *handler, "--processes", "1", "--threads", str(task["agents"])]


def tallies(carriers: Sequence[str], file: Path) -> dict[str, Tally]:
    """Return the counts of a consumer by carrier. Without a call the file has none."""
    counts = json.loads(file.read_text()) if file.exists() else {}
    return {carrier: Tally(**counts.get(boarding(carrier), {})) for carrier in carriers}


def consume(task: Mapping[str, Any]) -> dict[str, Tally]:
    """Run `rqttl worker` until the end of the input. Returns its counts by carrier."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "tallies"
        environment = {**os.environ, HANDLING: str(task["handling_ms"]), TALLIES: str(file)}
        with subprocess.Popen(
            [sys.executable, "-m", "rqttl.cli", *arguments(task)], stdin=subprocess.DEVNULL, env=environment
        ) as worker:
            _at_end_of_input(worker.terminate)
            _print("begun")
        if worker.returncode:
            sys.exit(f"rqttl worker ended with exit code {worker.returncode}")
        return tallies(task["carriers"], file)


def _print(value: Any) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def _at_end_of_input(stop: Any) -> None:
    def watch() -> None:
        sys.stdin.read()
        stop()

    threading.Thread(target=watch, daemon=True).start()


def main() -> None:
    """Do the task of the first line of input."""
    task = json.loads(sys.stdin.readline())
    if task["role"] == "consumer":
        _print({carrier: asdict(tally) for carrier, tally in consume(task).items()})
        return
    with rqttl.connect(task["url"], namespace=task["namespace"]) as broker:
        reaper = Reaper(broker)
        _at_end_of_input(reaper.stop)
        _print("begun")
        _print(asdict(reaper.run()))


if __name__ == "__main__":
    main()
