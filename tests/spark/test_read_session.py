"""Batch reads in a Spark session: rows and errors for an analyst."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgpack
import pytest
import redis
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from rqttl import Broker
from rqttl.protocol.keys import Keyspace
from spark_connectors.columns import schema
from tests.spark.letters import DEATHS, bury
from tests.spark.loading import Loader
from tests.spark.test_schema import TYPES
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


# Filters


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
