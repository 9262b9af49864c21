"""Limits of a micro-batch, shared out by time, over queues that are lists of messages here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

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

    def arrive(self, name: str, letters: Letters) -> None:
        """Have messages arrive in a queue, which may be new."""
        self.logs[name] = [*self.logs.get(name, []), *_numbered(letters)]
        self.marks.setdefault(name, 0)

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


def test_the_mark_of_a_queue_without_messages_in_a_batch_moves_to_the_time_of_the_batch() -> None:
    logs = Logs({"a": evenly(100, 10), "later": [(5_000, 1)]})

    logs.batch(10)

    assert logs.marks["a"] - logs.marks["later"] in (0, 1)
    assert logs.marks["a"] // MS == 91


def test_a_queue_that_appears_with_an_old_backlog_is_read_first() -> None:
    logs = Logs({"new": evenly(500, 10, first=100_000)})
    logs.batch(100)
    logs.arrive("old", evenly(150, 10))

    assert Counter(name for _, name, _ in logs.batch(100)) == {"old": 100}
    assert Counter(name for _, name, _ in logs.batch(100)) == {"old": 50, "new": 50}


def test_a_message_above_the_limit_is_a_batch_of_its_own_in_its_place() -> None:
    logs = Logs({"a": [(1, 3), (2, 500), (4, 3)], "b": [(3, 3)]})

    batches = [[size for *_, size in logs.batch(10, in_bytes=True)] for _ in range(3)]

    assert batches == [[3], [500], [3, 3]]


def test_of_equal_sequences_a_limit_takes_the_first_by_name() -> None:
    logs = Logs({name: [(9, 1)] for name in "abcd"})

    assert [[name for _, name, _ in logs.batch(3)] for _ in range(2)] == [["a", "b", "c"], ["d"]]


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
