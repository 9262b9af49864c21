"""Following real queues without Spark: where batches end, limits, targets."""

from __future__ import annotations

import json

import pytest
import redis

from rqttl import Broker
from spark_connectors.errors import NoSuchQueue
from spark_connectors.stream.mark_plan import BatchLimit
from tests.contract.clocked import Clocked
from tests.servers import Server
from tests.spark.following import Follow, again, letters, planners, rows


@pytest.fixture
def follow(server: Server) -> Follow:
    return planners(server.url)


def test_a_batch_ends_with_what_is_there_and_the_next_begins_behind_it(
    client: redis.Redis, broker: Broker, follow: Follow
) -> None:
    queue = broker.declare_queue("a")
    letters(queue, 5)
    planner = follow(queues="a")

    first = planner.latest(planner.initial(), None)
    letters(queue, 3)
    second = follow(queues="a").latest(again(first), None)

    assert rows(client, planner, planner.initial(), first) == {"a": 5}
    assert rows(client, planner, first, second) == {"a": 3}
    assert planner.latest(second, None) is second


def test_latest_is_found_out_once(client: redis.Redis, broker: Broker, follow: Follow) -> None:
    queue = broker.declare_queue("a")
    letters(queue, 5)
    planner = follow(queues="a", startingOffsets="latest")

    initial = planner.initial()
    letters(queue, 3)
    end = planner.latest(initial, None)

    assert planner.initial() == initial
    assert rows(client, planner, initial, end) == {"a": 3}
    assert rows(client, planner, again(follow(queues="a", startingOffsets="latest").initial()), again(end)) == {"a": 3}


def test_starting_sequences_come_before_the_first_row(client: redis.Redis, clocked: Clocked, follow: Follow) -> None:
    sequences = []
    for name in "abcd":
        queue = clocked.declare_queue(name)
        for _ in range(5):
            clocked.advance(10)
            sequences.append(letters(queue, 1)[0])
    offsets = json.dumps({"a": sequences[1], "b": "latest", "c": "9999999999999-999999"})

    planner = follow(queuePattern="#", startingOffsets=offsets)
    since = follow(queuePattern="#", startingTimestamp=str(int(sequences[7][:13])))

    for reader, expected in ((planner, {"a": 3, "d": 5}), (since, {"b": 3, "c": 5, "d": 5})):
        assert rows(client, reader, reader.initial(), reader.latest(reader.initial(), None)) == expected


def test_a_named_queue_has_to_be_there_when_the_query_is_new(broker: Broker, follow: Follow) -> None:
    broker.declare_queue("a")

    with pytest.raises(NoSuchQueue, match=r"^\[RQTTL_QUEUE_NOT_FOUND\] queues: there is no queue 'b' .*queuePattern"):
        follow(queues="a,b").initial()
    assert not follow(queuePattern="EXP.#").initial().positions


def test_queues_that_come_later_are_read_from_their_first_message(
    client: redis.Redis, broker: Broker, follow: Follow
) -> None:
    planner = follow(queuePattern="EXP.#", startingOffsets="latest")
    start = planner.latest(planner.initial(), None)
    letters(broker.declare_queue("EXP.new"), 4)
    letters(broker.declare_queue("other"), 4)

    end = planner.latest(start, None)

    assert rows(client, planner, start, end) == {"EXP.new": 4}


def test_a_queue_that_is_deleted_and_made_again_is_read_from_its_beginning(
    client: redis.Redis, broker: Broker, follow: Follow, caplog: pytest.LogCaptureFixture
) -> None:
    letters(broker.declare_queue("a"), 5)
    start = follow(queues="a").latest(follow(queues="a").initial(), None)
    broker.queue("a").delete()
    gone = follow(queues="a").latest(start, None)
    letters(broker.declare_queue("a"), 2)
    end = follow(queues="a").latest(gone, None)

    assert gone is start
    assert rows(client, follow(queues="a"), start, end) == {"a": 2}
    assert caplog.records == []


def test_the_position_of_a_queue_that_is_gone_goes_with_the_next_batch(broker: Broker, follow: Follow) -> None:
    for name in "ab":
        letters(broker.declare_queue(name), 1)
    planner = follow(queuePattern="#")
    start = planner.latest(planner.initial(), None)

    broker.queue("a").delete()
    letters(broker.queue("b"), 1)

    assert set(planner.latest(start, None).positions) == {"b"}


def test_handled_messages_take_nothing_of_a_limit(client: redis.Redis, broker: Broker, follow: Follow) -> None:
    for name in "ab":
        letters(broker.declare_queue(name), 100)
    start = follow(queuePattern="#").initial()
    broker.queue("a").ack_many(broker.queue("a").receive_many(90))

    end = follow(queuePattern="#").latest(start, BatchLimit(60))

    assert rows(client, follow(queuePattern="#"), start, end) == {"a": 10, "b": 50}


def test_a_backlog_within_the_limit_is_not_walked_through(client: redis.Redis, broker: Broker, follow: Follow) -> None:
    queue = broker.declare_queue("a")
    letters(queue, 500)
    start = follow(queues="a").latest(follow(queues="a").initial(), None)
    letters(queue, 10)
    client.config_resetstat()

    end = follow(queues="a").latest(start, BatchLimit(10))

    assert "cmdstat_xrange" not in client.info("commandstats")
    assert rows(client, follow(queues="a"), start, end) == {"a": 10}


def test_a_message_larger_than_the_limit_of_bytes_is_read_alone(
    client: redis.Redis, broker: Broker, follow: Follow
) -> None:
    queue = broker.declare_queue("a")
    for size in (5, 5_000, 5):
        letters(queue, 1, b"x" * size)
    offset, batches = follow(queues="a").initial(), []

    while (end := follow(queues="a").latest(offset, BatchLimit(100, in_bytes=True))) != offset:
        batches.append(rows(client, follow(queues="a"), offset, end))
        offset = end

    assert batches == [{"a": 1}, {"a": 1}, {"a": 1}]


def test_a_target_is_reached_and_not_passed(client: redis.Redis, broker: Broker, follow: Follow) -> None:
    queue = broker.declare_queue("a")
    letters(queue, 10)
    letters(broker.declare_queue("b"), 3)
    planner = follow(queuePattern="#")
    offset = planner.initial()
    batches: list[dict[str, int]] = []
    planner.freeze()

    while True:
        letters(queue, 20)
        letters(broker.declare_queue(f"new{len(batches)}"), 1)
        end = planner.latest(offset, BatchLimit(4))
        if end is offset:
            break
        batches.append(rows(client, planner, offset, end))
        offset = again(end)

    assert sum(batch.get("a", 0) for batch in batches) == 10
    assert sum(batch.get("b", 0) for batch in batches) == 3
    assert all(sum(batch.values()) <= 4 for batch in batches)
    assert planner.newest().positions["a"].after > offset.positions["a"].after


def test_a_queue_that_is_made_again_after_the_target_was_set_waits_for_the_next_run(
    client: redis.Redis, broker: Broker, follow: Follow
) -> None:
    letters(broker.declare_queue("a"), 10)
    planner = follow(queues="a")
    start = planner.latest(planner.initial(), None)
    planner.freeze()
    broker.queue("a").delete()
    letters(broker.declare_queue("a"), 2)

    assert planner.latest(start, None) is start
    assert rows(client, planner, start, follow(queues="a").latest(start, None)) == {"a": 2}
