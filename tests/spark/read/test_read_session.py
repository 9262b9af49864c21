"""Batch reads in a Spark session: types, rows, snapshots, and refusals before any task starts."""

import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgpack
import pyspark
import pytest
import redis
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import TimestampType

from rqttl import Broker
from rqttl.protocol.keys import Keyspace
from tests.servers import Server
from tests.spark.letters import DEATHS, bury
from tests.spark.read.test_entries import TYPES
from tests.waiting import until


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
    assert load(queues="orders/dead").columns == [name for name in TYPES if name != "deaths"]


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


def test_a_users_schema_has_only_its_columns_and_headers_may_be_bytes(broker: Broker, load: Loader) -> None:
    sequence = bury(broker, 1).peek(1)[0].sequence

    frame = load.reader(queues="orders/dead").schema("headers map<string,binary>, sequence string").load()

    assert [tuple(row) for row in frame.collect()] == [({"region": b"eu", "attempt": b"0"}, sequence)]


def test_times_are_the_same_instants_in_any_session_zone_and_where_timestamps_have_no_zone(
    broker: Broker, load: Loader, spark_conf: Callable[[str, str], None]
) -> None:
    sequence = bury(broker, 1).peek(1)[0].sequence

    for name, value in (
        ("spark.sql.session.timeZone", "Asia/Tokyo"),
        ("spark.sql.session.timeZone", "America/St_Johns"),
        ("spark.sql.timestampType", "TIMESTAMP_NTZ"),
    ):
        spark_conf(name, value)
        frame = load.reader(queues="orders/dead").schema("died_at timestamp_ltz").load()
        assert load(queues="orders/dead").schema["died_at"].dataType == TimestampType()
        assert frame.select(f.unix_millis("died_at").alias("ms")).collect()[0].ms == int(sequence[:13])


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


@pytest.mark.parametrize("kind", ["read", "readStream"])
def test_a_wrong_option_is_told_by_load(kind: str, spark: SparkSession) -> None:
    reader = getattr(spark, kind).format("rqttl").option("queus", "x")

    with pytest.raises(
        AnalysisException, match=r"\[RQTTL_UNKNOWN_OPTION\] queus: no such option; did you mean queues\?"
    ):
        reader.load()


@pytest.fixture
def jobs(spark: SparkSession) -> Iterator[Callable[[], list[int]]]:
    """The jobs that Spark has run in this test."""
    group = str(uuid.uuid4())
    spark.sparkContext.setJobGroup(group, "")
    yield lambda: list(spark.sparkContext.statusTracker().getJobIdsForGroup(group))
    spark.sparkContext.setJobGroup("", "")


def test_mistakes_are_told_before_any_task(
    jobs: Callable[[], list[int]], load: Loader, client: redis.Redis, broker: Broker
) -> None:
    bury(broker, 1)
    client.execute_command("ACL", "SETUSER", "reader", "on", ">right", "~rqttl:*", "+hmget", "+xlen", "+hlen")
    wrong, right = {"username": "reader", "password": "c4n4ry"}, {"username": "reader", "password": "right"}
    try:
        for frame, text in (
            (load(queues="order/dead"), "[RQTTL_QUEUE_NOT_FOUND] queues: there is no queue 'order/dead'"),
            (load(queues="orders/dead", **wrong), "[RQTTL_AUTHENTICATION] username, passwordEnv, passwordFile: "),
            (load(queues="orders/dead", **right), "[RQTTL_NO_PERMISSION] username: user 'reader' may not run XRANGE"),
            (
                load.reader(queues="orders/dead").schema("message_id bigint").load(),
                "[RQTTL_INVALID_SCHEMA] message_id: expected string, got bigint",
            ),
        ):
            said = told(frame.collect)
            assert text in said
            assert "c4n4ry" not in said
    finally:
        client.acl_deluser("reader")
    assert jobs() == []
    assert load(queues="orders/dead").count() == 1
    assert jobs() != []


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
