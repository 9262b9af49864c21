"""Limits of micro-batches, shared out by time and planned by marks: over lists of messages, and on real queues."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import redis
from hypothesis import example, given
from hypothesis import strategies as st

from rqttl import Message
from spark_connectors.errors import MalformedEntry
from spark_connectors.read.arrivals import Marks, Tally
from spark_connectors.stream.mark_plan import BatchLimit, MarkedRange, plan_by_marks
from spark_connectors.stream.offsets import Offset
from spark_connectors.stream.planner import StreamPlanner
from spark_connectors.stream.time_share import PageRequest, ReadAhead, TimeShare, UnreadRange
from tests.contract.clocked import START, Clocked
from tests.spark.following import Follow, again

MS = 1_000_000
#: A message: its time in ms, and its size.
Letters = Sequence[tuple[int, int]]


class Logs:
    """Queues of messages. A read of each counts, and a query has read some of them."""

    def __init__(self, queues: Mapping[str, Letters], detached: Mapping[str, Letters] | None = None) -> None:
        self.logs = {name: _numbered(letters) for name, letters in queues.items()}
        #: Messages outside the log. Their serials differ from those of the log.
        self.detached = {name: _numbered(letters, 500_000) for name, letters in (detached or {}).items()}
        self.marks = dict.fromkeys(self.logs, 0)
        self.ahead: dict[str, ReadAhead] = {}
        self.read: Counter[tuple[str, int]] = Counter()
        self.trips = 0

    def all_of(self, name: str) -> list[tuple[int, int]]:
        return sorted([*self.logs[name], *self.detached.get(name, [])])

    def left(self) -> int:
        return sum(number > self.marks[name] for name in self.logs for number, _ in self.all_of(name))

    def batch(self, limit: int, *, in_bytes: bool = False, room: int = 1_000) -> list[tuple[int, str, int]]:
        """Read a batch. Returns the messages between the old marks and the new ones: number, queue and size."""
        ranges = {name: self._range(name) for name in self.logs if self._behind(name)}
        share = TimeShare(limit, ranges, in_bytes=in_bytes)
        while requests := share.requests(room):
            self.trips += 1
            assert sum(request.count for request in requests) <= room
            for request in requests:
                share.add(request, *self._page(request))
        self.ahead = share.read_ahead()
        taken = []
        for name in ranges:
            begin, self.marks[name] = self.marks[name], share.end_of(name)
            mine = [(number, name, size) for number, size in self.all_of(name) if begin < number <= self.marks[name]]
            assert share.rows_of(name) == len(mine)
            taken += mine
        return sorted(taken)

    def _behind(self, name: str) -> bool:
        return any(number > self.marks[name] for number, _ in self.all_of(name))

    def _range(self, name: str) -> UnreadRange:
        after, everything = self.marks[name], self.all_of(name)
        ahead = self.ahead.get(name) or ReadAhead(after, after)
        outside = self.detached.get(name, [])
        with_detached = ReadAhead(
            ahead.after,
            ahead.frontier,
            np.append(ahead.numbers, [number for number, _ in outside]).astype(np.int64),
            np.append(ahead.sizes, [size for _, size in outside]).astype(np.int64),
        )
        return UnreadRange(after, everything[-1][0], len(everything), with_detached)

    def _page(self, request: PageRequest) -> tuple[np.ndarray, np.ndarray]:
        log = [pair for pair in self.logs[request.queue] if request.after < pair[0] <= request.upto][: request.count]
        self.read.update((request.queue, number) for number, _ in log)
        return np.array([n for n, _ in log], np.int64), np.array([size for _, size in log], np.int64)


def _numbered(letters: Letters, serial: int = 100_000) -> list[tuple[int, int]]:
    """Give each message the number of its sequence: its serial counts up in its ms."""
    seen: Counter[int] = Counter()
    numbered = []
    for ms, size in sorted(letters):
        numbered.append((ms * MS + serial + seen[ms], size))
        seen[ms] += 1
    return numbered


def evenly(count: int, gap: int, first: int = 1) -> Letters:
    return [(first + i * gap, 1) for i in range(count)]


letters = st.lists(st.tuples(st.integers(1, 60) | st.integers(1, 10**9), st.integers(1, 40)), max_size=30)
names = st.sampled_from("abcdefgh")


@given(
    queues=st.dictionaries(names, letters, min_size=1),
    detached=st.dictionaries(names, letters),
    limit=st.integers(1, 60),
    in_bytes=st.booleans(),
    room=st.integers(1, 50),
)
@example(queues={"a": [(5, 40)], "b": [(5, 1)] * 30}, detached={}, limit=30, in_bytes=True, room=7)
@example(queues={name: [(7, 1)] * 3 for name in "abcdefgh"}, detached={}, limit=5, in_bytes=False, room=3)
def test_no_batch_has_a_message_older_than_one_of_a_batch_before_it(
    queues: dict[str, Letters], detached: dict[str, Letters], limit: int, in_bytes: bool, room: int
) -> None:
    logs = Logs(queues, {name: of for name, of in detached.items() if name in queues})
    expected = sorted((number, name) for name in queues for number, _ in logs.all_of(name))
    reached, rows = 0, list[tuple[int, str]]()

    while before := logs.left():
        taken = logs.batch(limit, in_bytes=in_bytes, room=room)
        cost = sum(size for *_, size in taken) if in_bytes else len(taken)
        assert taken
        assert logs.left() == before - len(taken)
        assert cost <= limit or len(taken) == 1
        assert min(taken)[0] // MS >= reached
        reached = max(taken)[0] // MS
        rows += [(number, name) for number, name, _ in taken]
        assert logs.left() == 0 or cost > limit - (40 if in_bytes else 1)

    assert rows == expected
    assert max(logs.read.values(), default=1) == 1


def test_a_sparse_queue_waits_for_the_time_that_a_dense_one_has_reached() -> None:
    logs = Logs({"dense": evenly(3_000, 10), "sparse": evenly(30, 1_000)})

    first = logs.batch(300)

    assert Counter(name for _, name, _ in first) == {"dense": 297, "sparse": 3}
    assert logs.marks["sparse"] // MS == logs.marks["dense"] // MS == 2_961


@pytest.mark.parametrize(
    "queues, limit, entries, trips",
    [
        # one message of each queue, and one more of those whose first message is in the batch
        ({f"q{i:04}": evenly(10, 20_000, first=1 + i) for i in range(2_000)}, 300, 2_300, 4),
        (
            {"dense": evenly(20_000, 1), **{f"q{i:03}": evenly(10, 2_000, first=7 + i) for i in range(900)}},
            5_000,
            6_000,
            8,
        ),
        # bursts, far denser than their queues are as a whole
        ({f"q{i}": [*evenly(400, 1, first=1 + 1_000 * i), (10**8, 1)] for i in range(50)}, 1_000, 4_500, 8),
        ({"one": evenly(20_000, 5)}, 10_000, 10_000, 10),
    ],
)
def test_a_first_batch_reads_little_more_than_it_holds(
    queues: dict[str, Letters], limit: int, entries: int, trips: int
) -> None:
    logs = Logs(queues)

    assert len(logs.batch(limit)) == limit
    assert logs.read.total() <= entries
    assert logs.trips <= trips


def test_messages_read_beyond_the_end_of_a_batch_are_not_read_again() -> None:
    logs = Logs({f"q{i:03}": evenly(30, 1_000, first=1 + i) for i in range(500)})
    logs.batch(200)
    first = logs.read.total()

    for _ in range(10):
        assert len(logs.batch(200)) == 200

    assert first <= 500 + 200
    assert logs.read.total() - first <= 1.1 * 10 * 200
    assert max(logs.read.values()) == 1


@dataclass
class Log:
    """The arrivals of a queue, in order; each `step`-th has a mark."""

    arrivals: Sequence[int]
    step: int = 1_000_000

    def part(self) -> MarkedRange:
        marked = range(self.step - 1, len(self.arrivals), self.step)
        marks = Marks.of((self.arrivals[place], Tally(place + 1)) for place in marked)
        return MarkedRange(0, 0, len(self.arrivals), marks)


DENSE = Log(range(1, 10_001), 1_000)


@pytest.mark.parametrize(
    "limit, logs, expected",
    [
        (4_500, {"a": DENSE}, {"a": 4_000}),
        (4_000, {"a": DENSE}, {"a": 4_000}),
        (999, {"a": DENSE}, {}),
        # queues go on to one time, and messages up to the next mark count
        (5_500, {"a": DENSE, "b": Log(range(1, 10_001, 10), 100)}, {"a": 4_000, "b": 500}),
        # a queue without marks keeps all at its begin unless all of it fits
        (2_999, {"a": DENSE, "b": Log(range(1, 3_001))}, {}),
        (5_000, {"a": DENSE, "b": Log(range(1, 3_001))}, {"a": 2_000}),
    ],
)
def test_queues_go_on_to_the_last_mark_that_the_limit_admits(
    limit: int, logs: dict[str, Log], expected: dict[str, int]
) -> None:
    found = plan_by_marks(limit, {name: log.part() for name, log in logs.items()})

    assert {name: (one.sequence, one.count, one.cost) for name, one in found.items()} == {
        name: (logs[name].arrivals[count - 1], count, count) for name, count in expected.items()
    }


def test_members_that_are_no_marks_are_left_out() -> None:
    first, second, third = (b"170000000000%d-100000 %d %d %d" % (i, 1_024 * i, 1_000 * i, 9 * i) for i in (1, 2, 3))
    falling = (b"7 0 18", b"2048 2047 18", b"2048 2000 8", b"2048 2000", b"2048 2000 18 1")

    marks = Marks.parse([first, b"x", second[:-4], *(second[:21] + one for one in falling), third, second])

    assert marks.counts.tolist() == [1_024, 3_072]
    assert [marks.count_upto(int(n)) for n in (0, marks.sequences[0], marks.sequences[1] - 1)] == [0, 1_024, 1_024]


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
