"""The tasks of a batch without Spark: what they read, in which order, and that nothing of it goes unnoticed."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
import redis
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows, ReadMinRows

from rqttl import Broker, Message
from spark_connectors.errors import DataLoss, NoPermission, Unreachable
from spark_connectors.options.options import Options
from spark_connectors.redis.connect import READ_COMMANDS
from spark_connectors.stream.reader import RqttlStreamReader
from tests.contract.clocked import Clocked
from tests.servers import Server

Readers = Callable[..., RqttlStreamReader]


@pytest.fixture
def reader(server: Server) -> Readers:
    """A reader of a new process: `reader(queues="a", numPartitions=3)`."""

    def make(**options: object) -> RqttlStreamReader:
        said = {"url": server.url, **{name: str(value) for name, value in options.items()}}
        return RqttlStreamReader(Options.parse("stream", said), ("queue", "sequence"))

    return make


def batch(reader: RqttlStreamReader) -> tuple[dict[str, Any], dict[str, Any]]:
    """The offsets of a first batch of all that is there."""
    start = reader.initialOffset()
    return start, reader.latestOffset(start, ReadAllAvailable())


def rows(batches: Iterator[pa.RecordBatch]) -> list[tuple[str, str]]:
    return [(row["queue"], row["sequence"]) for batch in batches for row in batch.to_pylist()]


def read(reader: RqttlStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[tuple[str, str]]:
    """All rows of a batch, task by task."""
    return [row for partition in reader.partitions(start, end) for row in rows(reader.read(partition))]


def fill(broker: Broker, queue: str, count: int) -> None:
    broker.declare_queue(queue).enqueue_many([Message(b"x" * 50)] * count)


def held(broker: Broker, *queues: str) -> list[tuple[str, str]]:
    return [(name, found.sequence) for name in sorted(queues) for found in broker.queue(name).peek(100_000)]


@pytest.mark.parametrize("parts", [1, 2, 5, 40])
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


def test_a_reader_is_made_without_connecting_and_travels_without_its_connection(
    reader: Readers, broker: Broker
) -> None:
    fill(broker, "a", 5)
    nowhere = reader(url="redis://127.0.0.1:1", queues="a", connectRetries=0)
    made = reader(queues="a")
    start, end = batch(made)
    partition = pickle.loads(pickle.dumps(made.partitions(start, end)[0]))  # noqa: S301  # as Spark does it

    arrived = pickle.loads(pickle.dumps(made))  # noqa: S301  # as Spark does it
    made.stop()

    assert rows(arrived.read(partition)) == held(broker, "a")
    assert made.latestOffset(end, ReadAllAvailable()) is end
    nowhere.stop()
    with pytest.raises(Unreachable):
        nowhere.initialOffset()


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


def test_the_newest_offset_is_told_beyond_what_a_limit_admits(reader: Readers, broker: Broker) -> None:
    fill(broker, "a", 10)
    made = reader(queues="a")
    end = made.latestOffset(made.initialOffset(), ReadMaxRows(3))

    assert made.reportLatestOffset()["queues"]["a"][0] == held(broker, "a")[-1][1]
    assert {**reader(queues="a").reportLatestOffset(), "unread": 7} == made.reportLatestOffset()
    assert end["queues"]["a"][0] == held(broker, "a")[2][1]


def test_messages_trimmed_between_the_pages_of_a_task_are_noticed(reader: Readers, broker: Broker) -> None:
    fill(broker, "a", 12_000)
    there = held(broker, "a")
    strict, lenient = reader(queues="a"), reader(queues="a", failOnDataLoss="false")
    start, end = batch(strict)
    [partition] = strict.partitions(start, end)
    going_on = [made.read(partition) for made in (strict, lenient)]
    begun = [next(batches) for batches in going_on]

    broker.queue("a").update(max_length=2_000)

    with pytest.raises(DataLoss, match=r"^\[RQTTL_DATA_LOSS\] queue 'a': messages after \d{13}-\d{6}, the highest"):
        list(going_on[0])
    got = rows(iter([begun[1], *going_on[1]]))
    assert got[: begun[1].num_rows] == there[: begun[1].num_rows]
    assert got[-2_000:] == there[-2_000:]
    assert len(got) < 12_000


def test_messages_that_a_task_has_read_already_may_be_trimmed(reader: Readers, broker: Broker) -> None:
    fill(broker, "a", 12_000)
    there = held(broker, "a")
    made = reader(queues="a")
    [partition] = made.partitions(*batch(made))
    batches = made.read(partition)
    begun = next(batches)

    broker.queue("a").update(max_length=12_000 - begun.num_rows)

    assert rows(iter([begun, *batches])) == there


@pytest.mark.parametrize("recreated", [False, True])
def test_a_queue_that_is_deleted_while_a_task_reads_it_is_noticed(
    recreated: bool, reader: Readers, broker: Broker
) -> None:
    fill(broker, "a", 12_000)
    made = reader(queues="a")
    [partition] = made.partitions(*batch(made))
    batches = made.read(partition)
    next(batches)

    broker.queue("a").delete()
    if recreated:
        fill(broker, "a", 12_000)

    with pytest.raises(DataLoss, match="queue 'a' was deleted"):
        list(batches)


@pytest.fixture
def acl(client: redis.Redis) -> Iterator[Callable[..., dict[str, str]]]:
    """Makes a user who may do these commands on the keys of rqttl, and gives the options for him."""

    def allow(*commands: str) -> dict[str, str]:
        granted = [f"+{command}" for command in commands]
        client.acl_setuser("reader", enabled=True, passwords=["+c4n4ry"], keys=["rqttl:*"], commands=granted)
        return {"username": "reader", "password": "c4n4ry"}

    yield allow
    client.acl_deluser("reader")


def test_a_user_who_may_only_read_can_follow(
    acl: Callable[..., dict[str, str]], reader: Readers, broker: Broker
) -> None:
    fill(broker, "a", 20_000)
    user = acl(*READ_COMMANDS)
    made = reader(queuePattern="#", numPartitions=3, **user)
    start = made.initialOffset()

    end = made.latestOffset(start, ReadMaxRows(15_000))

    assert read(made, start, end) == held(broker, "a")[:15_000]


def test_a_user_who_may_not_read_logs_is_told_before_a_task_starts(
    acl: Callable[..., dict[str, str]], reader: Readers, broker: Broker
) -> None:
    fill(broker, "a", 5)
    user = acl(*(command for command in READ_COMMANDS if command != "xrange"))
    made = reader(queues="a", **user)
    start, end = batch(made)

    with pytest.raises(
        NoPermission, match=r"^\[RQTTL_NO_PERMISSION\] username: user 'reader' may not run XRANGE"
    ) as raised:
        made.partitions(start, end)
    assert "c4n4ry" not in str(raised.value)


def test_messages_beside_the_log_count_in_a_limit_and_are_read(
    reader: Readers, clocked: Clocked, client: redis.Redis
) -> None:
    queue = clocked.declare_queue("a")
    queue.enqueue_many([Message(b"x" * 30, ttl=None if i % 20 == 0 else "5ms") for i in range(8_000)])
    clocked.advance(10)
    queue.sweep()
    queue.sweep()  # the first call has buried messages, and leaves the compaction to the next one
    fill(clocked, "a", 50)
    there = held(clocked, "a")
    assert client.hlen("rqttl:{a}:detached") >= 100
    assert len(there) == 450

    for options, limit in (({"maxEntriesPerTrigger": 30}, 30), ({"maxBytesPerTrigger": 1_000}, 33)):
        offset, batches = reader(queues="a").initialOffset(), []
        while True:
            made = reader(queues="a", **options)
            end = made.latestOffset(offset, made.getDefaultReadLimit())
            if end is offset:
                break
            batches.append(read(made, offset, end))
            offset = end
        assert sorted(row for batch in batches for row in batch) == there
        assert max(map(len, batches)) <= limit
        assert len(batches) <= 450 // limit + 2
