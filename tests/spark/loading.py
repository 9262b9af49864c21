"""Loading in a Spark session, and the messages for its user."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, DataFrameReader, SparkSession


class Loader:
    """`load(queues="orders/dead")`: a frame of the shared server."""

    def __init__(self, spark: SparkSession, url: str) -> None:
        self._spark, self._url = spark, url

    def reader(self, **options: object) -> DataFrameReader:
        """A reader with these options."""
        reader = self._spark.read.format("rqttl")
        for name, value in {"url": self._url, "connectRetries": 1, **options}.items():
            reader = reader.option(name, str(value))
        return reader

    def __call__(self, **options: object) -> DataFrame:
        return self.reader(**options).load()


def told(run: Callable[[], object]) -> str:
    """The text of the error that this ends with."""
    with pytest.raises(PySparkException) as caught:
        run()
    return str(caught.value)


def ids(frame: DataFrame) -> list[str]:
    """The ids of all rows, sorted."""
    return sorted(row.message_id for row in frame.select("message_id").collect())
