"""Counts from counters, and limits: how little of Redis a job needs for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import redis

from rqttl import Broker
from spark_connectors.errors import DataLoss
from tests.contract.clocked import START, Clocked
from tests.spark.letters import bury
from tests.spark.reading import Load, loader

ONLY_QUEUE = ("queue",)


@pytest.fixture
def load(redis_url: str) -> Load:
    return loader(redis_url)


def calls(client: redis.Redis, command: str) -> int:
    """The number of calls of a command since the server began."""
    stats: dict[str, Any] = client.info("commandstats")
    return int(stats.get(f"cmdstat_{command}", {"calls": 0})["calls"])


@pytest.fixture
def reads(client: redis.Redis) -> Callable[[Callable[[], object]], int]:
    """Runs a function, and returns the number of pages that it reads."""

    def count(run: Callable[[], object]) -> int:
        before = calls(client, "xrange")
        run()
        return calls(client, "xrange") - before

    return count


def counted(rows: list[dict[str, Any]]) -> Counter[str]:
    return Counter(row["queue"] for row in rows)


def test_whole_dead_letter_queues_are_counted_without_a_page(
    load: Load, broker: Broker, reads: Callable[[Callable[[], object]], int]
) -> None:
    bury(broker, 25_000)
    bury(broker, 7, into="mails/dead", source="mails")
    job = load(ONLY_QUEUE, queuePattern="#/dead", numPartitions=4)
    found: list[dict[str, Any]] = []

    assert reads(lambda: found.extend(job.rows())) == 0
    assert counted(found) == {"orders/dead": 25_000, "mails/dead": 7}


def test_letters_that_arrive_after_the_plan_are_not_counted(load: Load, broker: Broker) -> None:
    bury(broker, 100)
    job = load(ONLY_QUEUE, queues="orders/dead")
    bury(broker, 50, first=100)

    assert counted(job.rows()) == {"orders/dead": 100}


def test_letters_that_have_left_after_the_plan_are_not_counted(load: Load, broker: Broker) -> None:
    letters = bury(broker, 100)
    job = load(ONLY_QUEUE, queues="orders/dead")
    letters.ack_many(letters.receive_many(30))

    assert counted(job.rows()) == {"orders/dead": 70}


def test_a_part_of_a_queue_and_a_queue_without_dead_letters_are_read(load: Load, broker: Broker) -> None:
    sequence = bury(broker, 100).peek(40)[-1].sequence
    plain = broker.declare_queue("plain")
    plain.enqueue_many([b"x"] * 20)

    part = load(ONLY_QUEUE, queues="orders/dead", startingOffsets=f'{{"orders/dead": "{sequence}"}}')

    assert counted(part.rows()) == {"orders/dead": 60}
    assert counted(load(ONLY_QUEUE, queues="plain").rows()) == {"plain": 20}


def test_a_queue_that_is_deleted_after_the_plan_is_a_loss_for_a_count_too(load: Load, broker: Broker) -> None:
    letters = bury(broker, 100)
    job = load(ONLY_QUEUE, queues="orders/dead")
    letters.delete()

    with pytest.raises(DataLoss):
        job.rows()


def test_a_job_has_no_more_tasks_than_rows(load: Load, broker: Broker) -> None:
    bury(broker, 3)

    assert len(load(queues="orders/dead", numPartitions=400).partitions) == 3


# Stretches of time


def bury_by_hours(clocked: Clocked, hours: int, each: int) -> None:
    """Have letters die at the full hour."""
    for hour in range(hours):
        bury(clocked, each, first=hour * each)
        clocked.advance(3_600_000)


def hours(first: int, last: int) -> dict[str, str]:
    """The options of these hours, the last one not included."""
    names = ("startingTimestamp", "endingTimestamp")
    return {name: str(START + hour * 3_600_000) for name, hour in zip(names, (first, last), strict=True)}


@pytest.mark.parametrize("first, last", [(0, 9), (1, 12), (3, 20), (2, 13)])
def test_letters_of_some_hours_are_counted_from_the_ends_of_the_stretch(
    first: int, last: int, load: Load, clocked: Clocked, client: redis.Redis
) -> None:
    bury_by_hours(clocked, 12, 3_000)
    letters = clocked.queue("orders/dead")
    letters.ack_many(letters.receive_many(1_000))
    job = load(ONLY_QUEUE, queues="orders/dead", **hours(first, last))
    client.config_resetstat()

    found = counted(job.rows())

    sent = int(client.info("stats")["total_net_output_bytes"])
    expected = (min(last, 12) - first) * 3_000 - (1_000 if first == 0 else 0)
    assert found == {"orders/dead": expected}
    assert sent < 0.25 * expected * 300


@pytest.mark.parametrize("change", ["in the middle", "no index", "another type", "an arrival that died at once"])
def test_a_stretch_of_time_is_read_where_arrivals_do_not_tell_the_number(
    change: str, load: Load, clocked: Clocked, client: redis.Redis
) -> None:
    bury_by_hours(clocked, 4, 3_000)
    letters, expected = clocked.queue("orders/dead"), 9_000
    if change == "in the middle":
        chosen = [(letter.sequence, "orders") for letter in letters.peek(8_000)[7_900:]]
        letters.redrive_many(chosen)
        expected -= len(chosen)
    elif change == "an arrival that died at once":
        letters.enqueue(b"x", ttl=0)
    else:
        client.delete("rqttl:{orders}/dead:arrivals")
    if change == "another type":
        client.set("rqttl:{orders}/dead:arrivals", "x")

    assert counted(load(ONLY_QUEUE, queues="orders/dead", **hours(1, 4)).rows()) == {"orders/dead": expected}


def test_letters_that_a_limit_removes_before_the_count_of_a_stretch_are_a_loss(load: Load, clocked: Clocked) -> None:
    bury_by_hours(clocked, 5, 3_000)
    job = load(ONLY_QUEUE, queues="orders/dead", **hours(1, 5))
    clocked.queue("orders/dead").update(max_length=10_000)
    clocked.queue("orders/dead").sweep()

    with pytest.raises(DataLoss):
        job.rows()
