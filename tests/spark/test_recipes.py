"""The README of the data source: each of its examples runs on real dead letters, with the result that it claims."""

import contextlib
import io
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from pyspark.sql import SparkSession

import spark_connectors
from rqttl import Broker, Message, Queue
from rqttl.protocol.keys import Keyspace
from rqttl.protocol.roles import plain_calls, rules
from spark_connectors.redis.connect import READ_COMMANDS
from tests.contract.clocked import Clocked
from tests.servers import Server
from tests.unit.test_docs import SPARK, read

#: How long after its deadline a message was found to be over, in ms, and how many were found so late.
LATE = {2: 31, 7: 4, 40: 12, 700: 6, 15_000: 2}
#: The orders that were rejected, by the version of the shop that sent them.
REJECTED = {"1.4.0": 9, "1.3.7": 1}
MAILS = 5
_MINUTE = 60_000


def bad_evening(broker: Clocked) -> None:
    """One bad evening from 22:13:20 UTC on, always the same. In the end the queues `orders` and `mails` are empty.

    Orders expire, some long after their deadline; a new version of the shop sends orders that nobody can handle;
    between 23 and 24 o'clock the mail server is away.
    """
    orders = broker.declare_queue("orders", dead_letter="orders/dead")
    mails = broker.declare_queue("mails", dead_letter="mails/dead", max_deliveries=3)
    _expire(broker, orders)
    for version, count in REJECTED.items():
        orders.enqueue_many(
            [
                Message({"item": i}, id=f"order-{version}-{i}", headers={"version": version, "region": "eu"})
                for i in range(count)
            ]
        )
        orders.reject_many(orders.receive_many(count), "no such item")
    _fail(mails, 2, "welcome")
    broker.go_to(50 * _MINUTE)
    _fail(mails, MAILS, "invoice")
    broker.go_to(130 * _MINUTE)
    _fail(mails, 1, "welcome")


def _expire(broker: Clocked, queue: Queue) -> None:
    for late, count in LATE.items():
        queue.enqueue_many(
            [
                Message({"item": i}, id=f"order-{late}-{i}", ttl="1m", headers={"version": "1.3.7", "region": "us"})
                for i in range(count)
            ]
        )
        broker.advance(_MINUTE + late)
        queue.sweep()


def _fail(queue: Queue, count: int, template: str) -> None:
    sent = [Message(f"{template} {i}", id=f"{template}-{i}", headers={"template": template}) for i in range(count)]
    queue.enqueue_many(sent)
    for _ in range(3):
        queue.nack_many(queue.receive_many(count))


START = "redis://redis.internal:6379/0"
LAKE = "/srv/lake"
#: The query of a test has a trigger each second: it is done when one of them has found nothing new.
MINUTE, SECOND = 'processingTime="1 minute"', 'processingTime="1 second"'
RECIPES = (
    "Top causes",
    "How late messages expired",
    "Poison messages, by header",
    "Replay one hour",
    "Append to a table every minute",
)
Recipe = Callable[[str], dict[str, Any]]


def examples() -> list[tuple[str, str]]:
    """The Python examples, each with the heading that it stands under."""
    parts = re.split(r"^#+ (.*)$", read(SPARK), flags=re.MULTILINE)
    return [
        (heading, code)
        for heading, text in zip(parts[1::2], parts[2::2], strict=True)
        for code in re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    ]


def rows(printed: str) -> list[list[str]]:
    """Return the rows that `show()` printed, without its heading."""
    lines = [line for line in printed.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


@pytest.fixture
def recipe(spark: SparkSession, clocked: Clocked, redis_url: str, tmp_path: Path) -> Iterator[Recipe]:
    """Runs the examples of a heading, after the first one; gives their names, and what the last `printed`."""
    spark_connectors.register(spark)
    bad_evening(clocked)
    done: dict[str, Any] = {}

    def run(title: str) -> dict[str, Any]:
        (first, _), *_ = examples()
        wanted = {title} if done else {first, title}
        for code in [code for heading, code in examples() if heading in wanted]:
            printed = io.StringIO()
            adapted = code.replace(START, redis_url).replace(LAKE, str(tmp_path / "lake")).replace(MINUTE, SECOND)
            with contextlib.redirect_stdout(printed):
                exec(compile(adapted, SPARK, "exec"), done)  # noqa: S102  # running them is the test
            done["printed"] = printed.getvalue()
            said = re.findall(r"^#> (.*)$", code, re.MULTILINE)
            assert not said or said == done["printed"].split("\n")[: len(said)]
        return done

    yield run
    if "query" in done:
        done["query"].stop()


def test_each_example_stands_where_a_test_finds_it() -> None:
    headings = [heading for heading, _ in examples()]

    assert headings == ["Dead letters in Spark", "Columns", "Writing", *RECIPES]
    assert all(LAKE not in code or code.count(LAKE) == code.count(f'"{LAKE}/') for _, code in examples())
    assert [heading for heading, code in examples() if MINUTE in code] == ["Append to a table every minute"]


def test_the_first_examples_count_read_named_columns_and_write(recipe: Recipe, broker: Broker) -> None:
    done = recipe("Dead letters in Spark")
    of_orders = sum(LATE.values()) + sum(REJECTED.values())
    assert len(rows(done["printed"])) == 3
    assert done["letters"].count() == of_orders + MAILS + 3
    slim = recipe("Columns")["slim"]
    assert (slim.columns, slim.count()) == (["source", "died_at"], of_orders)

    recipe("Writing")

    [message] = broker.queue("orders").peek(10)
    assert (message.id, message.body) == ("order-18", b"two coffees")
    assert message.expires_at is not None


def test_top_causes_names_sources_reasons_and_descriptions(recipe: Recipe) -> None:
    found = rows(recipe("Top causes")["printed"])

    assert [row[:4] for row in found] == [
        ["orders", "expired", "NULL", str(sum(LATE.values()))],
        ["orders", "rejected", "no such item", str(sum(REJECTED.values()))],
        ["mails", "delivery_limit", "NULL", str(MAILS + 3)],
    ]
    assert found[2][4] == "2023-11-15 00:23:20"


def test_late_letters_are_counted_by_powers_of_ten(recipe: Recipe) -> None:
    expected = Counter[int]()
    for late, count in LATE.items():
        expected[10 ** len(str(late))] += count

    found = rows(recipe("How late messages expired")["printed"])

    assert [(int(below), int(count)) for below, count in found] == sorted(expected.items())


def test_poison_is_found_by_the_headers_that_it_has_in_common(recipe: Recipe) -> None:
    found = rows(recipe("Poison messages, by header")["printed"])

    assert found == [
        ["region", "eu", "10"],
        ["version", "1.4.0", "9"],
        ["template", "invoice", "5"],
        ["template", "welcome", "3"],
        ["version", "1.3.7", "1"],
    ]


@pytest.mark.parametrize("room", [None, 2])
def test_a_replay_moves_what_died_in_that_hour_and_nothing_else(
    recipe: Recipe, broker: Broker, tmp_path: Path, room: int | None
) -> None:
    queue = broker.queue("mails")
    recipe("Dead letters in Spark")
    queue.update(max_length=room, overflow="reject-publish")
    moved = MAILS if room is None else room

    recipe("Replay one hour")

    invoices = [f"invoice-{i}" for i in range(MAILS)]
    back = [message.id for message in queue.peek(100)]
    left = [letter.id for letter in broker.queue("mails/dead").peek(100)]
    assert len(back) == moved
    assert sorted(back + left) == sorted([*invoices, "welcome-0", "welcome-0", "welcome-1"])
    assert set(back) <= set(invoices)
    refused = [json.loads(line) for file in tmp_path.glob("lake/rejected/*") for line in file.read_text().splitlines()]
    assert [line["reason"] for line in refused] == ["queue_full"] * (MAILS - moved)


def test_a_table_gets_each_letter_once_and_those_to_come(
    recipe: Recipe, spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    query = recipe("Append to a table every minute")["query"]
    query.processAllAvailable()
    query.stop()
    broker.queue("orders").enqueue(b"late", id="late")
    broker.queue("orders").reject_many(broker.queue("orders").receive_many(1), "too late")
    query = recipe("Append to a table every minute")["query"]
    query.processAllAvailable()

    table = spark.read.parquet(str(tmp_path / "lake" / "dead_letters"))

    total = sum(LATE.values()) + sum(REJECTED.values()) + MAILS + 4
    assert (table.count(), table.select("queue", "sequence").distinct().count()) == (total, total)
    assert [row.message_id for row in table.where("description = 'too late'").collect()] == ["late"]
    assert {"2023-11-14", "2023-11-15"} < {str(row.day) for row in table.select("day").distinct().collect()}


def test_the_rights_that_are_named_suffice_for_reading_and_are_the_fewest(
    spark: SparkSession, start_server: Callable[..., Server]
) -> None:
    rights, _ = rules(["spark"], Keyspace())
    server = start_server()
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "analyst", "on", ">secret", *rights)
        bad_evening(Clocked(client))
    spark_connectors.register(spark)
    reader = spark.read.format("rqttl").options(url=server.url, username="analyst", password="secret")

    assert reader.options(queuePattern="#/dead").load().count() > MAILS
    assert {name.lower() for _, name in plain_calls(["spark"])} == {*READ_COMMANDS, "info"}
    with (
        redis.Redis.from_url(server.url, username="analyst", password="secret") as poor,
        pytest.raises(redis.exceptions.NoPermissionError),
    ):
        poor.xtrim("rqttl:{orders}/dead:log", maxlen=0)
