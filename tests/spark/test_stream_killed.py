"""A driver that is killed while it works on a batch: the next one repeats that batch as it was, and goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rqttl import Broker
from tests.servers import Server
from tests.spark.jvm import settings
from tests.spark.letters import bury

PATIENCE = 240

DRIVER = """
import json, os, sys, threading
from pathlib import Path
from pyspark.sql import SparkSession
import spark_connectors

url, folder, hang_in = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])

def write(frame, number):
    rows = [[row.queue, row.sequence, row.id] for row in frame.collect()]
    (folder / "out" / f"{number}.{os.getpid()}.json").write_text(json.dumps(rows))
    if number == hang_in:
        (folder / "hangs").touch()
        threading.Event().wait()

session = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
spark_connectors.register(session)
options = dict(pair.split("=") for pair in sys.argv[4:])
frame = session.readStream.format("rqttl").options(url=url, **options).load()
query = frame.writeStream.option("checkpointLocation", str(folder / "checkpoint")).foreachBatch(write)
query.trigger(availableNow=True).start().awaitTermination()
"""


@pytest.fixture
def drive(java: None, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts a driver in a process group of its own, with its JVM and its workers; what is left of it is killed."""
    (tmp_path / "out").mkdir()
    (tmp_path / "driver.py").write_text(DRIVER)
    running: list[subprocess.Popen[bytes]] = []

    def start(url: str, hang_in: int, **options: object) -> subprocess.Popen[bytes]:
        words = [sys.executable, tmp_path / "driver.py", url, tmp_path, hang_in]
        words += [f"{name}={value}" for name, value in options.items()]
        environment = {**os.environ, **settings(tmp_path / "conf")}
        environment.pop("SPARK_HOME", None)
        running.append(subprocess.Popen([str(word) for word in words], cwd=tmp_path, env=environment,
                                        stdin=subprocess.DEVNULL, start_new_session=True))  # fmt: skip
        return running[-1]

    yield start
    for process in running:
        if process.poll() is None:
            kill(process)


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a driver as the kernel does when memory is short: with its JVM, without a word."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def wait_for(file: Path, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not file.exists():
        assert process.poll() is None, "the driver ended too early"
        assert time.monotonic() < deadline
        threading.Event().wait(0.05)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(2 * PATIENCE)
def test_a_batch_is_repeated_as_it_was_after_its_driver_was_killed(
    drive: Callable[..., subprocess.Popen[bytes]], broker: Broker, server: Server, tmp_path: Path
) -> None:
    for name in "abc":
        bury(broker, 200, into=f"dead.{name}", source=f"source.of.{name}")
    options = {"queuePattern": "dead.#", "maxEntriesPerTrigger": 150}

    driver = drive(server.url, 2, **options)
    wait_for(tmp_path / "hangs", driver)
    kill(driver)
    # what happens meanwhile belongs to later batches: new letters, a new queue; and letters that were read may go
    bury(broker, 60, into="dead.a", source="source.of.a", first=200)
    bury(broker, 60, into="dead.new", source="source.of.new")
    assert drive(server.url, -1, **options, numPartitions=3).wait(PATIENCE) == 0

    written: dict[int, list[list[list[str]]]] = {}
    for file in sorted((tmp_path / "out").iterdir(), key=lambda file: file.stat().st_mtime_ns):
        written.setdefault(int(file.name.split(".")[0]), []).append(json.loads(file.read_text()))
    killed, repeated = written[2]
    assert len(killed) == 150
    assert repeated == killed
    assert {number: len(of) for number, of in written.items()} == {0: 1, 1: 1, 2: 2, 3: 1, 4: 1}
    assert sorted(row[1] for of in written.values() for row in of[-1]) == sorted(
        letter.sequence for name in ("a", "b", "c", "new") for letter in broker.queue(f"dead.{name}").peek(1_000)
    )
