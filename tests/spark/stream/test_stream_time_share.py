"""Limits of a micro-batch, planned by marks and shared out by time, over queues that are lists of messages here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spark_connectors.read.arrivals import Marks, Tally
from spark_connectors.stream.mark_plan import MarkedRange, plan_by_marks
from spark_connectors.stream.time_share import PageRequest, ReadAhead, TimeShare, UnreadRange

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
