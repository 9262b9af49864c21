"""Refusals before any task starts, with the name of the option or the column."""

import pytest

from rqttl import Broker
from spark_connectors.errors import InvalidOption, InvalidSchema, NoSuchQueue, SourceError, Unreachable
from spark_connectors.options.options import Options
from spark_connectors.write import plan
from spark_connectors.write.writer import RqttlBatchWriter, RqttlStreamWriter
from tests.drivers import redis_of
from tests.spark.writing import LETTERS, MESSAGES, columns

NO_UNIT = (
    ", which has no unit: convert seconds to text, `concat(ttl, 's') AS ttl`; convert milliseconds to ttl_ms, "
    "`CAST(ttl AS bigint) AS ttl_ms`"
)
NO_UNIT_OF_DELAY = NO_UNIT.partition(";")[0].replace("ttl", "delay")


def planned(ddl: str, **options: str) -> plan.Plan:
    return plan.make_plan(columns(ddl), Options.parse("write", options), overwrite=False)


@pytest.mark.parametrize(
    "ddl, options, used",
    [
        (f"queue string, {MESSAGES}", {}, ("queue", "message_id", "body")),
        (f"queue string, {MESSAGES}", {"queue": "q"}, ("message_id", "body")),
        ("QUEUE string, Message_ID string, Body binary", {}, ("queue", "message_id", "body")),
        (
            f"{MESSAGES}, headers map<string,int>, content_type string, expires_at timestamp",
            {"path": "q"},
            ("message_id", "body", "headers", "content_type", "expires_at"),
        ),
        *[
            (f"{MESSAGES}, ttl_ms {whole}", {"path": "q"}, ("message_id", "body", "ttl_ms"))
            for whole in ("tinyint", "bigint")
        ],
        (f"{MESSAGES}, delay interval", {"path": "q"}, ("message_id", "body", "delay")),
        (f"{MESSAGES}, deliver_at timestamp", {"path": "q"}, ("message_id", "body", "deliver_at")),
        ("message_id string, body string, ttl interval", {"path": "q"}, ("message_id", "body", "ttl")),
        ("body binary", {"path": "q", "idempotency": "off"}, ("body",)),
        (f"{MESSAGES}, died_at timestamp, reason string, death_count int", {"path": "q"}, ("message_id", "body")),
        (LETTERS, {"operation": "redrive"}, ("queue", "sequence", "source")),
        ("sequence string, carrier string", {"operation": "purge", "queue": "d"}, ("sequence",)),
    ],
)
def test_an_operation_uses_what_it_knows_and_leaves_what_the_reader_adds(
    ddl: str, options: dict[str, str], used: tuple[str, ...]
) -> None:
    assert planned(ddl, **options).columns == used


@pytest.mark.parametrize(
    "ddl, options, told",
    [
        (MESSAGES, {}, "queue: enqueue needs this column (or option queue)"),
        ("body binary", {"queue": "q"}, "message_id: enqueue needs this column (or option idempotency=off"),
        ("message_id string", {"queue": "q"}, "body: enqueue needs this column; it uses queue string"),
        ("message_id int, body binary", {"queue": "q"}, "message_id: expected string, got int"),
        ("message_id string, body int", {"queue": "q"}, "body: expected binary or string, got int"),
        (f"{MESSAGES}, header map<string,string>", {"queue": "q"}, "header: enqueue has no such column; did you"),
        (f"{MESSAGES}, price double", {"queue": "q"}, "price: enqueue has no such column; drop it"),
        *[
            (f"{MESSAGES}, ttl {number}", {"queue": "q"}, f"ttl: expected string or an interval, got {number}{NO_UNIT}")
            for number in ("tinyint", "bigint", "double", "decimal(10,3)")
        ],
        (f"{MESSAGES}, delay int", {"queue": "q"}, f"delay: expected string or an interval, got int{NO_UNIT_OF_DELAY}"),
        (f"{MESSAGES}, ttl boolean", {"queue": "q"}, "ttl: expected string or an interval, got boolean"),
        (f"{MESSAGES}, ttl_ms string", {"queue": "q"}, "ttl_ms: expected bigint, got string"),
        (f"{MESSAGES}, ttl_ms int, ttl string", {"queue": "q"}, "ttl_ms: set ttl or ttl_ms, not both"),
        (f"{MESSAGES}, expires_at timestamp_ntz", {"queue": "q"}, "expires_at: expected timestamp, got timestamp_ntz"),
        (f"{MESSAGES}, headers string", {"queue": "q"}, "headers: expected map<string,string>, got string"),
        (f"{MESSAGES}, message_id string", {"queue": "q"}, "message_id: the column occurs twice"),
        (f"{MESSAGES}, Message_ID string", {"queue": "q"}, "Message_ID: the column occurs twice"),
        ("sequence string", {"operation": "redrive"}, "queue: redrive needs this column (or option queue)"),
        ("queue string", {"operation": "purge"}, "sequence: purge needs this column"),
        ("queue string, sequence bigint", {"operation": "purge"}, "sequence: expected string, got bigint"),
    ],
)
def test_columns_that_do_not_fit_are_named(ddl: str, options: dict[str, str], told: str) -> None:
    with pytest.raises(InvalidSchema) as caught:
        planned(ddl, **options)

    assert str(caught.value).startswith(f"[RQTTL_INVALID_SCHEMA] {told}")


@pytest.mark.parametrize(
    "options, told",
    [
        ({"operation": "delete"}, "operation: expected one of enqueue, redrive, purge, got 'delete'"),
        ({"operation": "redrive", "idempotency": "off"}, "idempotency: only for operation=enqueue"),
        ({"operation": "purge", "idempotencyTtl": "1d"}, "idempotencyTtl: only for operation=enqueue"),
        ({"operation": "purge", "maxQueueDepth": "5"}, "maxQueueDepth: not for operation=purge"),
        ({"rejectedPath": "s3://bucket/x"}, "rejectedPath: expected a folder in the file system of the executors"),
        ({"queue": "a b"}, "queue: queue name: expected 1 to 128 of"),
    ],
)
def test_options_that_make_no_sense_are_named(options: dict[str, str], told: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        planned(f"{LETTERS}, {MESSAGES}", **options)

    assert str(caught.value).startswith(f"[RQTTL_INVALID_OPTION] {told}")


@pytest.mark.parametrize("kind", [RqttlBatchWriter, RqttlStreamWriter])
def test_a_writer_is_not_made_where_its_queue_or_redis_is_not(
    kind: type[RqttlBatchWriter | RqttlStreamWriter], broker: Broker, redis_url: str
) -> None:
    def make(**options: str) -> None:
        kind(columns(f"queue string, {MESSAGES}"), Options.parse("write", options), overwrite=False)

    with pytest.raises(NoSuchQueue, match="queue: there is no queue 'nobody' in namespace 'rqttl'; declare it first"):
        make(url=redis_url, queue="nobody")
    with pytest.raises(Unreachable, match=r"url: redis://127\.0\.0\.1:1/0 cannot be reached") as caught:
        make(url="redis://:canary@127.0.0.1:1", connectRetries="0")
    assert "canary" not in str(caught.value)
    broker.declare_queue("somebody")
    make(url=redis_url, queue="somebody")
    make(url=redis_url)


def test_a_user_without_rights_is_told_which(broker: Broker, redis_url: str) -> None:
    redis_of(broker).execute_command("ACL", "SETUSER", "poor", "on", ">canary", "~*", "+@connection")
    said = {"url": redis_url, "username": "poor", "password": "canary", "queue": "q"}

    with pytest.raises(SourceError) as caught:
        RqttlBatchWriter(columns(MESSAGES), Options.parse("write", said), overwrite=False)

    redis_of(broker).execute_command("ACL", "DELUSER", "poor")
    assert str(caught.value).startswith("[RQTTL_NO_PERMISSION] username: user 'poor' may not")
    assert str(caught.value).endswith(
        "Writing needs the keys rqttl:*; `rqttl doctor`, run as this user, names the missing rights"
    )
    assert "canary" not in str(caught.value)
