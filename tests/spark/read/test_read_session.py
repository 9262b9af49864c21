"""Batch reads in a Spark session: types, rows, snapshots, and refusals before any task starts."""

from __future__ import annotations

import logging
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgpack
import pyspark
import pytest
import redis
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StringType, StructField, StructType, TimestampType

from rqttl import Broker
from rqttl.protocol.keys import Keyspace
from spark_connectors.columns import schema
from spark_connectors.errors import Unreachable
from spark_connectors.source import RqttlDataSource
from tests.servers import Server
from tests.spark.letters import DEATHS, bury
from tests.spark.loading import Loader, told
from tests.spark.read.test_schema import TYPES
from tests.waiting import until

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture
def load(spark: SparkSession, redis_url: str) -> Loader:
    return Loader(spark, redis_url)


def bodies(client: redis.Redis, queue: str) -> dict[str, bytes]:
    """Return the bodies in a log, by sequence."""
    entries: Any = client.xrange(Keyspace().key(queue, "log"))
    return {sequence.decode(): body for sequence, fields in entries for body in fields.values()}


def test_the_schema_is_the_one_that_is_promised(broker: Broker, load: Loader) -> None:
    bury(broker, 1)

    frame = load(queues="orders/dead", includeDeaths="true")

    assert {field.name: field.dataType for field in frame.schema} == TYPES
    assert all(field.nullable for field in frame.schema)
    assert load(queues="orders/dead", decode="json", includeDeaths="true").columns == [*TYPES, "body_json"]


def test_rows_are_what_redis_holds(client: redis.Redis, broker: Broker, load: Loader) -> None:
    for reason in DEATHS:
        bury(broker, 1_000, reason=reason, source=reason, into="all/dead")

    rows = load(queues="all/dead", numPartitions=2, includeDeaths="true").collect()

    assert {row.sequence: bytes(row.body) for row in rows} == bodies(client, "all/dead")
    assert Counter((row.source, row.reason, row.description) for row in rows) == {
        ("maxlen", "maxlen", None): 1_000,
        ("rejected", "rejected", "no such item"): 1_000,
        ("expired", "expired", None): 1_000,
    }
    assert {row.queue for row in rows} == {"all/dead"}
    for row in rows[::97]:
        number = msgpack.unpackb(row.body)["number"]
        assert row.message_id == f"m-{number}"
        assert row.headers == {"region": ("eu", "us")[number % 2], "attempt": str(number)}
        assert (row.content_type, row.death_count, len(row.deaths)) == ("application/msgpack", 1, 1)
        assert (row.deaths[0].queue, row.deaths[0].last_at) == (row.source, row.died_at)
        assert row.enqueued_at <= row.died_at


def test_times_are_the_same_instants_in_any_session_zone(
    broker: Broker, load: Loader, spark_conf: Callable[[str, str], None]
) -> None:
    sequence = bury(broker, 1).peek(1)[0].sequence

    for zone in ("Asia/Tokyo", "America/St_Johns"):
        spark_conf("spark.sql.session.timeZone", zone)
        row = load(queues="orders/dead").select(f.unix_millis("died_at").alias("ms")).collect()[0]
        assert row.ms == int(sequence[:13])


@pytest.mark.parametrize("columns", [("body",), ("reason", "message_id"), tuple(schema.COLUMNS)[::-1]])
def test_a_users_schema_has_only_its_columns(broker: Broker, load: Loader, columns: tuple[str, ...]) -> None:
    bury(broker, 100)
    wanted = ", ".join(f"{name} {schema.COLUMNS[name].ddl}" for name in columns)

    frame = load.reader(queues="orders/dead").schema(wanted).load()

    assert tuple(frame.columns) == columns
    whole = {
        tuple(row[name] for name in columns)
        for row in map(hashable, load.reader(queues="orders/dead", includeDeaths="true").load().collect())
    }
    assert {tuple(row[name] for name in columns) for row in map(hashable, frame.collect())} == whole


def hashable(row: Any) -> dict[str, str]:
    return {name: str(value) for name, value in row.asDict(recursive=True).items()}


def test_json_bodies_can_be_queried(broker: Broker, load: Loader) -> None:
    bury(broker, 10)
    broker.queue("orders/dead").enqueue(b"raw")

    frame = load(queues="orders/dead", decode="json")
    sums = frame.select(f.get_json_object("body_json", "$.number").cast("int").alias("n")).agg(f.sum("n"), f.count("*"))

    assert tuple(sums.collect()[0]) == (45, 11)


def test_threads_may_query_a_view_in_sql_at_the_same_time(spark: SparkSession, redis_url: str, broker: Broker) -> None:
    bury(broker, 1_200)
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW letters USING rqttl OPTIONS (url '{redis_url}', queues 'orders/dead')")
    query = (
        "SELECT count(DISTINCT message_id) AS n FROM letters WHERE reason = 'maxlen' AND substring(message_id, -1) = "
    )

    with ThreadPoolExecutor(4) as pool:
        counts = list(pool.map(lambda i: spark.sql(f"{query} '{i % 10}'").collect()[0].n, range(8)))

    assert counts == [120] * 8


@pytest.mark.skipif(pyspark.__version__.startswith("4.0."), reason="Spark 4.0 plans each query anew")
def test_a_load_is_a_snapshot_for_all_that_is_done_with_it(broker: Broker, load: Loader) -> None:
    bury(broker, 10)
    frame = load(queues="orders/dead")

    assert frame.count() == 10
    bury(broker, 5, first=10)
    assert frame.count() == 10
    assert load(queues="orders/dead").count() == 15


def test_a_limit_ends_the_reading_and_leaves_no_connection(client: redis.Redis, broker: Broker, load: Loader) -> None:
    bury(broker, 30_000)
    before = len(client.client_list())
    client.config_resetstat()

    assert len(load(queues="orders/dead", fetchEntries=100).limit(1).collect()) == 1

    assert client.info("commandstats")["cmdstat_xrange"]["calls"] < 250
    # the task ends after Spark has its row
    until(lambda: len(client.client_list()) <= before)


def test_by_default_filters_leak_into_nothing(
    broker: Broker, load: Loader, spark_conf: Callable[[str, str], None]
) -> None:
    bury(broker, 10, source="a", into="a/dead")
    bury(broker, 5, source="b", into="b/dead")

    for switch in ("false", "true"):
        spark_conf(PUSHDOWN, switch)
        frame = load(queues="a/dead,b/dead")
        some = frame.filter("queue = 'a/dead'")
        assert (some.count(), frame.count()) == (10, 15)
        assert frame.filter("queue = 'b/dead'").union(some).count() == 15
        assert frame.join(some, "sequence", "left_anti").count() in (5, 15)


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


QUEUE_ONLY = StructType([StructField("queue", StringType())])

NOBODY = "redis://127.0.0.1:1"

MESSAGE = StructType([StructField("message_id", StringType()), StructField("body", StringType())])


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
