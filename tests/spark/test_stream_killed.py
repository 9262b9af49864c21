"""A driver that is killed while it works on a batch: the next one repeats that batch as it was, and goes on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from rqttl import Broker
from tests.servers import Server
from tests.spark.drivers import PATIENCE, Drivers, kill
from tests.spark.letters import bury

DRIVER = """
import json, os, sys, threading
from pathlib import Path
from pyspark.sql import SparkSession
import spark_connectors

url, folder, hang_in = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])

def write(frame, number):
    rows = [[row.queue, row.sequence, row.message_id] for row in frame.collect()]
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
def drivers(java: None, tmp_path: Path) -> Iterator[Drivers]:
    (tmp_path / "out").mkdir()
    drivers = Drivers(tmp_path, DRIVER)
    yield drivers
    drivers.end()


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(2 * PATIENCE)
def test_a_batch_is_repeated_as_it_was_after_its_driver_was_killed(
    drivers: Drivers, broker: Broker, server: Server, tmp_path: Path
) -> None:
    for name in "abc":
        bury(broker, 200, into=f"dead.{name}", source=f"source.of.{name}")
    options = ["queuePattern=dead.#", "maxEntriesPerTrigger=150"]

    driver = drivers.start(server.url, tmp_path, 2, *options)
    drivers.wait_until((tmp_path / "hangs").exists, driver)
    kill(driver)
    # what happens meanwhile belongs to later batches: new letters, a new queue; and letters that were read may go
    bury(broker, 60, into="dead.a", source="source.of.a", first=200)
    bury(broker, 60, into="dead.new", source="source.of.new")
    drivers.finish(drivers.start(server.url, tmp_path, -1, *options, "numPartitions=3"))

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
