"""`minEntriesPerTrigger` and `maxTriggerDelay` in real queries, with each kind of trigger."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rqttl import Broker
from tests.spark.letters import bury
from tests.spark.streaming import PATIENCE, Stream
from tests.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Streams = Callable[..., Stream]


@pytest.fixture
def stream(spark: SparkSession, spark_conf: Callable[[str, str], None], redis_url: str, tmp_path: Path) -> Streams:
    """Makes a query over `orders/dead`. It reports every trigger, also one without a batch."""
    spark_conf("spark.sql.streaming.noDataProgressEventInterval", "0")
    return lambda **options: Stream(spark, tmp_path, redis_url, queues="orders/dead", **options)


def sizes(letters: Stream) -> list[int]:
    """The sizes of the batches. Spark begins a query that has nothing to read yet with an empty batch."""
    return [len(of[-1]) for _, of in sorted(letters.attempts.items()) if of[-1]]


@pytest.mark.parametrize("every", ["", "50 milliseconds"])
def test_a_batch_waits_for_enough_messages(every: str, stream: Streams, broker: Broker) -> None:
    bury(broker, 4)
    letters = stream(minEntriesPerTrigger=10, maxTriggerDelay="1h")
    query = letters.start(every=every)

    def triggers(count: int) -> None:
        """Wait for so many more triggers, or for a row."""
        rows, wanted = len(letters.rows), query.recentProgress[-1:]
        last = wanted[0].timestamp if wanted else ""
        until(
            lambda: len(letters.rows) > rows or sum(one.timestamp > last for one in query.recentProgress) >= count,
            PATIENCE,
        )

    try:
        triggers(5)
        assert sizes(letters) == []
        bury(broker, 6, first=4)
        until(lambda: letters.rows, PATIENCE)
        bury(broker, 9, first=10)
        triggers(5)
    finally:
        query.stop()

    assert sizes(letters) == [10]
