"""Batch reads of real queues without Spark: what is planned, that nothing is missed, repeated or changed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
import redis
from pyspark.sql.datasource import InputPartition

from rqttl import Broker, Message
from rqttl.units import as_datetime
from spark_connectors.errors import MalformedEntry, NoSuchQueue
from spark_connectors.read import plan
from spark_connectors.read.batch import BatchPartition
from spark_connectors.redis.bulk_reader import BulkReader
from spark_connectors.redis.connect import Command
from tests.contract.clocked import Clocked
from tests.servers import Server
from tests.spark.letters import bury
from tests.spark.reading import Load, hourly, loader, numbers


@pytest.fixture
def load(server: Server) -> Load:
    return loader(server.url)


@pytest.mark.parametrize("partitions", [1, 2, 3, 16])
def test_every_letter_is_read_once_by_any_number_of_tasks(broker: Broker, load: Load, partitions: int) -> None:
    bury(broker, 2_345)

    job = load(queues="orders/dead", numPartitions=partitions)

    assert job.ids() == numbers(2_345)
    assert len(job.partitions) == partitions
    assert max(len(job.task(i)) for i in range(partitions)) <= 2.5 * 2_345 / partitions


def test_rows_for_each_task_decide_how_many_there_are(
    broker: Broker, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    bury(broker, 1_000)

    assert len(load(queues="orders/dead").partitions) == 1
    monkeypatch.setattr(plan, "_TASK_ROWS", 250)
    assert len(load(queues="orders/dead").partitions) == 4
    monkeypatch.setattr(plan, "_TASK_ROWS", 10)
    assert len(load(queues="orders/dead").partitions) == 64


def test_many_small_queues_share_few_tasks(client: redis.Redis, broker: Broker, load: Load) -> None:
    for i in range(300):
        broker.declare_queue(f"EXP.q{i}").enqueue_many([Message(b"x", id=f"m-{i}-{n}") for n in range(i % 7)])

    job = load(queuePattern="EXP.#", numPartitions=3)

    expected = sorted(f"m-{i}-{n}" for i in range(300) for n in range(i % 7))
    assert job.ids() == expected
    assert len(job.partitions) == 3
    assert {row["queue"] for row in job.rows()} == {f"EXP.q{i}" for i in range(300) if i % 7}


def test_large_and_small_queues_together_are_shared_out_evenly(broker: Broker, load: Load) -> None:
    bury(broker, 3_000)
    for i in range(20):
        bury(broker, 50, source=f"s{i}", into=f"s{i}/dead")

    job = load(queuePattern="#/dead", numPartitions=4)

    assert sorted(len(job.task(i)) for i in range(4)) == pytest.approx([1_000] * 4, rel=0.4)
    assert len(job.rows()) == 4_000


def test_a_job_is_a_snapshot(broker: Broker, load: Load) -> None:
    bury(broker, 100)
    job = load(queues="orders/dead")

    bury(broker, 50, first=100)

    assert job.ids() == numbers(100)
    assert load(queues="orders/dead").ids() == numbers(150)


def test_reading_changes_nothing(client: redis.Redis, broker: Broker, load: Load) -> None:
    bury(broker, 100)
    before = client.info("persistence")["rdb_changes_since_last_save"]

    load(queues="orders/dead").rows()

    assert client.info("persistence")["rdb_changes_since_last_save"] == before


def test_leased_and_returned_letters_are_read_and_settled_ones_are_not(broker: Broker, load: Load) -> None:
    dead = bury(broker, 30)
    out = dead.receive_many(20)
    dead.ack_many(out[:5])
    dead.nack_many(out[5:10])

    assert load(queues="orders/dead").ids() == numbers(25, 5)


def test_a_letter_that_failed_too_often_says_its_last_error(broker: Broker, load: Load) -> None:
    orders = broker.declare_queue("orders", max_deliveries=2, dead_letter="orders/dead")
    orders.enqueue(b"x", id="poison")
    for text in ("first", "second"):
        delivery = orders.receive()
        assert delivery is not None
        with pytest.raises(ValueError, match=text), delivery:
            raise ValueError(text)

    (letter,) = load(("message_id", "reason", "delivery_count", "description"), queues="orders/dead").rows()

    assert (letter["message_id"], letter["reason"], letter["delivery_count"]) == ("poison", "delivery_limit", 2)
    assert letter["description"] == "ValueError: second"


def test_an_empty_queue_has_no_rows_and_one_task(broker: Broker, load: Load) -> None:
    broker.declare_queue("empty")

    job = load(queues="empty")

    assert len(job.partitions) == 1
    assert job.rows() == []


def test_a_pattern_that_matches_nothing_has_no_rows(client: redis.Redis, load: Load) -> None:
    assert load(queuePattern="none.#").rows() == []


def test_the_partition_that_spark_makes_of_nothing_has_no_rows(broker: Broker, load: Load) -> None:
    bury(broker, 1)
    job = load(queues="orders/dead")
    job.partitions = [InputPartition(None)]

    assert job.task(0) == []


def test_a_name_in_the_registry_without_a_queue_is_passed_over(client: redis.Redis, broker: Broker, load: Load) -> None:
    bury(broker, 5)
    client.sadd("rqttl:queues", "gone/dead")

    assert load(queuePattern="#/dead").ids() == numbers(5)


def test_a_namespace_has_its_own_queues(client: redis.Redis, load: Load) -> None:
    with Broker(client, "shop") as broker:
        bury(broker, 5)

    assert load(queues="orders/dead", namespace="shop").ids() == numbers(5)
    with pytest.raises(NoSuchQueue, match="in namespace 'rqttl'"):
        load(queues="orders/dead")


def test_a_hash_tag_in_a_name_is_kept(broker: Broker, load: Load) -> None:
    broker.declare_queue("{shop}.orders").enqueue(b"x", id="a")

    assert load(queues="{shop}.orders").ids() == ["a"]


# Detached messages


@pytest.fixture
def compacted(clocked: Clocked) -> list[str]:
    """The ids of the messages in queue `plain`: the long-lived ones of 8,000, most of them moved to `detached`."""
    queue = clocked.declare_queue("plain")
    queue.enqueue_many(
        [Message(b"%d" % i, id=f"m-{i}", ttl="10d" if i % 20 == 0 else "1s", headers={"n": i}) for i in range(8_000)]
    )
    clocked.advance(2_000)
    queue.sweep()
    queue.sweep()  # the first call has buried messages, and leaves the compaction to the next one
    queue.enqueue_many([Message(b"late", id=f"late-{i}") for i in range(10)])
    return sorted([f"m-{i}" for i in range(0, 8_000, 20)] + [f"late-{i}" for i in range(10)])


@pytest.mark.parametrize("partitions", [1, 4])
def test_messages_that_compaction_detached_are_read_too(
    client: redis.Redis, load: Load, compacted: list[str], partitions: int
) -> None:
    assert client.hlen("rqttl:{plain}:detached") > 0

    job = load(queues="plain", numPartitions=partitions, columns=("message_id", "sequence", "body", "headers"))

    assert job.ids() == compacted
    assert {row["message_id"]: row["headers"] for row in job.rows()}["m-40"] == [("n", "40")]


def test_messages_that_are_detached_during_the_read_are_read_once(
    clocked: Clocked, client: redis.Redis, load: Load
) -> None:
    queue = clocked.declare_queue("plain")
    queue.enqueue_many([Message(b"x", id=f"m-{i}", ttl="10d" if i % 20 == 0 else "1s") for i in range(8_000)])
    job = load(queues="plain", fetchEntries=100, numPartitions=1, failOnDataLoss="false")
    partition = job.partitions[0]
    assert isinstance(partition, BatchPartition)

    found: list[str] = []
    batches = job.batches(0, rows=200)
    for i, batch in enumerate(batches):
        found += batch.column("message_id").to_pylist()
        if i == 2:
            clocked.advance(2_000)
            queue.sweep()
            queue.sweep()  # the first call has buried messages, and leaves the compaction to the next one
            assert client.hlen("rqttl:{plain}:detached") > 0

    assert len(found) == len(set(found))
    assert set(found) >= {f"m-{i}" for i in range(0, 8_000, 20)}


def test_ranges_hold_for_detached_messages(client: redis.Redis, load: Load, compacted: list[str]) -> None:
    everything = {row["sequence"]: row["message_id"] for row in load(queues="plain").rows()}
    sequences = sorted(everything)
    after, upto = sequences[20], sequences[100]

    job = load(
        queues="plain",
        startingOffsets=json.dumps({"plain": after}),
        endingOffsets=json.dumps({"plain": upto}),
        failOnDataLoss="false",
    )

    assert sorted(row["sequence"] for row in job.rows()) == sequences[21:101]


def test_a_damaged_detached_entry_is_named(client: redis.Redis, load: Load, compacted: list[str]) -> None:
    sequence = load(queues="plain").rows()[-1]["sequence"]
    assert client.hset("rqttl:{plain}:detached", sequence, "99:short") == 0

    with pytest.raises(MalformedEntry, match=f"queue 'plain', sequence {sequence}: "):
        load(queues="plain").rows()


# From where to where


def test_offsets_begin_behind_a_sequence_and_end_with_one(clocked: Clocked, load: Load) -> None:
    hours = hourly(clocked)
    after, upto = hours[2][0], hours[6][0]

    assert load(queues="orders/dead", startingOffsets=json.dumps({"orders/dead": after})).ids() == numbers(7, 3)
    assert load(queues="orders/dead", endingOffsets=json.dumps({"orders/dead": upto})).ids() == numbers(7)
    assert load(
        queues="orders/dead",
        startingOffsets=json.dumps({"orders/dead": after}),
        endingOffsets=json.dumps({"orders/dead": upto}),
    ).ids() == numbers(4, 3)
    words = {"startingOffsets": '{"orders/dead": "earliest"}', "endingOffsets": '{"orders/dead": "latest"}'}
    assert load(queues="orders/dead", **words).ids() == numbers(10)


def test_timestamps_hold_their_start_and_not_their_end_and_win(clocked: Clocked, load: Load) -> None:
    hours = hourly(clocked)
    window = {"startingTimestamp": hours[3][1], "endingTimestamp": as_datetime(hours[5][1]).isoformat()}

    assert load(queues="orders/dead", **window).ids() == numbers(2, 3)
    assert load(queues="orders/dead", startingTimestamp=hours[3][1] + 1).ids() == numbers(6, 4)
    assert load(queues="orders/dead", **window, startingOffsets=json.dumps({"orders/dead": hours[9][0]})).ids() == (
        numbers(2, 3)
    )
    assert load(queues="orders/dead", startingTimestamp=hours[9][1] + 1).rows() == []


def test_an_end_beyond_the_last_message_is_that_message(clocked: Clocked, load: Load) -> None:
    hours = hourly(clocked)
    job = load(queues="orders/dead", endingOffsets='{"orders/dead": "9999999999999-999999"}')

    assert job.ranges[0][0].upto == hours[-1][0]


def test_a_part_of_a_large_queue_is_split_by_how_much_is_in_it(client: redis.Redis, load: Load) -> None:
    stored(client, [1_700_000_000_000 + i for i in range(20_000)])

    job = load(queues="q", startingTimestamp=1_700_000_015_000, numPartitions=5)

    assert len(job.partitions) == 5
    assert len(job.rows()) == 5_000
    assert max(len(job.task(i)) for i in range(5)) < 1_500


def test_nothing_is_asked_for_that_makes_redis_walk_through_the_log(
    client: redis.Redis, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = [1_700_000_000_000 + i for i in range(12_000)]
    stored(client, times)
    asked: list[Command] = []
    execute_all = BulkReader.execute_all

    def noting(reader: BulkReader, calls: Sequence[Command]) -> list[Any]:
        asked.extend(calls)
        return execute_all(reader, calls)

    monkeypatch.setattr(BulkReader, "execute_all", noting)

    load(queues="q", numPartitions=8)
    load(queues="q", startingTimestamp=times[6_000], numPartitions=8)
    load(queues="q", endingTimestamp=times[0] - 1)

    # a look backwards from before the first entry begins at the last one
    backwards = [words for words in asked if words[0] == "XREVRANGE"]
    assert len(backwards) > 10
    assert [words for words in backwards if words[2].strip("(") <= f"{times[0]}-100000" and words[2] != "+"] == []
    assert all(words[-2] == "COUNT" for words in asked if words[0] in ("XRANGE", "XREVRANGE"))


def test_messages_of_one_millisecond_are_split(client: redis.Redis, load: Load) -> None:
    stored(client, [1_700_000_000_000] * 10_000)

    job = load(queues="q", numPartitions=4)

    assert [len(job.task(i)) for i in range(4)] == pytest.approx([2_500] * 4, rel=0.1)
    assert len({row["sequence"] for row in job.rows()}) == 10_000


def stored(client: redis.Redis, times: list[int]) -> None:
    """A queue `q` with a letter from each of these times, which rise."""
    pipeline = client.pipeline(transaction=False)
    sequence, serial, before = "", 0, 0
    for ms in times:
        serial = serial + 1 if ms == before else 100_000
        sequence, before = f"{ms}-{serial}", ms
        pipeline.execute_command("XADD", "rqttl:{q}:log", sequence, "", "x")
    pipeline.hset(
        "rqttl:{q}:meta",
        mapping={"version": "1", "created_at": 1, "last_id": sequence, "trimmed_upto": "0-0", "holds_dead_letters": 1},
    )
    pipeline.sadd("rqttl:queues", "q")
    pipeline.execute()
