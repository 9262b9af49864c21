"""Limits of micro-batches, shared out by the time of messages, on real queues without Spark."""

from __future__ import annotations

import itertools
import random

import pytest
import redis

from rqttl import Message
from spark_connectors.errors import MalformedEntry
from spark_connectors.stream.mark_plan import BatchLimit
from spark_connectors.stream.offsets import Offset
from spark_connectors.stream.planner import StreamPlanner
from tests.contract.clocked import START, Clocked
from tests.spark.following import Follow, again

pytestmark = pytest.mark.once


def scatter(clocked: Clocked) -> int:
    """Have messages arrive in twelve queues, at random times within 20 s. Returns their number."""
    chance, total = random.Random(14), 0
    for i in range(12):
        count = chance.choice([3, 40, 300])
        queue = clocked.declare_queue(f"q{i:02}")
        clocked.go_to(chance.randrange(5_000))
        for _ in range(count):
            clocked.advance(chance.choice([0, 0, 1, 20_000 // count]))
            queue.enqueue(Message(b"x" * chance.randrange(5, 90)))
        total += count
    return total


def leave_outside_the_log(clocked: Clocked, name: str) -> int:
    """Have 400 messages of a queue lie outside its log, within the same 20 s. Returns their number."""
    queue = clocked.declare_queue(name)
    for second in range(20):
        clocked.go_to(second * 1_000)
        ttls = [None if i % 20 == 0 else "1m" for i in range(400)]
        queue.enqueue_many([Message(b"x" * 30, ttl=ttl) for ttl in ttls])
    clocked.go_to(100_000)
    queue.sweep()
    queue.sweep()  # the first call has buried messages, and leaves the compaction to the next one
    return queue.stats().ready


def times(clocked: Clocked, planner: StreamPlanner, start: Offset, end: Offset) -> list[int]:
    """Return the times of the messages in a batch, in ms after the start of the clock."""
    return sorted(
        int(letter.sequence[:13]) - START
        for watched in planner.watched_ranges(start, end)
        for letter in clocked.queue(watched.range.queue).peek(100_000)
        if watched.range.contains(letter.sequence)
    )


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("limit", [BatchLimit(40), BatchLimit(2_000, in_bytes=True)])
def test_on_real_queues_no_batch_has_a_message_older_than_one_of_a_batch_before_it(
    limit: BatchLimit, restarted: bool, clocked: Clocked, client: redis.Redis, follow: Follow
) -> None:
    total = scatter(clocked) + leave_outside_the_log(clocked, "outside")
    assert client.hlen("rqttl:{outside}:detached") >= 100
    planner = follow(queuePattern="#", fetchEntries="25")
    offset, batches = planner.initial(), list[list[int]]()

    while (end := planner.latest(offset, limit)) != offset:
        batches.append(times(clocked, planner, offset, end))
        offset = again(end)
        planner = follow(queuePattern="#", fetchEntries="25") if restarted else planner

    assert sum(map(len, batches)) == total
    assert all(max(before) <= min(after) for before, after in itertools.pairwise(batches))
    assert limit.in_bytes or {len(batch) for batch in batches[:-1]} == {40}


def test_the_driver_reads_each_message_of_thousands_of_queues_once_in_few_round_trips(
    clocked: Clocked, client: redis.Redis, follow: Follow
) -> None:
    for i in range(1_500):
        queue = clocked.declare_queue(f"q{i:04}")
        for at in range(i, 40_000 + i, 10_000):
            clocked.go_to(at)
            queue.enqueue(Message(b"x" * 40))
    planner = follow(queuePattern="#")
    offset, calls, reads = planner.initial(), list[int](), list[int]()

    for _ in range(4):
        client.config_resetstat()
        offset = planner.latest(offset, BatchLimit(300))
        calls.append(client.info("commandstats").get("cmdstat_xrange", {"calls": 0})["calls"])
        reads.append(int(client.info("stats")["total_reads_processed"]))

    # the first batch asks each queue for one message, and those of the batch for the next one
    assert calls[0] <= 1_500 + 300
    assert max(calls[1:]) <= 300 + 10
    # thousands of commands; Redis takes 16 KB of a pipeline from its socket at once
    assert max(reads) < 100


def test_an_entry_that_is_no_message_fails_the_plan_by_name(
    clocked: Clocked, client: redis.Redis, follow: Follow
) -> None:
    queue = clocked.declare_queue("a")
    client.xadd("rqttl:{a}:log", {"x": "y"}, id="170000000000-1000000")
    queue.enqueue_many([b"x"] * 5)
    planner = follow(queues="a")

    with pytest.raises(MalformedEntry, match=r"queue 'a', sequence 170000000000-1000000: .*its id is not a sequence"):
        planner.latest(planner.initial(), BatchLimit(50, in_bytes=True))
