"""A driver that is killed in the midst of a write: the next one stores what is missing, and nothing twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rqttl import Broker, Queue
from tests.servers import Server
from tests.spark.drivers import PATIENCE, Drivers, kill, wait_until
from tests.spark.letters import bury
from tests.spark.writing import ids

ROWS = 40_000
#: The rows that a micro-batch has at most.
FIRST = 30_000

#: Each task gives rows in pieces of 500; where there is a file `hang`, none after something was written.
DRIVER = """
import sys, threading
from pathlib import Path
from pyspark.sql import SparkSession
import rqttl, spark_connectors

way, url, folder, first = sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4]


def slow(batches):
    with rqttl.connect(url) as broker:
        for batch in batches:
            while (folder / "hang").exists() and broker.queue("copies").stats().ready:
                threading.Event().wait(0.1)
            yield batch


session = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "500")
spark_connectors.register(session)
source = session.readStream if way == "stream" else session.read
limits = {"maxEntriesPerTrigger": first} if way == "stream" else {}
letters = source.format("rqttl").options(url=url, queues="orders/dead", numPartitions="2", **limits).load()
rows = letters.select("message_id", "body", "headers")
rows = rows.mapInArrow(slow, rows.schema)
into = {"url": url, "queue": "copies"}
if way == "stream":
    writing = rows.writeStream.format("rqttl").options(**into)
    writing = writing.option("checkpointLocation", str(folder / "checkpoint"))
    writing.trigger(availableNow=True).start().awaitTermination()
else:
    rows.write.format("rqttl").mode("append").options(**into).save()
"""


@pytest.fixture
def drivers(java: None, tmp_path: Path) -> Iterator[Drivers]:
    drivers = Drivers(tmp_path, DRIVER)
    yield drivers
    drivers.end()


def numbers(queue: Queue) -> list[int]:
    return sorted(int(id.removeprefix("m-")) for id in ids(queue))


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(3 * PATIENCE)
@pytest.mark.parametrize("way", ["batch", "stream"])
def test_a_write_whose_driver_was_killed_is_made_up_for_and_stores_nothing_twice(
    drivers: Drivers, way: str, broker: Broker, server: Server, tmp_path: Path
) -> None:
    bury(broker, ROWS)
    copies = broker.declare_queue("copies")
    (tmp_path / "hang").touch()
    words = [way, server.url, tmp_path, FIRST]

    driver = drivers.start(*words)
    wait_until(lambda: copies.stats().ready > 0, driver)
    kill(driver)
    before = copies.stats().ready
    (tmp_path / "hang").unlink()
    assert drivers.start(*words).wait(PATIENCE) == 0

    assert 0 < before < FIRST
    assert numbers(copies) == list(range(ROWS))
    assert copies.stats().enqueued == ROWS
    if way == "stream":
        assert sorted(file.name for file in (tmp_path / "checkpoint" / "commits").glob("[0-9]*")) == ["0", "1"]
