"""Drivers that are killed with their JVM, amidst writes and `afterCommit=purge`: nothing is lost or stored twice."""

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rqttl import Broker
from tests.servers import Server
from tests.spark.jvm import STARTED_TOO_LATE, end_of, settings
from tests.spark.letters import bury
from tests.spark.writing import ids
from tests.waiting import until

#: The longest that anything of a driver may take.
PATIENCE = 500
#: The number of kills of a query. Each costs the start of a JVM.
KILLS = int(os.environ.get("RQTTL_TEST_KILLS", "2"))

pytestmark = [pytest.mark.once, pytest.mark.slow, pytest.mark.spark]


class Drivers:
    """Runs programs in process groups of their own; `end` ends those that are left.

    Errors that they and their JVMs tell are in the message of a failing test: a rule for reruns looks there.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._log = folder, folder / "driver.log"
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, program: str, *arguments: object) -> subprocess.Popen[bytes]:
        """Start the text of a program, with settings of its own."""
        environment = {**os.environ, **settings(self._folder)}
        words = [sys.executable, "-c", program, *map(str, arguments)]
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                words, cwd=self._folder, env=environment, stdin=subprocess.DEVNULL, stderr=log, start_new_session=True
            )
        self._started.append(process)
        return process

    def kill_once(self, seen: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
        """Kill a driver and its JVM as soon as `seen` is true. Spark must not have given up a query before."""

        def is_there() -> bool:
            if seen():
                return True
            runs, errors = process.poll() is None, self._errors()
            assert runs, f"the driver ended too early:\n{errors}"
            assert STARTED_TOO_LATE not in errors, errors
            return False

        until(is_there, PATIENCE)
        kill(process)

    def finish(self, process: subprocess.Popen[bytes]) -> None:
        """Wait for the end of a driver that has nothing left to do."""
        assert process.wait(PATIENCE) == 0, self._errors()

    def end(self) -> None:
        for process in self._started:
            if process.poll() is None:
                kill(process)

    def _errors(self) -> str:
        told = self._log.read_text(errors="replace")
        return end_of(told, told)


def kill(process: subprocess.Popen[bytes]) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.fixture
def drivers(java: None, tmp_path: Path) -> Iterator[Drivers]:
    drivers = Drivers(tmp_path)
    yield drivers
    drivers.end()


PURGING = """
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


@pytest.mark.timeout((KILLS + 2) * PATIENCE)
def test_after_kills_of_a_purging_query_every_letter_is_in_the_table_once_and_the_queue_is_empty(
    drivers: Drivers, broker: Broker, server: Server, tmp_path: Path
) -> None:
    chance, table = random.Random(14), tmp_path / "table"
    table.mkdir()

    def batches() -> int:
        return len(list(table.glob("*.json")))

    for i in range(KILLS):
        letters = bury(broker, 60, first=i * 60)
        # within a batch, after one, or within the removal that follows it
        enough, purged = batches() + chance.randint(1, 3), letters.stats().purged + chance.randint(1, 20)
        driver = drivers.start(PURGING, server.url, tmp_path, "more")
        drivers.kill_once(lambda: batches() >= enough or letters.stats().purged >= purged, driver)  # noqa: B023  # at once
    assert letters.stats().purged > 0
    drivers.finish(drivers.start(PURGING, server.url, tmp_path, "last"))

    rows = [row for file in table.glob("*.json") for row in json.loads(file.read_text())]
    assert sorted(rows) == sorted(f"m-{i}" for i in range(KILLS * 60))
    assert letters.peek(10) == []
    assert letters.stats().purged == KILLS * 60


ROWS = 40_000
#: The rows that a micro-batch has at most.
FIRST = 30_000
#: It writes a batch and a stream at a time. Each task gives rows in pieces of 500; where there is a file `hang`, none
#: after something was written.
WRITING = """
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


@pytest.mark.timeout(3 * PATIENCE)
def test_writes_whose_driver_was_killed_are_made_up_for_and_store_nothing_twice(
    drivers: Drivers, broker: Broker, server: Server, tmp_path: Path
) -> None:
    bury(broker, ROWS)
    copies = [broker.declare_queue(way) for way in ("batch", "stream")]
    (tmp_path / "hang").touch()
    words = [server.url, tmp_path, FIRST]

    drivers.kill_once(lambda: all(queue.stats().ready for queue in copies), drivers.start(WRITING, *words))
    before = [queue.stats().ready for queue in copies]
    (tmp_path / "hang").unlink()
    drivers.finish(drivers.start(WRITING, *words))

    for queue, number in zip(copies, before, strict=True):
        assert 0 < number < FIRST
        assert sorted(ids(queue)) == sorted(f"m-{i}" for i in range(ROWS))
        assert queue.stats().enqueued == ROWS
    assert sorted(file.name for file in (tmp_path / "checkpoint" / "commits").glob("[0-9]*")) == ["0", "1"]
