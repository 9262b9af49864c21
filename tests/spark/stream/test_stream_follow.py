"""Following queues without Spark: positions, names, what a reader plans and reads, and offsets as Spark keeps them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import InputPartition

from rqttl import Broker, Message
from spark_connectors.errors import InvalidOffset, NoPermission, NoSuchQueue
from spark_connectors.ranges import sequence_text
from spark_connectors.read.positions import QueuePosition
from spark_connectors.redis.connect import READ_COMMANDS
from spark_connectors.stream.mark_plan import BatchLimit
from spark_connectors.stream.offsets import Offset
from spark_connectors.stream.reader import RqttlStreamReader
from spark_connectors.versions import ReadAllAvailable, ReadMaxBytes, ReadMaxRows, ReadMinRows
from tests.contract.clocked import Clocked
from tests.servers import Server
from tests.spark.following import Follow, again, held, letters, rows, stream_reader


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


def test_a_backlog_within_the_limit_is_not_walked_through(client: redis.Redis, broker: Broker, follow: Follow) -> None:
    queue = broker.declare_queue("a")
    letters(queue, 500)
    start = follow(queues="a").latest(follow(queues="a").initial(), None)
    letters(queue, 10)
    client.config_resetstat()

    end = follow(queues="a").latest(start, BatchLimit(10))

    assert "cmdstat_xrange" not in client.info("commandstats")
    assert rows(client, follow(queues="a"), start, end) == {"a": 10}


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


@pytest.mark.parametrize(
    "wide, narrow",
    [
        ({"queues": "a.x,b"}, {"queues": "a.x"}),
        ({"queuePattern": "#"}, {"queuePattern": "a.#"}),
        ({"queuePattern": "#"}, {"queues": "a.x"}),
    ],
)
def test_a_stream_that_is_narrowed_and_widened_again_reads_nothing_twice(
    wide: dict[str, str], narrow: dict[str, str], client: redis.Redis, broker: Broker, follow: Follow
) -> None:
    for name in ("a.x", "b"):
        letters(broker.declare_queue(name), 5)
    first = follow(**wide).latest(follow(**wide).initial(), None)
    letters(broker.queue("a.x"), 2)
    letters(broker.queue("b"), 3)

    second = follow(**narrow).latest(again(first), None)
    third = follow(**wide).latest(again(second), None)

    assert rows(client, follow(**narrow), first, second) == {"a.x": 2}
    assert rows(client, follow(**wide), second, third) == {"b": 3}


def test_a_name_that_is_neither_a_queue_nor_in_the_checkpoint_is_refused_at_a_restart(
    broker: Broker, follow: Follow
) -> None:
    letters(broker.declare_queue("a"), 5)
    start = follow(queues="a").latest(follow(queues="a").initial(), None)

    with pytest.raises(NoSuchQueue, match=r"^\[RQTTL_QUEUE_NOT_FOUND\] queues: there is no queue 'aa' .*checkpoint"):
        follow(queues="a,aa").latest(again(start), None)


def test_a_named_queue_that_was_deleted_behind_a_query_stops_no_restart_and_starts_anew(
    client: redis.Redis, broker: Broker, follow: Follow
) -> None:
    for name in "ab":
        letters(broker.declare_queue(name), 5)
    start = follow(queues="a,b").latest(follow(queues="a,b").initial(), None)
    broker.queue("b").delete()
    letters(broker.queue("a"), 1)

    without = follow(queues="a,b").latest(again(start), None)
    letters(broker.queue("a"), 1)
    narrowed = follow(queues="a").latest(again(without), None)
    letters(broker.declare_queue("b"), 3)
    back = follow(queues="a,b").latest(again(narrowed), None)

    assert set(without.positions) == {"a"}
    assert without.gone == narrowed.gone == {"b"}
    assert rows(client, follow(queues="a,b"), narrowed, back) == {"b": 3}
    assert back.gone == frozenset()


def test_a_named_queue_that_is_deleted_unread_while_a_query_runs_stops_it_not(broker: Broker, follow: Follow) -> None:
    letters(broker.declare_queue("a"), 5)
    start = follow(queues="a").latest(follow(queues="a").initial(), None)
    broker.declare_queue("b")
    planner = follow(queues="a,b")
    assert planner.latest(again(start), None) == start

    broker.queue("b").delete()

    assert [planner.latest(start, None) for _ in range(3)] == [start] * 3


Readers = Callable[..., RqttlStreamReader]


@pytest.fixture
def reader(server: Server) -> Readers:
    """A reader of a new process: `reader(queues="a", numPartitions=3)`."""
    return partial(stream_reader, server.url)


def batch(reader: RqttlStreamReader) -> tuple[dict[str, Any], dict[str, Any]]:
    """The offsets of a first batch of all that is there."""
    start = reader.initialOffset()
    return start, reader.latestOffset(start, ReadAllAvailable())


def pairs(batches: Iterator[pa.RecordBatch]) -> list[tuple[str, str]]:
    return [(row["queue"], row["sequence"]) for batch in batches for row in batch.to_pylist()]


def read(reader: RqttlStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[tuple[str, str]]:
    """All rows of a batch, task by task."""
    return [row for partition in reader.partitions(start, end) for row in pairs(reader.read(partition))]


def fill(broker: Broker, queue: str, count: int) -> None:
    broker.declare_queue(queue).enqueue_many([Message(b"x" * 50)] * count)


@pytest.mark.parametrize("parts", [1, 5, 40])
def test_rows_come_in_the_same_order_however_many_tasks_read_them(parts: int, reader: Readers, broker: Broker) -> None:
    for name, count in (("b", 25_000), ("a", 300), ("c", 3), ("d", 12_000), ("e", 1)):
        fill(broker, name, count)
    made = reader(queuePattern="#", numPartitions=parts)

    start, end = batch(made)

    assert len(made.partitions(start, end)) in range(min(parts, 4), parts + 1)
    assert read(made, start, end) == held(broker, "a", "b", "c", "d", "e")


def test_nothing_to_read_is_no_task_and_what_spark_makes_of_that_reads_nothing(reader: Readers, broker: Broker) -> None:
    broker.declare_queue("a")
    made = reader(queues="a")

    start, end = batch(made)

    assert end is start
    assert made.partitions(start, end) == []
    assert list(made.read(InputPartition(None))) == []


def test_the_limits_of_the_options_are_what_spark_is_told(reader: Readers, broker: Broker) -> None:
    fill(broker, "a", 10)

    assert reader(queues="a").getDefaultReadLimit() == ReadAllAvailable()
    assert reader(queues="a", maxEntriesPerTrigger=7).getDefaultReadLimit() == ReadMaxRows(7)
    assert reader(queues="a", maxBytesPerTrigger=7).getDefaultReadLimit() == ReadMaxBytes(7)
    assert reader(queues="a", minEntriesPerTrigger=7).getDefaultReadLimit() == ReadMinRows(7)
    assert reader(queues="a", minEntriesPerTrigger=7, maxEntriesPerTrigger=9).getDefaultReadLimit() == ReadMaxRows(9)
    assert reader(queues="a", maxBytesPerTrigger="1k").getDefaultReadLimit() == ReadMaxBytes(1_024)
    made = reader(queues="a", maxEntriesPerTrigger=7)
    start = made.initialOffset()
    ends = [made.latestOffset(start, limit) for limit in (ReadMaxRows(3), ReadMaxBytes(60), ReadMinRows(99))]
    assert [len(read(made, start, end)) for end in ends] == [3, 1, 10]


def test_a_user_who_may_only_read_can_follow_and_a_missing_right_is_told_before_a_task_starts(
    client: redis.Redis, reader: Readers, broker: Broker
) -> None:
    fill(broker, "a", 20_000)
    granted = [f"+{command}" for command in READ_COMMANDS]
    client.acl_setuser("reader", enabled=True, passwords=["+c4n4ry"], keys=["rqttl:*"], commands=granted)
    made = reader(queuePattern="#", numPartitions=3, username="reader", password="c4n4ry")
    try:
        start = made.initialOffset()
        end = made.latestOffset(start, ReadMaxRows(15_000))
        assert read(made, start, end) == held(broker, "a")[:15_000]

        client.acl_setuser("reader", enabled=True, commands=["-xrange"])
        told = r"^\[RQTTL_NO_PERMISSION\] username: user 'reader' may not run XRANGE"
        with pytest.raises(NoPermission, match=told) as raised:
            made.partitions(start, end)
        assert "c4n4ry" not in str(raised.value)
    finally:
        client.acl_deluser("reader")


BORN = 1_600_000_000_000


def at(n: int) -> str:
    """The n-th sequence of these tests."""
    return f"{1_700_000_000_000 + n}-100000"


sequences = st.integers(0, 10**13 - 1).map(lambda ms: sequence_text(ms * 1_000_000 + 100_000))
positions = st.dictionaries(
    st.sampled_from(["a", "b/dead", "{c}.d"]),
    st.builds(
        QueuePosition,
        sequences,
        st.integers(0, 2**50),
        st.integers(0, 2**50),
        st.one_of(st.just(""), sequences),
        st.integers(0, 1000),
    ),
)
offsets = st.builds(
    Offset,
    positions,
    st.one_of(st.none(), positions),
    st.booleans(),
    st.frozensets(st.sampled_from(["gone", "d"])),
    st.sampled_from(["", "9f86d081884c7d65"]),
    st.dictionaries(st.sampled_from(["a", "b/dead"]), sequences),
)


@given(offsets)
def test_an_offset_survives_the_checkpoint_and_equal_ones_are_the_same_text(offset: Offset) -> None:
    turned = replace(offset, positions=dict(reversed(list(offset.positions.items()))))

    assert Offset.parse(json.loads(json.dumps(offset.dump()))) == offset
    assert turned.text == offset.text == Offset.parse(json.loads(offset.text)).text


def test_the_text_of_an_offset_is_short_and_in_order() -> None:
    offset = Offset({"b": QueuePosition(at(2), BORN, 20), "a": QueuePosition(at(1), BORN, 10, at(5), 7)})

    assert offset.text == (
        '{"queues":{"a":["1700000000001-100000",1600000000000,10,"1700000000005-100000",7],'
        '"b":["1700000000002-100000",1600000000000,20]},"v":2}'
    )


@pytest.mark.parametrize(
    "found",
    [
        {},
        {"v": 1, "queues": {}},
        {"v": 2},
        {"v": 2, "queues": []},
        {"v": 2, "queues": {"a": ["nowhere", 1, 2]}},
        {"v": 2, "queues": {"a": [at(1), 1, 2, "", 0, 9]}},
        {"v": 2, "queues": {}, "gone": "ab"},
        {"v": 2, "queues": {}, "began": {"a": [7]}},
    ],
)
def test_an_invalid_offset_is_refused_by_name(found: dict[str, object]) -> None:
    with pytest.raises(InvalidOffset, match=r"^\[RQTTL_INVALID_OFFSET\] offset in the checkpoint: "):
        Offset.parse(found)
