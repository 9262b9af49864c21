"""The Spark data source for rqttl: `spark.read.format("rqttl")`, `readStream`, `write`, `writeStream`.

Where the package is installed, Spark finds the format by itself. Where it came with `--py-files` or `addPyFile`, call
`register(spark)` once in each session.

Importing this package needs neither pyspark nor pyarrow, and touches neither Redis nor the JVM.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: SparkSession) -> None:
    """Make `format("rqttl")` known to this session, and to no other.

    Needed after `--py-files`, `addPyFile` and `addArtifacts`, harmless where Spark has found the format itself. Without
    pyspark >= 4.2 and pyarrow it raises `ImportError`.
    """
    from spark_connectors.source import RqttlDataSource

    spark.dataSource.register(RqttlDataSource)
