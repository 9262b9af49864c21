"""The figures of the Spark data source, in one run: `make bench-spark`; one part: `… -m tests.bench.spark reading`.

A million dead letters of 200 bytes, `local[2]`, medians of interleaved repeats. The yardsticks are a naive source that
yields tuples (`naive_source.py`), and one process that pipelines XADD.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import redis

from rqttl import Broker
from rqttl.store.driver import driver_of
from tests.bench.measure import BODY, Table, running_server, xadd
from tests.servers import Server

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MILLION = 1_000_000
ROUNDS = 5
START = 1_700_000_000_000
WRITTEN = 200_000
#: Letters of one script call.
SWEPT = 250
PARTS = ("reading", "writing")
FEW = "message_id string, reason string, source string, died_at timestamp"


def header(i: int, ms: int) -> bytes:
    """Return the packed header of an expired letter: an id, one death, one header."""
    id = b"order-%07d" % i
    death = b"orders expired 1 %d %d %d %d 0 0 " % (ms, ms, ms - 60_000, ms)
    return b";%d;%d;" % (len(id), len(death)) + id + death + b"\x92\xc0\x81\xa6region\xa2eu"


def fill(client: redis.Redis, broker: Broker, queue: str, times: list[int]) -> None:
    """Letters that died at these milliseconds, in rising order, as scripts would have written them."""
    broker.declare_queue(queue)
    log, place, serial, size = driver_of(broker).keyspace.key(queue, "log"), 0, 0, 0
    marks: dict[str, int] = {}
    for start in range(0, len(times), 1000):
        pipeline = client.pipeline(transaction=False)
        for i, ms in enumerate(times[start : start + 1000], start):
            place, serial = (ms, 100_000) if ms > place else (place, serial + 1)
            head = header(i, ms)
            size += len(head) + len(BODY)
            pipeline.execute_command("XADD", log, f"{place}-{serial}", head, BODY)
            if (i + 1) % SWEPT == 0 and (i + 1) % 1024 < SWEPT:
                marks[f"{place}-{serial} {i + 1} {i + 1} {size}"] = place
        pipeline.execute()
    if marks:
        client.zadd(driver_of(broker).keyspace.key(queue, "arrivals"), marks)
    client.hset(
        driver_of(broker).keyspace.key(queue, "meta"),
        mapping={
            "last_id": f"{place}-{serial}",
            "holds_dead_letters": 1,
            "enqueued": len(times),
            "letters": len(times),
            "letter_bytes": size,
        },
    )


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


class Bench:
    """One server, one session, one table."""

    def __init__(self, spark: SparkSession, server: Server, table: Table) -> None:
        self.spark, self.server, self.table = spark, server, table
        self.client = server.client()
        self.broker = Broker(self.client)
        fill(self.client, self.broker, "dead", [START + i // 20 for i in range(MILLION)])

    def load(self, **options: object) -> DataFrame:
        reader = self.spark.read.format("rqttl").option("url", self.server.url)
        given = {"queues": "dead", "numPartitions": 2, **options}
        fields = given.pop("schema", None)
        for name, value in given.items():
            if value is not None:
                reader = reader.option(name, str(value))
        return (reader.schema(str(fields)) if fields else reader).load()

    def naive(self) -> DataFrame:
        key = driver_of(self.broker).keyspace.key("dead", "log")
        options = {"url": self.server.url, "key": key, "numPartitions": 2}
        return self.spark.read.format("naive").options(**options).load()  # type: ignore[arg-type]  # numbers will do

    @staticmethod
    def to_nowhere(frame: DataFrame) -> None:
        frame.write.format("noop").mode("append").save()

    def reading(self) -> None:
        """The whole log, against the yardsticks."""
        runs: dict[str, Callable[[], object]] = {
            "ours": lambda: self.to_nowhere(self.load()),
            "naive": lambda: self.to_nowhere(self.naive()),
            "deaths": lambda: self.to_nowhere(self.load(includeDeaths=True)),
            "few": lambda: self.to_nowhere(self.load(schema=FEW)),
        }
        found: dict[str, list[float]] = {name: [] for name in runs}
        cpu: list[float] = []
        for turn in range(ROUNDS + 1):
            for name, work in runs.items():
                before = self.cpu()
                taken = seconds(work)
                if turn:  # the first round warms up
                    found[name].append(taken)
                    if name == "ours":
                        cpu.append((self.cpu() - before) / MILLION)
        middle = {name: statistics.median(times) for name, times in found.items()}
        said = ", ".join(f"{name} {MILLION / taken:,.0f}/s" for name, taken in middle.items())
        self.table.row("rows/s, 2 partitions, to the naive source", middle["naive"] / middle["ours"], ">= 3", said)
        self.table.row("default columns, to those with deaths", middle["deaths"] / middle["ours"], ">= 1.1")
        self.table.row("four columns by schema, to those with deaths", middle["deaths"] / middle["few"], ">= 1.3")
        self.table.row("server us per row read", statistics.median(cpu), "<= 0.7")

    def cpu(self) -> float:
        """Microseconds that Redis has worked."""
        info: Any = self.client.info("cpu")
        return float(info["used_cpu_user"] + info["used_cpu_sys"]) * 1e6

    def writing(self) -> None:
        """Rows into a queue, against one process that pipelines XADD."""
        from pyspark.sql import functions as f

        rows = (
            self.spark.range(0, WRITTEN, 1, 2)
            .select(
                f.concat(f.lit("w-"), f.col("id").cast("string")).alias("message_id"),
                f.lit(bytearray(BODY)).alias("body"),
            )
            .cache()
        )
        rows.count()
        ours, raw = [], []
        for turn in range(ROUNDS + 1):
            self.broker.declare_queue("written")
            target = rows.write.format("rqttl").mode("append").option("url", self.server.url)
            taken = seconds(target.option("operation", "enqueue").option("queue", "written").save)
            yardstick = seconds(lambda: xadd(self.client, WRITTEN))
            if turn:
                ours.append(taken)
                raw.append(yardstick)
            self.broker.queue("written").delete()
            self.client.delete("raw")
        ratio = statistics.median(r / o for o, r in zip(ours, raw, strict=True))
        self.table.row(
            "write enqueue, rows/s to pipelined XADD", ratio, ">= 1", f"{WRITTEN / statistics.median(ours):,.0f}/s"
        )


def session(folder: Path) -> SparkSession:
    """Two cores, as quiet as it can be."""
    root = str(Path(__file__).resolve().parents[2])
    os.environ["PYTHONPATH"] = os.pathsep.join([root, *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    from pyspark.sql import SparkSession

    os.environ.update(dict.fromkeys(("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"), sys.executable))  # not that of PATH
    builder = SparkSession.builder.master("local[2]").appName("rqttl bench").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.memory", "2g").config("spark.local.dir", str(folder))
    builder = builder.config("spark.sql.warehouse.dir", str(folder / "warehouse"))
    spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def main() -> int:
    import spark_connectors
    from tests.bench.naive_source import NaiveSource

    with running_server() as server, tempfile.TemporaryDirectory() as folder:
        spark, table = session(Path(folder)), Table()
        try:
            spark_connectors.register(spark)
            spark.dataSource.register(NaiveSource)
            bench = Bench(spark, server, table)
            for part in PARTS:
                if part in sys.argv[1:] or not sys.argv[1:]:
                    getattr(bench, part)()
        finally:
            spark.stop()
    return 1 if table.missed else 0


if __name__ == "__main__":
    sys.exit(main())
