"""The Spark data source for rqttl: `spark.read.format("rqttl")`, `readStream`, `write` and `writeStream`.

Spark finds the format by itself if the package is installed. If the package came with `--py-files` or `addPyFile`, each
session must call `register(spark)` once.

The import of this package needs neither pyspark nor pyarrow, and touches neither Redis nor the JVM.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: SparkSession) -> None:
    """Register `format("rqttl")` in this session, and in no other.

    A session needs this call after `--py-files`, `addPyFile` and `addArtifacts`; it is harmless if Spark already knows
    the format. Over Spark Connect it does not reach streams: install the package on the server. Raises `ImportError`
    without pyspark >= 4.0.
    """
    from pyspark.errors import AnalysisException

    from spark_connectors.source import RqttlDataSource

    try:
        spark.dataSource.register(RqttlDataSource)
    except AnalysisException as error:
        # Spark 4.0 refuses a format that it knows
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
    if hasattr(spark, "sparkContext"):
        from pyspark import SparkFiles

        # Spark looks here for the modules of a stream, and puts them into the folder above
        files = Path(SparkFiles.getRootDirectory())
        with suppress(FileExistsError):
            (files / "streaming_job").symlink_to(files)
