"""The last part of `rqttl demo`: `python -m spark_connectors.demo_report` counts the dead letters with Spark.

The process reads its task from its input: the options of the data source, and a folder for the files of Spark. It
prints the counts, or what is missing, as JSON; after a failure its last line on stderr is the cause.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rqttl.text import install
from spark_connectors.java import java_problem

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Modules that the report needs beside Java, and the extra that installs them.
MODULES, EXTRA = ("pyspark", "pyarrow", "numpy"), "spark"
#: The place of the scheduled hour in a body such as `{"scheduled": "2013-01-01 05:15"}`.
_SCHEDULED, _HOUR = "$.scheduled", (12, 2)
_QUIET = """
rootLogger.level = ERROR
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d %p %c: %m%n%ex
"""


def missing_requirements(modules: Iterable[str] = MODULES) -> str:
    """Describe in one line what Spark needs and this machine lacks; empty if Spark can run."""
    missing = [name for name in modules if find_spec(name) is None]
    if missing:
        return f"no {' and no '.join(missing)} is installed; {install(EXTRA)}"
    return java_problem()


def count(spark: SparkSession, options: Mapping[str, str]) -> dict[str, dict[int, int]]:
    """Count the dead letters of each carrier and scheduled hour. The last word of `source` is the carrier."""
    from pyspark.sql import functions as of

    letters = spark.read.format("rqttl").options(**options).option("decode", "json")
    scheduled = of.get_json_object("body_json", _SCHEDULED)
    rows = (
        letters.schema("source string, body_json string")
        .load()
        .groupBy(
            of.substring_index("source", ".", -1).alias("carrier"),
            of.substring(scheduled, *_HOUR).cast("int").alias("hour"),
        )
        .count()
        .collect()
    )
    counts: dict[str, dict[int, int]] = {}
    for carrier, hour, number in sorted(rows):
        counts.setdefault(carrier, {})[hour] = number
    return counts


def session(folder: Path) -> SparkSession:
    """Start a Spark session for this process: it listens on 127.0.0.1 only, and writes its files to `folder`."""
    import spark_connectors

    (folder / "log4j2.properties").write_text(_QUIET, encoding="utf-8")
    for name in ("SPARK_HOME", "SPARK_REMOTE", "PYSPARK_SUBMIT_ARGS"):  # they may name another installation of Spark
        os.environ.pop(name, None)
    os.environ.update(SPARK_CONF_DIR=str(folder), SPARK_LOCAL_IP="127.0.0.1", PYSPARK_PYTHON=sys.executable)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").appName("rqttl demo")
    for name, value in {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.local.dir": str(folder),
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # the session lives for seconds, so the second compiler and parallel collectors cost more than they save
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark_connectors.register(spark)
    return spark


def report(options: Mapping[str, str], folder: Path) -> dict[str, Any]:
    """Return the counts, or what is missing. Spark has ended before the return."""
    if missing := missing_requirements():
        return {"missing": missing}
    try:
        spark = session(folder)
        counts = count(spark, options)
    except Exception as error:  # noqa: BLE001  # the parent process shows the cause
        sys.exit(_cause(error))
    jvm: Any = spark.sparkContext._gateway.proc  # type: ignore[union-attr]  # noqa: SLF001  # to wait for its end
    spark.stop()
    jvm.stdin.close()  # a JVM of pyspark exits at the end of its input
    jvm.wait()
    return {"counts": counts}


def _cause(error: Exception) -> str:
    """Extract the text of the data source from the long text of Spark."""
    own_text = re.search(r"\[RQTTL_\w+\].*", str(error))
    return own_text[0] if own_text else f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


if __name__ == "__main__":
    task = json.load(sys.stdin)
    json.dump(report(task["options"], Path(task["folder"])), sys.stdout)
