"""Limits of micro-batches by the index of arrivals and by time, partitions, counts; and queues and users without it."""

from __future__ import annotations

import itertools
import json
import logging
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rqttl import Message
from rqttl.protocol.keys import LOG, Keyspace
from spark_connectors.errors import MalformedEntry
from spark_connectors.ranges import Range
from spark_connectors.redis.connect import READ_COMMANDS
from spark_connectors.stream.mark_plan import BatchLimit
from spark_connectors.stream.offsets import Offset
from spark_connectors.stream.planner import StreamPlanner
from tests.contract.clocked import START, Clocked
from tests.servers import Server
from tests.spark.following import Follow, again, stream_reader
from tests.spark.letters import Make, bury, numbered, uneven
from tests.spark.reading import Load

DEAD, MAILS = "orders/dead", "mails/dead"
INDEX = Keyspace().key(DEAD, "arrivals")
ALL_DEAD = {"queuePattern": "#/dead"}
#: The messages of a batch, with their sizes, by queue.
Sizes = dict[str, list[tuple[str, int]]]


def bury_slowly(clocked: Clocked, count: int, into: str = DEAD, *, make: Make = numbered, each: int = 1_000) -> None:
    """Have letters die over time, `each` in a millisecond."""
    for first in range(0, count, each):
        source = into.partition("/")[0]
        bury(clocked, min(each, count - first), into=into, source=source, first=first, make=make)
        clocked.advance(7)


def sizes_of(client: redis.Redis, whole: Range) -> list[tuple[str, int]]:
    anything: Any = client
    entries = anything.xrange(Keyspace().key(whole.queue, LOG), f"({whole.after}", whole.upto)
    return [(entry.decode(), sum(len(a) + len(b) for a, b in pair.items())) for entry, pair in entries]


def batch_of(client: redis.Redis, planner: StreamPlanner, start: Offset, end: Offset) -> Sizes:
    return {one.range.queue: sizes_of(client, one.range) for one in planner.watched_ranges(start, end)}


def batches(
    client: redis.Redis, follow: Follow, limit: BatchLimit, *, restarted: bool = False, **options: str
) -> list[Sizes]:
    """Return all batches of a query."""
    planner = follow(**options)
    offset, found = planner.initial(), list[Sizes]()
    while (end := planner.latest(offset, limit)) != offset:
        found.append(batch_of(client, planner, offset, end))
        offset = again(end)
        planner = follow(**options) if restarted else planner
    return found


def cost(batch: Sizes) -> int:
    return sum(size for of_queue in batch.values() for _, size in of_queue)


def sequences(batch: Sizes) -> list[str]:
    return sorted(sequence for of_queue in batch.values() for sequence, _ in of_queue)


def rows(found: list[Sizes]) -> list[int]:
    return [len(sequences(batch)) for batch in found]


def entries_read(client: redis.Redis, work: Callable[[], object]) -> float:
    """Return the number of letters whose bytes the server sends during some work, about."""
    newest: Any = client.xrevrange(Keyspace().key(DEAD, LOG), count=1)
    before = int(client.info("stats")["total_net_output_bytes"])
    work()
    sent = int(client.info("stats")["total_net_output_bytes"]) - before
    return sent / sum(len(name) + len(value) for name, value in newest[0][1].items())


@pytest.mark.parametrize("restarted", [False, True])
def test_batches_of_a_limit_are_full_and_in_the_order_of_time(
    restarted: bool, clocked: Clocked, client: redis.Redis, follow: Follow
) -> None:
    bury_slowly(clocked, 9_000)
    bury_slowly(clocked, 4_000, MAILS)
    bury_slowly(clocked, 2_000)
    clocked.declare_queue("plain/dead").enqueue_many([numbered(i) for i in range(500)])

    found = batches(client, follow, BatchLimit(4_100), restarted=restarted, **ALL_DEAD)

    assert rows(found) == [4_100, 4_100, 4_100, 3_200]
    ordered = map(sequences, found)
    assert all(before[-1] <= after[0] for before, after in itertools.pairwise(ordered))


@pytest.mark.parametrize("limit", [BatchLimit(9_000), BatchLimit(2_500_000, in_bytes=True)])
def test_the_driver_reads_a_small_part_of_a_batch_with_a_limit(
    limit: BatchLimit, clocked: Clocked, client: redis.Redis, follow: Follow
) -> None:
    bury_slowly(clocked, 30_000)
    planner = follow(queues=DEAD)
    ends = [planner.initial()]

    for _ in range(3):
        read = entries_read(client, lambda: ends.append(planner.latest(ends[-1], limit)))
        [size] = rows([batch_of(client, planner, *ends[-2:])])
        assert size == 9_000 if not limit.in_bytes else size > 6_000
        assert read < 0.15 * 9_000


@pytest.mark.parametrize(
    "gone, sizes",
    [
        # few have gone: batches are smaller and never larger; half of them: they are read as without an index
        (slice(2_000, 2_500), [3_500, 4_000, 4_000]),
        (slice(2_000, 8_000), [4_000, 2_000]),
    ],
)
def test_letters_that_were_redriven_make_batches_smaller_and_never_larger(
    gone: slice, sizes: list[int], clocked: Clocked, client: redis.Redis, follow: Follow
) -> None:
    bury_slowly(clocked, 12_000)
    letters = [(letter.sequence, "orders") for letter in clocked.queue(DEAD).peek(12_000)]
    clocked.queue(DEAD).redrive_many(letters[gone])

    assert rows(batches(client, follow, BatchLimit(4_000), queues=DEAD)) == sizes


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
        found = batches(client, follow, BatchLimit(4_000), queues=DEAD)

    assert rows(found) == [4_000, 4_000, 1_000]
    assert ("cannot read the index" in caplog.text) == (damage == "another type")


def test_a_user_without_the_right_to_read_the_index_reads_more_and_the_log_says_so_once(
    clocked: Clocked, client: redis.Redis, server: Server, follow: Follow, caplog: pytest.LogCaptureFixture
) -> None:
    bury_slowly(clocked, 9_000)
    rights = ["+@connection", *(f"+{command}" for command in READ_COMMANDS if command != "zrange")]
    client.execute_command("ACL", "SETUSER", "analyst", "reset", "on", ">secret", "~rqttl:*", *rights)

    with caplog.at_level(logging.WARNING):
        found = batches(client, follow, BatchLimit(4_000), queues=DEAD, username="analyst", password="secret")

    client.execute_command("ACL", "DELUSER", "analyst")
    assert rows(found) == [4_000, 4_000, 1_000]
    assert caplog.text.count("cannot read the index of arrivals") == 1
    assert "zrange" in caplog.text


Step = tuple[str, int]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["bury", "bury", "mails", "send", "redrive", "purge", "trim", "lease"]), st.integers(1, 9)
    ),
    min_size=1,
    max_size=7,
)


def change(clocked: Clocked, kind: str, amount: int) -> None:
    queue = clocked.declare_queue(DEAD)
    clocked.advance(1)
    if kind in ("bury", "mails"):
        bury_slowly(clocked, 400 * amount, DEAD if kind == "bury" else MAILS, make=uneven, each=500)
    elif kind == "send":
        queue.enqueue_many([uneven(i) for i in range(30 * amount)])
    elif kind == "trim":
        queue.update(max_length=500 * amount)
        queue.sweep()
        queue.update(max_length=None)
    elif kind == "lease":
        queue.receive_many(20 * amount)
    else:
        some = [letter.sequence for letter in queue.peek(600)][:: 10 - amount]
        queue.redrive_many([(one, "orders") for one in some]) if kind == "redrive" else queue.purge_many(some)


@pytest.mark.once
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS, later=STEPS, limit=st.integers(1_000, 2_000_000), in_bytes=st.booleans())
def test_no_batch_exceeds_its_limit_or_goes_back_in_time_and_each_letter_is_read_once(
    clocked: Clocked,
    client: redis.Redis,
    follow: Follow,
    steps: list[Step],
    later: list[Step],
    limit: int,
    in_bytes: bool,
) -> None:
    client.flushall()
    clocked.declare_queue(MAILS)
    for step in steps:
        change(clocked, *step)
    options = {**ALL_DEAD, "failOnDataLoss": "false"}
    planner, found = follow(**options), list[Sizes]()
    offset, most = planner.initial(), BatchLimit(limit if in_bytes else limit // 300 + 1, in_bytes=in_bytes)
    for i in itertools.count():
        end = planner.latest(offset, most)
        if end == offset:
            break
        found.append(batch_of(client, planner, offset, end))
        offset = end
        if i == 1:
            for step in later:
                change(clocked, *step)

    read = [sequence for batch in found for sequence in sequences(batch)]
    for batch in found:
        assert len(sequences(batch)) == 1 or (cost(batch) if in_bytes else len(sequences(batch))) <= most.amount
    assert read == sorted(read)
    pairs = [(queue, one) for batch in found for queue, of_queue in batch.items() for one, _ in of_queue]
    assert len(pairs) == len(set(pairs))
    left = {(queue, one) for queue in (DEAD, MAILS) for one, _ in sizes_of(client, Range(queue, "0-0", "+", 1))}
    assert left <= set(pairs)


@pytest.mark.parametrize("begin, end, count", [(0, None, 30_000), (5, 25, 20_000)])
def test_tasks_share_a_queue_or_a_stretch_of_time_by_its_marks_without_a_probe(
    begin: int, end: int | None, count: int, load: Load, clocked: Clocked, client: redis.Redis
) -> None:
    bury_slowly(clocked, 30_000)
    born = int(clocked.queue(DEAD).peek(1)[0].sequence[:13])
    times = {"startingTimestamp": born + 7 * begin, "endingTimestamp": born + 7 * end} if end else {}
    jobs = []

    read = entries_read(client, lambda: jobs.append(load(queues=DEAD, numPartitions=4, **times)))

    sizes = [len(jobs[0].task(i)) for i in range(4)]
    assert sum(sizes) == count
    assert max(sizes) <= count // 4 + 1_250
    assert read < 100


@pytest.mark.parametrize("restarted", [False, True])
def test_the_progress_of_a_query_has_the_number_of_unread_letters(
    restarted: bool, clocked: Clocked, server: Server
) -> None:
    bury_slowly(clocked, 9_000)
    bury_slowly(clocked, 500, MAILS)
    clocked.queue(DEAD).ack_many(clocked.queue(DEAD).receive_many(200))
    make = partial(stream_reader, server.url, queuePattern="#/dead", maxEntriesPerTrigger=4_000)
    reader = make()
    offset, unread = reader.initialOffset(), list[int]()

    for _ in range(4):
        offset = reader.latestOffset(json.loads(json.dumps(offset)), reader.getDefaultReadLimit())
        unread.append(reader.reportLatestOffset()["unread"])
        if restarted:
            reader = make()

    # the first batch has the first 4,000 arrivals without the 200 that were acked
    assert unread == [5_500, 1_500, 0, 0]


def test_without_an_index_the_number_of_unread_letters_is_right_if_none_has_left(
    clocked: Clocked, server: Server
) -> None:
    clocked.declare_queue("a").enqueue_many([numbered(i) for i in range(90)])
    reader = stream_reader(server.url, queues="a", maxEntriesPerTrigger=40, minEntriesPerTrigger=10)
    offset, unread = reader.initialOffset(), [reader.reportLatestOffset().get("unread")]

    for _ in range(3):
        offset = reader.latestOffset(offset, reader.getDefaultReadLimit())
        unread.append(reader.reportLatestOffset()["unread"])
    clocked.queue("a").enqueue_many([numbered(i) for i in range(5)])
    reader.latestOffset(offset, reader.getDefaultReadLimit())
    unread.append(reader.reportLatestOffset()["unread"])

    assert unread == [None, 50, 10, 0, 5]


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


@pytest.mark.once
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


@pytest.mark.once
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


@pytest.mark.once
def test_an_entry_that_is_no_message_fails_the_plan_by_name(
    clocked: Clocked, client: redis.Redis, follow: Follow
) -> None:
    queue = clocked.declare_queue("a")
    client.xadd("rqttl:{a}:log", {"x": "y"}, id="170000000000-1000000")
    queue.enqueue_many([b"x"] * 5)
    planner = follow(queues="a")

    with pytest.raises(MalformedEntry, match=r"queue 'a', sequence 170000000000-1000000: .*its id is not a sequence"):
        planner.latest(planner.initial(), BatchLimit(50, in_bytes=True))
