"""Limits shared out by time, on real queues: event time, detached messages, old backlogs, and the driver's reads."""

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
from tests.servers import Server
from tests.spark.following import Follow, again, planners

pytestmark = pytest.mark.once


@pytest.fixture
def follow(server: Server) -> Follow:
    return planners(server.url)


#: The bytes of header and body of a message of `arrive`.
SIZE = 40


def arrive(clocked: Clocked, queue: str, times: range, body: bytes = b"x" * SIZE) -> None:
    """Have one message arrive in a queue at each of these ms."""
    into = clocked.declare_queue(queue)
    for at in times:
        clocked.go_to(at)
        into.enqueue(Message(body))


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
def test_no_batch_has_a_message_older_than_one_of_a_batch_before_it(
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


def test_the_marks_of_all_unread_queues_move_to_the_time_of_the_batch_and_not_beyond_their_last_message(
    clocked: Clocked, follow: Follow
) -> None:
    arrive(clocked, "short", range(10))
    arrive(clocked, "long", range(1_000))
    arrive(clocked, "later", range(5_000, 5_010))
    planner = follow(queuePattern="#")

    end = planner.latest(planner.initial(), BatchLimit(100))

    marks = {name: int(position.after[:13]) - START for name, position in end.positions.items()}
    # the last message of the queue `short` is older than the batch, and its next one may come from a clock that lags
    assert marks["long"] == 89
    assert marks["later"] in (88, 89)
    assert marks["short"] == 9


class Traffic:
    """The commands and the bytes of the server since the last look."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self.bytes()

    def bytes(self) -> int:
        """Return the bytes that the server has sent, and begin anew."""
        sent = int(self._client.info("stats")["total_net_output_bytes"])
        self._client.config_resetstat()
        return sent

    def reads(self) -> int:
        """Return the number of times that the server has read from a socket."""
        return int(self._client.info("stats")["total_reads_processed"])

    def calls(self, command: str) -> int:
        return int(self._client.info("commandstats").get(f"cmdstat_{command}", {"calls": 0})["calls"])


@pytest.mark.parametrize("limit", [BatchLimit(300), BatchLimit(300 * SIZE, in_bytes=True)])
def test_the_driver_reads_each_message_of_thousands_of_queues_once_in_few_round_trips(
    limit: BatchLimit, clocked: Clocked, client: redis.Redis, follow: Follow
) -> None:
    for i in range(1_500):
        arrive(clocked, f"q{i:04}", range(i, 40_000 + i, 10_000))
    planner = follow(queuePattern="#")
    offset, traffic, calls, reads = planner.initial(), Traffic(client), list[int](), list[int]()

    for _ in range(4):
        traffic.bytes()
        offset = planner.latest(offset, limit)
        calls.append(traffic.calls("xrange"))
        reads.append(traffic.reads())

    # the first batch asks each queue for one message, and those of the batch for the next one
    assert calls[0] <= 1_500 + 300 + limit.in_bytes
    assert max(calls[1:]) <= 300 + 10
    # thousands of commands; Redis takes 16 KB of a pipeline from its socket at once
    assert max(reads) < 100


def test_an_entry_that_is_no_message_fails_the_plan_by_name(
    clocked: Clocked, client: redis.Redis, follow: Follow
) -> None:
    clocked.declare_queue("a")
    client.xadd("rqttl:{a}:log", {"x": "y"}, id="170000000000-1000000")
    arrive(clocked, "a", range(5))
    planner = follow(queues="a")

    with pytest.raises(MalformedEntry, match=r"queue 'a', sequence 170000000000-1000000: .*its id is not a sequence"):
        planner.latest(planner.initial(), BatchLimit(2_000, in_bytes=True))
