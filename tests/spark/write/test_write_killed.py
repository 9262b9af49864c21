"""A driver that is killed in the midst of writes: the next one stores what is missing, and nothing twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rqttl import Broker, Queue
from tests.servers import Server
from tests.spark.drivers import PATIENCE, Drivers, kill
from tests.spark.letters import bury
from tests.spark.writing import ids

ROWS = 40_000
#: The rows that a micro-batch has at most.
FIRST = 30_000

WAYS = "batch", "stream"
#: It writes a batch and a stream at a time. Each task gives rows in pieces of 500; where there is a file `hang`, none
#: after something was written.
DRIVER = """
import sys, threading
from pathlib import Path
from pyspark.sql import SparkSession
import rqttl, spark_connectors
from spark_connectors.versions import TELLS_START

url, folder, first = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
session = SparkSession.builder.master("local[4]").config("spark.ui.enabled", "false").getOrCreate()
session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "500")
spark_connectors.register(session)


def write(way):
    def slow(batches):
        with rqttl.connect(url) as broker:
            for batch in batches:
                while (folder / "hang").exists() and broker.queue(way).stats().ready:
                    threading.Event().wait(0.1)
                yield batch

    source = session.readStream if way == "stream" else session.read
    limits = {"maxEntriesPerTrigger": first} if way == "stream" else {}
    letters = source.format("rqttl").options(url=url, queues="orders/dead", numPartitions="2", **limits).load()
    rows = letters.select("message_id", "body", "headers")
    rows = rows.mapInArrow(slow, rows.schema)
    into = {"url": url, "queue": way}
    if way == "stream":
        writing = rows.writeStream.format("rqttl").options(**into)
        writing = writing.option("checkpointLocation", str(folder / "checkpoint"))
        return writing.trigger(availableNow=True).start()
    rows.write.format("rqttl").mode("append").options(**into).save()


query = write("stream")
write("batch")
query.awaitTermination()
if not TELLS_START:
    # a run has one batch
    write("stream").awaitTermination()
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
def test_writes_whose_driver_was_killed_are_made_up_for_and_store_nothing_twice(
    drivers: Drivers, broker: Broker, server: Server, tmp_path: Path
) -> None:
    bury(broker, ROWS)
    copies = [broker.declare_queue(way) for way in WAYS]
    (tmp_path / "hang").touch()
    words = [server.url, tmp_path, FIRST]

    driver = drivers.start(*words)
    drivers.wait_until(lambda: all(queue.stats().ready for queue in copies), driver)
    kill(driver)
    before = [queue.stats().ready for queue in copies]
    (tmp_path / "hang").unlink()
    drivers.finish(drivers.start(*words))

    for queue, number in zip(copies, before, strict=True):
        assert 0 < number < FIRST
        assert numbers(queue) == list(range(ROWS))
        assert queue.stats().enqueued == ROWS
    assert sorted(file.name for file in (tmp_path / "checkpoint" / "commits").glob("[0-9]*")) == ["0", "1"]
