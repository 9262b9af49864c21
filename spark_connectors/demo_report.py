"""The end of `rqttl demo`: `python -m spark_connectors.demo_report` counts its dead letters with Spark.

Its first line of input says where they are; it answers with one line. The end of its input ends it, so it also goes
when whoever started it was killed.
"""

from __future__ import annotations

import json
import os
import re
import sys
import threading
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rqttl.text import install
from spark_connectors.java import lacking_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: What the report needs beside Java, and the extra that brings it.
MODULES, EXTRA = ("pyspark", "pyarrow", "numpy"), "spark"
#: Where the scheduled hour is in a body such as `{"scheduled": "2013-01-01 05:15"}`.
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


def lacking(modules: Iterable[str] = MODULES) -> str:
    """What has to be installed before Spark can run here, in a line; empty if it can."""
    missing = [name for name in modules if find_spec(name) is None]
    if missing:
        return f"no {' and no '.join(missing)} is installed; {install(EXTRA)}"
    return lacking_java()


def count(spark: SparkSession, options: Mapping[str, str]) -> dict[str, dict[int, int]]:
    """How many letters there are of each carrier and scheduled hour. The last word of `source` is the carrier."""
    from pyspark.sql import functions as of

    letters = spark.read.format("rqttl").options(**options).option("decode", "json")
    scheduled = of.get_json_object("body_json", _SCHEDULED)
    rows = (
        letters.schema("source string, body_json string").load()
        .groupBy(of.substring_index("source", ".", -1).alias("carrier"),
                 of.substring(scheduled, *_HOUR).cast("int").alias("hour"))
        .count().collect()
    )  # fmt: skip
    counts: dict[str, dict[int, int]] = {}
    for carrier, hour, number in sorted(rows):
        counts.setdefault(carrier, {})[hour] = number
    return counts


def session(folder: Path) -> SparkSession:
    """A session of this process alone, which listens nowhere but here and keeps what it writes in `folder`."""
    import spark_connectors

    (folder / "log4j2.properties").write_text(_QUIET, encoding="utf-8")
    for name in ("SPARK_HOME", "SPARK_REMOTE", "PYSPARK_SUBMIT_ARGS"):  # another Spark than the one of this Python
        os.environ.pop(name, None)
    os.environ.update(SPARK_CONF_DIR=str(folder), SPARK_LOCAL_IP="127.0.0.1", PYSPARK_PYTHON=sys.executable)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").appName("rqttl demo")
    for name, value in {
        "spark.driver.host": "127.0.0.1", "spark.driver.memory": "1g", "spark.local.dir": str(folder),
        "spark.sql.shuffle.partitions": "2", "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false",
        # it lives for seconds: what the second compiler and parallel collectors cost, it does not earn back
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }.items():  # fmt: skip
        builder = builder.config(name, value)
    found = builder.getOrCreate()
    spark_connectors.register(found)
    return found


def report(options: Mapping[str, str], folder: Path) -> dict[str, Any]:
    """The counts, or what is missing, or why it failed. Spark is gone when this returns."""
    if missing := lacking():
        return {"missing": missing}
    try:
        spark = session(folder)
        counts = count(spark, options)
    except Exception as error:  # noqa: BLE001  # whoever started this process tells it
        return {"failed": _why(error)}
    jvm: Any = spark.sparkContext._gateway.proc  # type: ignore[union-attr]  # noqa: SLF001  # to see its end
    spark.stop()
    jvm.stdin.close()  # this is how a JVM of pyspark is told to end
    jvm.wait()
    return {"counts": counts}


def _why(error: Exception) -> str:
    """Our own words out of the long ones that Spark makes of them."""
    found = re.search(r"\[RQTTL_\w+\].*", str(error))
    return found[0] if found else f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


def _at_end_of_input() -> None:
    sys.stdin.read()
    os._exit(1)


def main() -> None:
    """Answer the line of input: JSON with the options of the data source, and a folder for what Spark writes."""
    asked = json.loads(sys.stdin.readline())
    threading.Thread(target=_at_end_of_input, daemon=True).start()
    sys.stdout.write(json.dumps(report(asked["options"], Path(asked["folder"]))) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
