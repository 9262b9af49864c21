"""`load()` and `schema()` in a session: types, columns on request, lists of queues, and the errors of streams."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.types import StringType, StructField, StructType, TimestampType

from rqttl import Broker
from spark_connectors.errors import Unreachable
from spark_connectors.source import RqttlDataSource
from tests.spark.letters import bury
from tests.spark.loading import Loader

QUEUE_ONLY = StructType([StructField("queue", StringType())])
NOBODY = "redis://127.0.0.1:1"
MESSAGE = StructType([StructField("message_id", StringType()), StructField("body", StringType())])


@pytest.fixture
def load(spark: SparkSession, redis_url: str) -> Loader:
    return Loader(spark, redis_url)


def test_a_session_whose_timestamps_have_no_zone_reads_and_writes_the_same_types(
    spark_conf: Callable[[str, str], None], load: Loader, broker: Broker
) -> None:
    bury(broker, 3)
    spark_conf("spark.sql.timestampType", "TIMESTAMP_NTZ")

    letters = load(queues="orders/dead")

    assert letters.schema["died_at"].dataType == TimestampType()
    assert letters.count() == 3
    named = load.reader(queues="orders/dead").schema("died_at timestamp_ltz").load()
    assert [row.died_at for row in named.collect()] == [row.died_at for row in letters.collect()]


def test_deaths_come_on_request_or_by_schema(load: Loader, broker: Broker) -> None:
    bury(broker, 1)

    assert "deaths" not in load(queues="orders/dead").columns
    [asked] = load(queues="orders/dead", includeDeaths="true").collect()
    ddl = load(queues="orders/dead", includeDeaths="true").select("deaths").schema
    [named] = load.reader(queues="orders/dead").schema(ddl).load().collect()
    assert asked.deaths == named.deaths
    assert asked.deaths[0].queue == "orders"


def test_a_list_of_queues_is_loaded(load: Loader, broker: Broker) -> None:
    bury(broker, 2)
    bury(broker, 3, into="mails/dead", source="mails")

    letters = load.reader().load(["orders/dead", "mails/dead"])

    assert {row.queue: row["count"] for row in letters.groupBy("queue").count().collect()} == {
        "orders/dead": 2,
        "mails/dead": 3,
    }


@pytest.mark.parametrize(
    "options, told",
    [
        (
            {"maxEntriesPerTrigger": "5", "fetchEntries": "many"},
            "[RQTTL_INVALID_OPTION] fetchEntries: expected a whole",
        ),
        ({"maxEntriesPerTriger": "5"}, "maxentriespertriger: no such option; did you mean maxEntriesPerTrigger"),
        (
            {"maxOffsetsPerTrigger": "5"},
            "maxOffsetsPerTrigger: an option for Kafka; its counterpart here is maxEntries",
        ),
    ],
)
def test_a_mistake_in_an_option_of_a_stream_is_told_by_load(
    options: dict[str, str], told: str, spark: SparkSession, redis_url: str
) -> None:
    reader = spark.readStream.format("rqttl").options(url=redis_url, queues="orders/dead", **options)

    with pytest.raises(AnalysisException) as caught:
        reader.load()

    assert told in str(caught.value)


@pytest.mark.parametrize("given", [{"url": NOBODY, "password": "c4n4ry"}, {"url": "redis://:c4n4ry@127.0.0.1:1"}])
def test_a_password_in_an_option_is_warned_about_without_the_password(
    given: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "spark_connectors"):
        RqttlDataSource({"queues": "a", **given}).reader(QUEUE_ONLY)
        RqttlDataSource({"queues": "a", **given}).streamReader(QUEUE_ONLY)
        to = RqttlDataSource({"queue": "a", "connectRetries": "0", **given})
        for writer in (to.writer, to.streamWriter):
            with pytest.raises(Unreachable):
                writer(MESSAGE, overwrite=False)

    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == 4
    assert all("over Spark Connect" in text and "passwordFile" in text for text in warnings)
    assert "c4n4ry" not in caplog.text


def test_a_password_in_a_file_is_not_warned_about(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "secret"
    file.write_text("c4n4ry")

    RqttlDataSource({"queues": "a", "passwordFile": str(file)}).reader(QUEUE_ONLY)

    assert caplog.records == []
