"""A speculative twin: Spark runs a slow task a second time, beside the first, and what both write is there once."""

from __future__ import annotations

import pytest

from rqttl import Broker
from tests.spark.jvm import Submitter
from tests.spark.writing import ids

ROWS = 40_000

#: Spark starts a twin on another host only, and `local-cluster` has one: so a master and two workers, on two addresses
#: of this machine, in the JVM of the driver. The twin of task 0 begins when the first attempt has stored something;
#: that one waits in the midst until the twin is as far, and then both go on.
PROGRAM = """
import sys, threading, time
from pathlib import Path
from pyspark import SparkConf, SparkContext, TaskContext
from pyspark.sql import SparkSession
import rqttl, spark_connectors

url, folder, rows = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
SparkContext._ensure_initialized()
jvm, gateway = SparkContext._jvm, SparkContext._gateway
deploy, conf = jvm.org.apache.spark.deploy, jvm.org.apache.spark.SparkConf()
master = deploy.master.Master.startRpcEnvAndEndpoint("127.0.0.1", 0, 0, conf)
at = "spark://" + master._1().address().hostPort()
masters = gateway.new_array(jvm.java.lang.String, 1)
masters[0] = at
for i in (2, 3):
    deploy.worker.Worker.startRpcEnvAndEndpoint(
        f"127.0.0.{i}", 0, 0, 1, 1024, masters, str(folder / f"worker-{i}"), jvm.scala.Option.apply(i), conf,
        jvm.scala.Option.apply(None))
speculation = {"": "true", ".interval": "100ms", ".quantile": "0.5", ".multiplier": "1.1", ".minTaskRuntime": "100ms"}
told = SparkConf().setMaster(at)
for name, value in speculation.items():
    told.set(f"spark.speculation{name}", value)
spark = SparkSession.builder.config(conf=told).getOrCreate()
spark_connectors.register(spark)


def slow(batches):
    task = TaskContext.get()
    attempt = (task.partitionId(), task.attemptNumber())
    (folder / "attempt-{}-{}".format(*attempt)).touch()
    deadline = time.monotonic() + 200
    with rqttl.connect(url) as broker:
        def wait_for(seen):
            while not seen():
                assert time.monotonic() < deadline, attempt
                threading.Event().wait(0.02)

        if attempt == (0, 1):
            wait_for(lambda: any(int(one.id[2:]) < rows // 2 for one in broker.queue("q").peek(rows)))
        for i, batch in enumerate(batches):
            if attempt == (0, 0) and i == 20:
                wait_for((folder / "twin").exists)
            if attempt == (0, 1) and i == 20:
                (folder / "twin").touch()
            yield batch


spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "500")
columns = ["concat('m-', id) AS message_id", "cast(repeat('x', 200) AS binary) AS body"]
frame = spark.range(0, rows, 1, 2).selectExpr(*columns)
frame = frame.mapInArrow(slow, frame.schema)
frame.write.format("rqttl").mode("append").option("url", url).option("queue", "q").save()
print("written")
spark.stop()
"""


@pytest.mark.slow
def test_a_task_and_its_speculative_twin_store_nothing_twice(
    submitter: Submitter, broker: Broker, redis_url: str
) -> None:
    queue = broker.declare_queue("q")

    done = submitter.run(PROGRAM, redis_url, submitter.folder, ROWS, master="local[1]")

    assert "written" in done.out, done.end
    attempts = sorted(file.name for file in submitter.folder.glob("attempt-*"))
    assert attempts == ["attempt-0-0", "attempt-0-1", "attempt-1-0"]
    assert sorted(int(id.removeprefix("m-")) for id in ids(queue)) == list(range(ROWS))
    assert queue.stats().enqueued == ROWS
