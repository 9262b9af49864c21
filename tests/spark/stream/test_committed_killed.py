"""`afterCommit=purge` and queries that are killed: each letter is in the table once, and the queue ends empty."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from rqttl import Broker
from tests.servers import Server
from tests.spark.drivers import PATIENCE, Drivers, kill
from tests.spark.letters import bury

pytestmark = pytest.mark.once

ROUND = 60
#: The number of kills of a driver of Spark. Each costs the start of a JVM.
SPARK_KILLS = int(os.environ.get("RQTTL_TEST_KILLS", "2"))
#: The steps of Spark's micro-batches without Spark: an offset log, the batch, a commit log.
ENGINE = """
import json, sys
from pathlib import Path
from spark_connectors.options.options import Options
from spark_connectors.stream.reader import RqttlStreamReader
from spark_connectors.versions import ReadMaxRows

url, folder, last = sys.argv[1], Path(sys.argv[2]), sys.argv[3] == "last"

def store(kind, number, value):
    new = folder / kind / f"{number}.json.new"
    new.write_text(json.dumps(value))
    new.rename(new.with_suffix(""))

def load(kind, number):
    file = folder / kind / f"{number}.json"
    return json.loads(file.read_text()) if file.exists() else None

options = {"url": url, "queues": "orders/dead", "afterCommit": "purge"}
reader = RqttlStreamReader(Options.parse("stream", options), ("message_id",))
number = len(list((folder / "commits").glob("*.json")))
start = load("offsets", number - 1) or reader.initialOffset()
while True:
    end = load("offsets", number)
    if end is None:
        end = reader.latestOffset(start, ReadMaxRows(7))
        if end == start:
            if last:
                break
            continue
        store("offsets", number, end)
    batches = [batch for task in reader.partitions(start, end) for batch in reader.read(task)]
    store("table", number, [row["message_id"] for batch in batches for row in batch.to_pylist()])
    store("commits", number, {})
    start, number = end, number + 1
"""
DRIVER = """
import json, sys
from pathlib import Path
from pyspark.sql import SparkSession
import spark_connectors
from spark_connectors.versions import TELLS_START

url, folder, last = sys.argv[1], Path(sys.argv[2]), sys.argv[3] == "last"

def write(frame, number):
    # a table: a repeated batch replaces the rows of its first try
    part = folder / "table" / f"{number}.json.new"
    part.write_text(json.dumps([row.message_id for row in frame.collect()]))
    part.rename(part.with_suffix(""))

session = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
spark_connectors.register(session)
options = {"url": url, "queues": "orders/dead", "maxEntriesPerTrigger": "20", "afterCommit": "purge"}
frame = session.readStream.format("rqttl").options(**options).load()
query = frame.writeStream.option("checkpointLocation", str(folder / "checkpoint")).foreachBatch(write)
# before Spark 4.2 a run has one batch, and leaves its removal to the next one
for _ in range(10 if last and not TELLS_START else 1):
    (query.trigger(availableNow=True) if last else query).start().awaitTermination()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("table", "offsets", "commits"):
        (tmp_path / name).mkdir()
    return tmp_path


@pytest.fixture
def engines(folder: Path) -> Iterator[Drivers]:
    engines = Drivers(folder, ENGINE)
    yield engines
    engines.end()


@pytest.fixture
def drivers(java: None, folder: Path) -> Iterator[Drivers]:
    drivers = Drivers(folder, DRIVER)
    yield drivers
    drivers.end()


def check_kills(drivers: Drivers, broker: Broker, server: Server, folder: Path, kills: int) -> None:
    """Kill the query at changing moments: within a batch, after one, and within the removal that follows it."""
    chance, table = random.Random(14), folder / "table"

    def batches() -> int:
        return len(list(table.glob("*.json")))

    for i in range(kills):
        letters = bury(broker, ROUND, first=i * ROUND)
        enough, purged = batches() + chance.randint(1, 3), letters.stats().purged + chance.randint(1, 20)
        driver = drivers.start(server.url, folder, "more")
        drivers.wait_until(lambda: batches() >= enough or letters.stats().purged >= purged, driver)  # noqa: B023  # at once
        kill(driver)
    assert letters.stats().purged > 0
    drivers.finish(drivers.start(server.url, folder, "last"))

    rows = [row for file in table.glob("*.json") for row in json.loads(file.read_text())]
    assert sorted(rows) == sorted(f"m-{i}" for i in range(kills * ROUND))
    assert letters.peek(10) == []
    assert letters.stats().purged == kills * ROUND


@pytest.mark.slow
@pytest.mark.timeout(16 * PATIENCE)
def test_every_letter_is_in_the_table_once_and_the_queue_is_empty_after_fifteen_kills(
    engines: Drivers, broker: Broker, server: Server, folder: Path
) -> None:
    check_kills(engines, broker, server, folder, 15)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout((SPARK_KILLS + 2) * PATIENCE)
def test_so_it_is_after_kills_of_a_driver_of_spark(
    drivers: Drivers, broker: Broker, server: Server, folder: Path
) -> None:
    check_kills(drivers, broker, server, folder, SPARK_KILLS)
