"""The index of arrivals at work: limits and partitions of dead-letter queues, and queues and users without it."""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Callable
from typing import Any

import pytest
import redis

from rqttl.protocol.keys import Keyspace
from spark_connectors.options.options import Options
from spark_connectors.ranges import sequence_number
from spark_connectors.read.arrivals import STEP, Marks, Tally
from spark_connectors.redis.connect import READ_COMMANDS
from spark_connectors.stream.mark_plan import BatchLimit
from spark_connectors.stream.offsets import Offset
from spark_connectors.stream.planner import StreamPlanner
from spark_connectors.stream.reader import RqttlStreamReader
from tests.contract.clocked import Clocked
from tests.servers import Server
from tests.spark.following import Follow, again, planners
from tests.spark.letters import bury, numbered
from tests.spark.reading import Load, loader

DEAD = "orders/dead"
INDEX = Keyspace().key(DEAD, "arrivals")


@pytest.fixture
def follow(server: Server) -> Follow:
    return planners(server.url)


@pytest.fixture
def load(redis_url: str) -> Load:
    return loader(redis_url)


def bury_slowly(clocked: Clocked, count: int, **where: Any) -> None:
    """Have letters die over time, 1,000 in a millisecond."""
    for first in range(0, count, 1_000):
        bury(clocked, min(1_000, count - first), first=first, **where)
        clocked.advance(7)


def messages(client: redis.Redis, planner: StreamPlanner, start: Offset, end: Offset) -> list[bytes]:
    """Return the sequences of a batch, in order."""
    found: list[bytes] = []
    anything: Any = client
    for watched in planner.watched_ranges(start, end):
        key = Keyspace().key(watched.range.queue, "log")
        found += [entry for entry, _ in anything.xrange(key, f"({watched.range.after}", watched.range.upto)]
    return sorted(found)


def batches(
    client: redis.Redis, follow: Follow, limit: int, *, restarted: bool = False, **options: str
) -> list[list[bytes]]:
    """Return the sequences of all batches of a query."""
    planner = follow(**options)
    offset, found = planner.initial(), list[list[bytes]]()
    while (end := planner.latest(offset, BatchLimit(limit))) != offset:
        found.append(messages(client, planner, offset, end))
        offset = again(end)
        planner = follow(**options) if restarted else planner
    return found


def entries_read(client: redis.Redis, work: Callable[[], object]) -> float:
    """Return the number of letters whose bytes the server sends during some work, about."""
    newest: Any = client.xrevrange(Keyspace().key(DEAD, "log"), count=1)
    before = int(client.info("stats")["total_net_output_bytes"])
    work()
    sent = int(client.info("stats")["total_net_output_bytes"]) - before
    return sent / sum(len(name) + len(value) for name, value in newest[0][1].items())


@pytest.mark.parametrize("restarted", [False, True])
def test_batches_of_a_limit_are_full_and_in_the_order_of_time(
    restarted: bool, clocked: Clocked, client: redis.Redis, follow: Follow
) -> None:
    bury_slowly(clocked, 9_000)
    bury_slowly(clocked, 4_000, into="mails/dead", source="mails")
    bury_slowly(clocked, 2_000)
    plain = clocked.declare_queue("plain/dead")
    plain.enqueue_many([numbered(i) for i in range(500)])

    found = batches(client, follow, 4_100, restarted=restarted, queuePattern="#/dead")

    assert list(map(len, found)) == [4_100, 4_100, 4_100, 3_200]
    assert all(before[-1] <= after[0] for before, after in itertools.pairwise(found))


def test_the_driver_reads_a_small_part_of_a_batch_with_a_limit(
    clocked: Clocked, client: redis.Redis, follow: Follow
) -> None:
    bury_slowly(clocked, 30_000)
    planner = follow(queues=DEAD)
    ends = [planner.initial()]

    for _ in range(3):
        read = entries_read(client, lambda: ends.append(planner.latest(ends[-1], BatchLimit(9_000))))
        assert len(messages(client, planner, *ends[-2:])) == 9_000
        assert read < 0.15 * 9_000


def test_a_query_that_begins_after_lost_letters_leaps_too(
    clocked: Clocked, client: redis.Redis, follow: Follow
) -> None:
    bury_slowly(clocked, 20_000)
    clocked.queue(DEAD).update(max_length=9_000)
    clocked.queue(DEAD).sweep()
    planner = follow(queues=DEAD)
    ends = [planner.initial()]

    read = entries_read(client, lambda: ends.append(planner.latest(ends[-1], BatchLimit(6_000))))
    ends.append(planner.latest(again(ends[-1]), BatchLimit(2_500)))

    # nobody has counted the letters between the last mark before the first letter and this letter
    assert 6_000 - STEP - 250 <= len(messages(client, planner, *ends[:2])) <= 6_000
    assert len(messages(client, planner, *ends[1:])) == 2_500
    assert read < 0.25 * 6_000


def test_letters_that_were_redriven_make_batches_smaller_and_never_larger(
    clocked: Clocked, client: redis.Redis, follow: Follow
) -> None:
    bury_slowly(clocked, 12_000)
    letters = [(letter.sequence, "orders") for letter in clocked.queue(DEAD).peek(6_000)]
    clocked.queue(DEAD).redrive_many(letters[2_000:2_500])

    found = batches(client, follow, 4_000, queues=DEAD)

    assert list(map(len, found)) == [3_500, 4_000, 4_000]


def test_batches_are_full_and_read_as_without_an_index_if_half_of_the_letters_have_gone(
    clocked: Clocked, client: redis.Redis, follow: Follow
) -> None:
    bury_slowly(clocked, 12_000)
    letters = [(letter.sequence, "orders") for letter in clocked.queue(DEAD).peek(12_000)]
    clocked.queue(DEAD).redrive_many(letters[2_000:8_000])

    assert list(map(len, batches(client, follow, 4_000, queues=DEAD))) == [4_000, 2_000]


@pytest.mark.parametrize("damage", ["gone", "partly gone", "foreign", "another type"])
def test_queues_without_a_right_index_are_read_in_full_batches(
    damage: str, clocked: Clocked, client: redis.Redis, follow: Follow, caplog: pytest.LogCaptureFixture
) -> None:
    bury_slowly(clocked, 9_000)
    if damage == "partly gone":
        client.zremrangebyrank(INDEX, 0, 4)
    elif damage == "foreign":
        foreign: Any = {"x": 1.7e12, "1700000000001-100000 1 1 1": 1_700_000_000_001, b"\xff": 9e300}
        foreign["1700000000015-999999 99999999 99999999 1"] = 1_700_000_000_015
        client.zadd(INDEX, foreign)
    else:
        client.delete(INDEX)
    if damage == "another type":
        client.set(INDEX, "x")

    with caplog.at_level(logging.WARNING):
        found = batches(client, follow, 4_000, queues=DEAD)

    assert list(map(len, found)) == [4_000, 4_000, 1_000]
    assert ("do without the index" in caplog.text) == (damage == "another type")


def test_a_user_without_the_right_to_read_the_index_reads_more_and_the_log_says_so_once(
    clocked: Clocked, client: redis.Redis, server: Server, follow: Follow, caplog: pytest.LogCaptureFixture
) -> None:
    bury_slowly(clocked, 9_000)
    rights = ["+@connection", *(f"+{command}" for command in READ_COMMANDS if command != "zrange")]
    client.execute_command("ACL", "SETUSER", "analyst", "reset", "on", ">secret", "~rqttl:*", *rights)

    with caplog.at_level(logging.WARNING):
        found = batches(client, follow, 4_000, queues=DEAD, username="analyst", password="secret")

    client.execute_command("ACL", "DELUSER", "analyst")
    assert list(map(len, found)) == [4_000, 4_000, 1_000]
    assert caplog.text.count("do without the index of arrivals") == 1
    assert "zrange" in caplog.text


# Partitions


def test_tasks_share_a_queue_by_its_marks_without_a_probe(load: Load, clocked: Clocked, client: redis.Redis) -> None:
    bury_slowly(clocked, 30_000)
    jobs = []

    read = entries_read(client, lambda: jobs.append(load(queues=DEAD, numPartitions="4")))

    sizes = [len(jobs[0].task(i)) for i in range(4)]
    assert sum(sizes) == 30_000
    assert max(sizes) <= 7_500 + 1_250
    assert read < 100


def test_a_stretch_of_time_is_shared_by_marks_too(load: Load, clocked: Clocked, client: redis.Redis) -> None:
    bury_slowly(clocked, 30_000)
    begin = int(clocked.queue(DEAD).peek(1)[0].sequence[:13])
    times = {"startingTimestamp": str(begin + 7 * 5), "endingTimestamp": str(begin + 7 * 25)}
    jobs = []

    read = entries_read(client, lambda: jobs.append(load(queues=DEAD, numPartitions="4", **times)))

    sizes = [len(jobs[0].task(i)) for i in range(4)]
    assert sum(sizes) == 20_000
    assert max(sizes) <= 5_000 + 1_250
    assert read < 100


def marked(counts: list[int], complete: bool = True) -> Marks:
    return Marks.of(((10 * count, Tally(count)) for count in counts), complete=complete)


def test_parts_end_at_marks_and_their_rows_add_up() -> None:
    marks = marked(list(range(1_000, 20_001, 1_000)))

    ends = marks.split(0, 205_000, 20_500, 4)

    assert ends is not None
    assert [end for end, _ in ends] == [50_000, 100_000, 150_000, 205_000]
    assert sum(rows for _, rows in ends) == 20_500


@pytest.mark.parametrize(
    "marks, rows",
    [
        (marked([]), 20_000),
        (marked([1_000, 5_000, 20_000]), 20_000),
        (marked([*range(1_000, 9_000, 500), *range(18_000, 20_000, 500)]), 20_000),
        (marked(list(range(1_000, 20_001, 1_000))), 9_000),
        (marked(list(range(1_000, 20_001, 1_000)), complete=False), 20_000),
    ],
)
def test_too_few_marks_and_many_letters_that_have_gone_leave_the_split_to_probes(marks: Marks, rows: int) -> None:
    assert marks.split(0, sequence_number("0000000000000-200000"), rows, 4) is None


# Lag


@pytest.mark.parametrize("restarted", [False, True])
def test_the_progress_of_a_query_has_the_number_of_unread_letters(
    restarted: bool, clocked: Clocked, server: Server
) -> None:
    bury_slowly(clocked, 9_000)
    bury_slowly(clocked, 500, into="mails/dead", source="mails")
    clocked.queue(DEAD).ack_many(clocked.queue(DEAD).receive_many(200))
    options = {"url": server.url, "queuePattern": "#/dead", "maxEntriesPerTrigger": "4000"}
    reader = RqttlStreamReader(Options.parse("stream", options), ("message_id",))
    offset, unread = reader.initialOffset(), list[int]()

    for _ in range(4):
        offset = reader.latestOffset(json.loads(json.dumps(offset)), reader.getDefaultReadLimit())
        unread.append(reader.reportLatestOffset()["unread"])
        if restarted:
            reader = RqttlStreamReader(Options.parse("stream", options), ("message_id",))

    # the first batch has the first 4,000 arrivals without the 200 that were acked
    assert unread == [5_500, 1_500, 0, 0]


def test_without_an_index_the_number_of_unread_letters_is_right_if_none_has_left(
    clocked: Clocked, server: Server
) -> None:
    clocked.declare_queue("a").enqueue_many([numbered(i) for i in range(90)])
    options = {"url": server.url, "queues": "a", "maxEntriesPerTrigger": "40", "minEntriesPerTrigger": "10"}
    reader = RqttlStreamReader(Options.parse("stream", options), ("message_id",))
    offset, unread = reader.initialOffset(), [reader.reportLatestOffset().get("unread")]

    for _ in range(3):
        offset = reader.latestOffset(offset, reader.getDefaultReadLimit())
        unread.append(reader.reportLatestOffset()["unread"])
    clocked.queue("a").enqueue_many([numbered(i) for i in range(5)])
    reader.latestOffset(offset, reader.getDefaultReadLimit())
    unread.append(reader.reportLatestOffset()["unread"])

    assert unread == [None, 50, 10, 0, 5]
