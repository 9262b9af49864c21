"""A batch over several servers: its tasks, the column `server`, and servers that are away."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable

import pytest
from pyspark.sql.datasource import EqualTo, Filter, In, Not

from rqttl import Message
from spark_connectors.errors import DataLoss, InvalidOption, NoSuchQueue, Unreachable
from spark_connectors.read.batch import BatchPartition
from tests.servers import Server
from tests.spark.fleets import Fleet, fleet_of
from tests.spark.letters import bury
from tests.spark.reading import Job, filtered, loader

COLUMNS = ("queue", "server", "message_id")


def counts(job: Job) -> Counter[tuple[str, str]]:
    return Counter((row["server"], row["queue"]) for row in job.rows())


def test_a_batch_has_the_messages_of_all_servers_each_once(fleet: Fleet) -> None:
    bury(fleet.brokers["eu"], 700)
    bury(fleet.brokers["us"], 40)
    bury(fleet.brokers["us"], 60, into="mails/dead", source="mails")

    job = loader(fleet.url)(COLUMNS, queuePattern="#/dead", numPartitions=3, rowsPerPartition=10)

    assert counts(job) == {("eu", "orders/dead"): 700, ("us", "orders/dead"): 40, ("us", "mails/dead"): 60}
    ids = [(row["server"], row["queue"], row["message_id"]) for row in job.rows()]
    assert len(set(ids)) == len(ids)
    assert len(job.partitions) == 3


@pytest.mark.parametrize("most", [1, 2, 5])
def test_a_job_over_many_servers_has_no_more_tasks_than_the_options_say(
    most: int, start_server: Callable[..., Server]
) -> None:
    with fleet_of(start_server, *"abcd") as fleet:
        for i, name in enumerate("abcd"):
            bury(fleet.brokers[name], 30 * (i + 1))
        job = loader(fleet.url)(COLUMNS, queues="orders/dead", numPartitions=most)

        assert len(job.partitions) <= most
        assert sum(counts(job).values()) == 300


def test_a_server_without_a_name_has_host_port_and_database(fleet: Fleet) -> None:
    bury(fleet.brokers["eu"], 2)
    bury(fleet.brokers["us"], 3)
    eu, us = fleet.servers["eu"], fleet.servers["us"]

    job = loader(f"{eu.url}, {us.url}")(COLUMNS, queues="orders/dead")

    assert counts(job) == {(f"{eu.socket}/0", "orders/dead"): 2, (f"{us.socket}/0", "orders/dead"): 3}


def test_a_schema_may_ask_for_the_server_of_a_read_of_one(fleet: Fleet) -> None:
    bury(fleet.brokers["eu"], 2)
    socket = fleet.servers["eu"].socket

    assert loader(fleet.servers["eu"].url)(("server",), queues="orders/dead").rows() == [{"server": f"{socket}/0"}] * 2
    assert loader(fleet.url_of("eu"))(("server",), queues="orders/dead").rows() == [{"server": "eu"}] * 2


@pytest.mark.parametrize("columns", [("queue",), ("server", "queue"), ("queue", "server"), ("server",)])
def test_whole_queues_of_several_servers_are_counted_without_a_page(fleet: Fleet, columns: tuple[str, ...]) -> None:
    bury(fleet.brokers["eu"], 1_200)
    bury(fleet.brokers["us"], 34)
    job = loader(fleet.url)(columns, queues="orders/dead")
    for client in fleet.clients.values():
        client.config_resetstat()

    rows = job.rows()

    assert len(rows) == 1_234
    assert set(rows[0]) == set(columns)
    if "server" in columns:
        assert Counter(row["server"] for row in rows) == {"eu": 1_200, "us": 34}
    for client in fleet.clients.values():
        assert "cmdstat_xrange" not in client.info("commandstats")


def test_offsets_are_those_of_each_server(fleet: Fleet) -> None:
    letters = {name: bury(broker, 10).peek(10) for name, broker in fleet.brokers.items()}
    starts = {"eu": {"orders/dead": letters["eu"][2].sequence}}
    ends = {"us": {"orders/dead": letters["us"][3].sequence}}

    job = loader(fleet.url)(
        COLUMNS, queues="orders/dead", startingOffsets=json.dumps(starts), endingOffsets=json.dumps(ends)
    )

    assert counts(job) == {("eu", "orders/dead"): 7, ("us", "orders/dead"): 4}


def test_a_queue_has_to_be_on_one_server_at_least(fleet: Fleet) -> None:
    bury(fleet.brokers["eu"], 3)
    fleet.brokers["us"].declare_queue("other")

    assert counts(loader(fleet.url)(COLUMNS, queues="orders/dead,other")) == {("eu", "orders/dead"): 3}
    with pytest.raises(NoSuchQueue, match=r"there is no queue 'order/dead' .* did you mean orders/dead"):
        loader(fleet.url)(COLUMNS, queues="order/dead")


def test_the_same_server_by_two_names_is_refused(fleet: Fleet) -> None:
    bury(fleet.brokers["eu"], 3)
    url = fleet.servers["eu"].url

    with pytest.raises(InvalidOption, match="url: servers 'a' and 'b' have the same data"):
        loader(f"a={url},b={url}?db=0")(COLUMNS, queues="orders/dead")


def test_a_lost_server_fails_a_batch_and_its_error_has_the_name(fleet: Fleet) -> None:
    bury(fleet.brokers["eu"], 3)
    fleet.servers["us"].kill()

    with pytest.raises(Unreachable, match=r"^\[RQTTL_UNREACHABLE\] server 'us': url: unix://"):
        loader(fleet.url)(COLUMNS, queues="orders/dead")


def test_a_skipped_server_is_told_and_all_of_them_cannot_be_skipped(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    bury(fleet.brokers["eu"], 3)
    fleet.servers["us"].kill()
    load = loader(fleet.url)

    with caplog.at_level(logging.WARNING, "spark_connectors"):
        job = load(COLUMNS, queues="orders/dead,only-on-us", onServerLost="skip")

    assert counts(job) == {("eu", "orders/dead"): 3}
    assert "server 'us': url: unix://" in caplog.text
    assert "goes on without the server (onServerLost=skip)" in caplog.text
    fleet.servers["eu"].kill()
    with pytest.raises(Unreachable):
        load(COLUMNS, queues="orders/dead", onServerLost="skip")


@pytest.mark.parametrize("policy", ["fail", "skip"])
def test_a_server_that_goes_away_after_the_plan_fails_its_task_and_no_row_is_missing_silently(
    fleet: Fleet, policy: str
) -> None:
    bury(fleet.brokers["eu"], 3)
    bury(fleet.brokers["us"], 3)
    job = loader(fleet.url)(COLUMNS, queues="orders/dead", onServerLost=policy)
    fleet.servers["us"].kill()

    with pytest.raises(Unreachable, match="server 'us': "):
        job.rows()


def test_losses_are_judged_by_server_and_named(fleet: Fleet) -> None:
    for broker in fleet.brokers.values():
        bury(broker, 5)
    job = loader(fleet.url)(COLUMNS, queues="orders/dead")
    fleet.brokers["us"].queue("orders/dead").purge()

    with pytest.raises(DataLoss, match=r"^\[RQTTL_DATA_LOSS\] server 'us': queue 'orders/dead': messages after"):
        job.rows()


def test_tasks_of_one_partition_read_each_server_with_its_own_connection(fleet: Fleet) -> None:
    for name, broker in fleet.brokers.items():
        broker.declare_queue("plain").enqueue_many([Message(b"x", id=f"{name}-{i}") for i in range(50)])

    job = loader(fleet.url)(COLUMNS, queues="plain", numPartitions=1)

    [partition] = job.partitions
    assert isinstance(partition, BatchPartition)
    assert {watched.server for watched in partition.ranges} == {"eu", "us"}
    assert {row["message_id"].split("-")[0] for row in job.rows() if row["server"] == "us"} == {"us"}
    assert counts(job) == {("eu", "plain"): 50, ("us", "plain"): 50}


def connections(fleet: Fleet) -> dict[str, int]:
    return {name: client.info("stats")["total_connections_received"] for name, client in fleet.clients.items()}


@pytest.mark.parametrize(
    "condition, chosen",
    [
        (EqualTo(("server",), "us"), ["us"]),
        (In(("server",), ("us", "mars")), ["us"]),
        (In(("server",), ("us", "eu")), ["eu", "us"]),
        (EqualTo(("server",), "mars"), []),
        (Not(EqualTo(("server",), "us")), ["eu", "us"]),
        (EqualTo(("server",), None), ["eu", "us"]),
    ],
)
def test_a_filter_on_the_server_leaves_plan_and_tasks_to_the_chosen_ones(
    condition: Filter, chosen: list[str], fleet: Fleet
) -> None:
    for broker in fleet.brokers.values():
        bury(broker, 30)
    before = connections(fleet)

    job = filtered(fleet.url, COLUMNS, condition, queues="orders/dead", numPartitions=4)

    assert counts(job) == {(name, "orders/dead"): 30 for name in chosen}
    assert [name for name, count in connections(fleet).items() if count > before[name]] == chosen


def test_a_server_that_no_filter_chooses_may_be_away_and_its_queues_are_not_looked_for(fleet: Fleet) -> None:
    bury(fleet.brokers["eu"], 3)
    fleet.servers["us"].kill()
    eu = EqualTo(("server",), "eu")

    assert counts(filtered(fleet.url, COLUMNS, eu, queues="orders/dead,only-on-us")) == {("eu", "orders/dead"): 3}
    assert filtered(fleet.url, COLUMNS, eu, EqualTo(("server",), "us"), queues="orders/dead").rows() == []
    with pytest.raises(Unreachable, match="server 'us'"):
        filtered(fleet.url, COLUMNS, EqualTo(("queue",), "orders/dead"), queues="orders/dead")


def test_a_filter_on_the_server_holds_for_a_read_of_one(fleet: Fleet) -> None:
    bury(fleet.brokers["eu"], 3)
    eu = fleet.servers["eu"]

    for url, name in ((eu.url, f"{eu.socket}/0"), (fleet.url_of("eu"), "eu")):
        assert len(filtered(url, COLUMNS, EqualTo(("server",), name), queues="orders/dead").rows()) == 3
        assert filtered(url, COLUMNS, EqualTo(("server",), "us"), queues="orders/dead").rows() == []
