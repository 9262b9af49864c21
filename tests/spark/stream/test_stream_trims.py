"""Streaming queries in a session whose letters were trimmed, deleted or handled before they were read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException

from rqttl import Broker, Queue
from tests.servers import Server
from tests.spark.letters import bury
from tests.spark.streaming import Stream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Streams = Callable[..., Stream]


@pytest.fixture
def stream(spark: SparkSession, server: Server, broker: Broker, tmp_path: Path) -> Streams:
    """Makes a query of this test: `stream(failOnDataLoss="false")`."""

    def make(**options: object) -> Stream:
        return Stream(spark, tmp_path / "checkpoint", server.url, queues="orders/dead", **options)

    return make


def rows_of(letters: Queue) -> list[tuple[str, str]]:
    return [(letters.name, letter.sequence) for letter in letters.peek(100_000)]


def by_limit(letters: Queue) -> None:
    letters.update(max_length=4)
    letters.update(max_length=None)


def by_purge(letters: Queue) -> None:
    letters.purge()


def test_messages_trimmed_unread_fail_the_query_and_with_false_it_goes_on_with_the_others(
    stream: Streams, broker: Broker
) -> None:
    letters = bury(broker, 10)
    query = stream()
    query.run()
    last = rows_of(letters)[-1][1]
    bury(broker, 10, first=10)
    unread = rows_of(letters)[10:]
    by_limit(letters)
    bury(broker, 3, first=20)
    there = rows_of(letters)

    with pytest.raises(StreamingQueryException) as raised:
        query.run()
    assert query.run(failOnDataLoss="false") == [len(there)]

    lost = [sequence for _, sequence in unread if ("orders/dead", sequence) not in there]
    assert f"[RQTTL_DATA_LOSS] queue 'orders/dead': messages after {last}, the highest of them {lost[-1]}," in str(
        raised.value
    )
    assert query.rows[10:] == there
    # it has been told once, and is over
    bury(broker, 2, first=23)
    assert query.run() == [2]


def test_a_batch_is_not_silently_repeated_with_less(stream: Streams, broker: Broker) -> None:
    letters = bury(broker, 10)
    query = stream()
    query.crash_in = 0
    with pytest.raises(StreamingQueryException, match="the batch was read, and not committed"):
        query.run()
    query.crash_in = -1
    by_purge(letters)
    there = rows_of(letters)

    with pytest.raises(
        StreamingQueryException, match=r"\[RQTTL_DATA_LOSS\] queue 'orders/dead': messages after 0+-0+,"
    ):
        query.run()
    query.run(failOnDataLoss="false")

    assert query.rows == there


class Archive(Stream):
    """Archives each batch, then purges its letters with the writer."""

    def _take(self, frame: DataFrame, number: int) -> None:
        self.meanwhile = lambda: write(frame)
        write = self._purge
        super()._take(frame, number)

    def _purge(self, frame: DataFrame) -> None:
        options = {"url": self.options["url"], "operation": "purge"}
        frame.write.format("rqttl").options(**options).mode("append").save()


def test_archive_then_purge_can_be_restarted_after_a_batch_that_failed_behind_its_purge(
    spark: SparkSession, server: Server, broker: Broker, tmp_path: Path
) -> None:
    letters = bury(broker, 40)
    archived = rows_of(letters)
    query = Archive(spark, tmp_path / "checkpoint", server.url, queues="orders/dead", maxEntriesPerTrigger=10)
    query.crash_in = 1
    with pytest.raises(StreamingQueryException, match="the batch was read, and not committed"):
        query.run()
    assert rows_of(letters) == archived[20:]
    query.crash_in = -1

    assert sum(query.run()) == 20
    assert query.attempts[1] == [archived[10:20], []]
    assert query.attempts[0][0] + query.attempts[1][0] + query.rows[10:] == archived
    assert rows_of(letters) == []


def handled(letters: Queue) -> None:
    """A consumer handles all messages, so the queue is empty when it is deleted."""
    letters.ack_many(letters.receive_many(100))


def only_read(letters: Queue) -> None:
    """Nothing has come since the query read, but nobody has handled the letters."""
