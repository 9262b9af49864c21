"""The index of arrivals at work for limits of bytes: exact batches, and each letter read once."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rqttl.protocol.keys import LOG, Keyspace
from spark_connectors.options.options import Options
from spark_connectors.ranges import Range
from spark_connectors.stream.mark_plan import BatchLimit
from spark_connectors.stream.offsets import Offset
from spark_connectors.stream.planner import StreamPlanner
from spark_connectors.stream.reader import RqttlStreamReader
from tests.contract.clocked import Clocked
from tests.servers import Server
from tests.spark.following import Follow, again, planners
from tests.spark.letters import bury, numbered, uneven

pytestmark = pytest.mark.once

DEAD, MAILS, SMS = "orders/dead", "mails/dead", "sms/dead"
PATTERN = {"queuePattern": "#/dead"}
Sizes = dict[str, list[tuple[str, int]]]


@pytest.fixture
def follow(server: Server) -> Follow:
    return planners(server.url)


def bury_slowly(clocked: Clocked, count: int, into: str = DEAD, **where: Any) -> None:
    """Have letters of different sizes die over time, 500 in a millisecond."""
    for first in range(0, count, 500):
        source = into.partition("/")[0]
        bury(clocked, min(500, count - first), into=into, source=source, first=first, make=uneven, **where)
        clocked.advance(7)


def sizes_of(client: redis.Redis, whole: Range) -> list[tuple[str, int]]:
    anything: Any = client
    entries = anything.xrange(Keyspace().key(whole.queue, LOG), f"({whole.after}", whole.upto)
    return [(entry.decode(), sum(len(a) + len(b) for a, b in pair.items())) for entry, pair in entries]


def batch_of(client: redis.Redis, planner: StreamPlanner, start: Offset, end: Offset) -> Sizes:
    """The messages of a batch, with their sizes, by queue."""
    return {one.range.queue: sizes_of(client, one.range) for one in planner.watched_ranges(start, end)}


def batches(client: redis.Redis, follow: Follow, limit: BatchLimit, *, restarted: bool = False) -> list[Sizes]:
    planner = follow(**PATTERN)
    offset, found = planner.initial(), list[Sizes]()
    while (end := planner.latest(offset, limit)) != offset:
        found.append(batch_of(client, planner, offset, end))
        offset = again(end)
        planner = follow(**PATTERN) if restarted else planner
    return found


def cost(batch: Sizes) -> int:
    return sum(size for of_queue in batch.values() for _, size in of_queue)


def sequences(batch: Sizes) -> list[str]:
    return sorted(sequence for of_queue in batch.values() for sequence, _ in of_queue)


def bytes_sent(client: redis.Redis, work: Callable[[], object]) -> int:
    """The bytes that the server sends during some work."""
    before: Any = client.info("stats")
    work()
    after: Any = client.info("stats")
    return int(after["total_net_output_bytes"] - before["total_net_output_bytes"])


def drop_marks(client: redis.Redis) -> None:
    for queue in (DEAD, MAILS, SMS):
        client.delete(Keyspace().key(queue, "arrivals"))


@pytest.mark.parametrize("restarted", [False, True])
def test_batches_are_full_but_for_the_messages_before_the_first_mark(
    restarted: bool, clocked: Clocked, client: redis.Redis, follow: Follow
) -> None:
    bury_slowly(clocked, 5_000)
    bury_slowly(clocked, 3_000, MAILS)
    bury_slowly(clocked, 2_000)
    limit = BatchLimit(2_900_000, in_bytes=True)

    found = batches(client, follow, limit, restarted=restarted)

    # of each queue the messages between two marks may count twice
    *full, _ = map(cost, found)
    assert all(limit.amount - 2 * 1_024 * 700 < size <= limit.amount for size in full)
    assert sum(len(sequences(batch)) for batch in found) == 10_000


def test_driver_and_tasks_read_little_more_than_the_batch(
    clocked: Clocked, client: redis.Redis, server: Server
) -> None:
    bury_slowly(clocked, 24_000)
    options = Options.parse("stream", {"url": server.url, "queues": DEAD, "maxBytesPerTrigger": "16000000"})
    reader: Any = RqttlStreamReader(options, ("message_id", "body"))
    start, ends, rows = reader.initialOffset(), list[Any](), list[int]()

    planned = bytes_sent(client, lambda: ends.append(reader.latestOffset(start, reader.getDefaultReadLimit())))
    tasks = reader.partitions(start, ends[0])
    sent = bytes_sent(client, lambda: rows.extend(len(part) for task in tasks for part in reader.read(task)))

    assert 18_000 < sum(rows) < 24_000
    assert planned + sent <= 1.15 * sent


def test_limits_of_bytes_hold_where_senders_enqueue_among_the_letters(
    clocked: Clocked, client: redis.Redis, follow: Follow
) -> None:
    for _ in range(3):
        bury_slowly(clocked, 3_000)
        clocked.queue(DEAD).enqueue_many([numbered(i) for i in range(700)])
        clocked.advance(5)
    limit = BatchLimit(2_900_000, in_bytes=True)

    found = batches(client, follow, limit)

    drop_marks(client)
    assert found == batches(client, follow, limit)


def test_letters_that_have_left_make_batches_of_bytes_smaller_and_never_larger(
    clocked: Clocked, client: redis.Redis, follow: Follow
) -> None:
    bury_slowly(clocked, 12_000)
    letters = [(letter.sequence, "orders") for letter in clocked.queue(DEAD).peek(6_000)]
    clocked.queue(DEAD).redrive_many(letters[2_000:2_700])
    clocked.queue(DEAD).purge_many([sequence for sequence, _ in letters[4_000:4_200]])
    total = cost({"": sizes_of(client, Range(DEAD, "0-0", "+", 1))})

    found = batches(client, follow, BatchLimit(2_900_000, in_bytes=True))

    assert max(map(cost, found)) <= 2_900_000
    assert sum(map(cost, found)) == total
    assert len(found) <= total // 2_900_000 + 2


def test_leased_letters_and_lost_ones_before_them_count_exactly(
    clocked: Clocked, client: redis.Redis, follow: Follow
) -> None:
    bury_slowly(clocked, 12_000)
    clocked.queue(DEAD).update(max_length=9_000)
    clocked.queue(DEAD).sweep()
    leased = clocked.queue(DEAD).receive_many(600)
    limit = BatchLimit(2_900_000, in_bytes=True)

    found = batches(client, follow, limit)

    assert len(leased) == 600
    assert max(map(cost, found)) <= limit.amount
    assert sum(len(sequences(batch)) for batch in found) == 9_000


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
        bury_slowly(clocked, 400 * amount, DEAD if kind == "bury" else MAILS)
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


@pytest.mark.timeout(600)
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
    options = {**PATTERN, "failOnDataLoss": "false"}
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
