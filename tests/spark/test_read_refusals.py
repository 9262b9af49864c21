"""Refusals of a batch read in a Spark session, before any task starts."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator

import pytest
import redis
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from rqttl import Broker
from tests.servers import Server
from tests.spark.letters import bury
from tests.spark.loading import Loader, told


@pytest.fixture
def load(spark: SparkSession, redis_url: str) -> Loader:
    return Loader(spark, redis_url)


@pytest.mark.parametrize(
    "options, text",
    [
        ({"queues": "orders/dead", "queus": "x"}, "[RQTTL_UNKNOWN_OPTION] queus: no such option; did you mean queues?"),
        ({"queues": "orders/dead", "numPartitions": "many"}, "[RQTTL_INVALID_OPTION] numPartitions: expected a whole"),
        ({"queues": "orders/dead", "operation": "purge"}, "[RQTTL_UNKNOWN_OPTION] operation: an option of write and"),
        ({}, "[RQTTL_INVALID_OPTION] queues: required; name the queues"),
    ],
)
def test_wrong_options_are_told_by_load(load: Loader, options: dict[str, str], text: str) -> None:
    with pytest.raises(AnalysisException) as caught:
        load(**options)

    assert text in str(caught.value)


@pytest.mark.parametrize(
    "given, text",
    [
        ("ids string", "[RQTTL_INVALID_SCHEMA] ids: no such column; the columns are queue"),
        ("message_id bigint", "[RQTTL_INVALID_SCHEMA] message_id: expected string, got bigint"),
        ("message_id string not null", "[RQTTL_INVALID_SCHEMA] message_id: the column and all its fields are nullable"),
    ],
)
def test_a_wrong_schema_is_told_before_any_task(
    jobs: Callable[[], list[int]], load: Loader, broker: Broker, given: str, text: str
) -> None:
    bury(broker, 1)

    assert text in told(load.reader(queues="orders/dead").schema(given).load().collect)
    assert jobs() == []


@pytest.fixture
def jobs(spark: SparkSession) -> Iterator[Callable[[], list[int]]]:
    """The jobs that Spark has run in this test."""
    group = str(uuid.uuid4())
    spark.sparkContext.setJobGroup(group, "")
    yield lambda: list(spark.sparkContext.statusTracker().getJobIdsForGroup(group))
    spark.sparkContext.setJobGroup("", "")


def test_a_missing_queue_is_told_before_any_task(jobs: Callable[[], list[int]], load: Loader, broker: Broker) -> None:
    bury(broker, 1)

    assert "[RQTTL_QUEUE_NOT_FOUND] queues: there is no queue 'order/dead'" in told(load(queues="order/dead").collect)
    assert jobs() == []
    assert load(queues="orders/dead").count() == 1
    assert jobs() != []


def test_wrong_passwords_and_missing_rights_are_told_before_any_task(
    jobs: Callable[[], list[int]], load: Loader, client: redis.Redis, broker: Broker
) -> None:
    bury(broker, 1)
    client.execute_command("ACL", "SETUSER", "reader", "on", ">right", "~rqttl:*", "+hmget", "+xlen", "+hlen")
    try:
        wrong = told(load(queues="orders/dead", username="reader", password="c4n4ry").collect)
        lacking = told(load(queues="orders/dead", username="reader", password="right").collect)
    finally:
        client.acl_deluser("reader")

    assert "[RQTTL_AUTHENTICATION] username, passwordEnv, passwordFile: " in wrong
    assert "c4n4ry" not in wrong
    assert "[RQTTL_NO_PERMISSION] username: user 'reader' may not run XRANGE" in lacking
    assert jobs() == []


def test_a_server_that_goes_away_in_the_middle_is_told_and_the_session_lives_on(
    load: Loader, start_server: Callable[..., Server], broker: Broker
) -> None:
    other = start_server()
    with Broker(other.client()) as there:
        bury(there, 100)
    frame = load(queues="orders/dead", url=other.url)
    assert frame.count() == 100

    other.kill()

    text = told(frame.collect)
    assert f"[RQTTL_UNREACHABLE] url: {other.url} cannot be reached" in text
    bury(broker, 2)
    assert load(queues="orders/dead").count() == 2
