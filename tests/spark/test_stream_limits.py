"""Limits of a micro-batch, shared out over queues that are lists of sizes here."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spark_connectors.ranges import FIRST
from spark_connectors.stream.limits import FairShare, QueueShare, ReadRequest, ReadResult


def at(n: int) -> str:
    """The sequence of the n-th message, from 1 on; before the first for 0."""
    return f"{1_700_000_000_000 + n}-100000" if n else FIRST


def drive(shares: FairShare, answer: Callable[[ReadRequest], ReadResult]) -> None:
    """Run it to its end."""
    asking = shares.run()
    with contextlib.suppress(StopIteration):
        requests = next(asking)
        while True:
            requests = asking.send([answer(request) for request in requests])


class Queues:
    """Queues of messages of these sizes, of which one has read some."""

    def __init__(self, sizes: Mapping[str, Sequence[int]]) -> None:
        self.sizes = {name: list(of) for name, of in sizes.items()}
        self.read = dict.fromkeys(sizes, 0)
        self.next_queue = ""

    def answer(self, request: ReadRequest) -> ReadResult:
        sizes, begin = (
            self.sizes[request.queue],
            int(request.after[:13]) - 1_700_000_000_000 if request.after > FIRST else 0,
        )
        taken = 0
        for n in range(begin, len(sizes)):
            if taken + sizes[n] > request.budget and not (request.at_least_one and n == begin):
                return ReadResult(at(n), n - begin, taken, False)
            taken += sizes[n]
            if request.at_least_one:
                return ReadResult(at(n + 1), 1, taken, n + 1 == len(sizes))
        return ReadResult(request.upto, len(sizes) - begin, taken, True)

    def batch(self, limit: int) -> dict[str, int]:
        """Read a batch. Returns the number of messages of each queue."""
        parts = {
            name: QueueShare(at(self.read[name]), at(len(sizes)))
            for name, sizes in self.sizes.items()
            if self.read[name] < len(sizes)
        }
        shares = FairShare(limit, parts, self.next_queue)
        drive(shares, self.answer)
        taken = {name: part.rows for name, part in shares.shares.items()}
        for name, rows in taken.items():
            self.read[name] += rows
        self.next_queue = shares.next_queue
        return taken

    def size(self, taken: Mapping[str, int]) -> int:
        """Return the size of the batch that was just read."""
        return sum(sum(self.sizes[name][self.read[name] - n : self.read[name]]) for name, n in taken.items())

    def left(self) -> int:
        return sum(len(sizes) - self.read[name] for name, sizes in self.sizes.items())


def letters(**counts: int) -> Queues:
    return Queues({name: [1] * count for name, count in counts.items()})


def test_the_unused_share_of_a_queue_goes_to_the_others() -> None:
    assert letters(a=5, b=200, c=1_000).batch(300) == {"a": 5, "b": 148, "c": 147}


def test_equal_queues_get_equal_shares() -> None:
    assert letters(a=100, b=100, c=100).batch(90) == {"a": 30, "b": 30, "c": 30}


def test_with_more_queues_than_the_limit_each_has_its_turn() -> None:
    queues = letters(**{f"q{i}": 100 for i in range(7)})

    batches = [queues.batch(3) for _ in range(7)]

    assert [sorted(name for name, n in taken.items() if n) for taken in batches[:3]] == [
        ["q0", "q1", "q2"],
        ["q3", "q4", "q5"],
        ["q0", "q1", "q6"],
    ]
    assert set(queues.read.values()) == {3}


@pytest.mark.parametrize("limit", [1, 2, 10, 99])
def test_a_queue_of_large_messages_does_not_starve_among_small_ones(limit: int) -> None:
    queues = Queues({"large": [90] * 3, **{f"small{i}": [1] * 1_000 for i in range(5)}})

    for _ in range(30):
        queues.batch(limit)

    assert queues.read["large"] == 3
    assert all(queues.read[f"small{i}"] for i in range(5))


def test_a_message_larger_than_the_limit_is_a_batch_of_its_own() -> None:
    queues = Queues({"a": [1, 500, 1], "b": [1, 1, 1]})

    assert queues.batch(10) == {"a": 1, "b": 3}
    assert queues.batch(10) == {"a": 1}
    assert queues.batch(10) == {"a": 1}


def test_queues_whose_messages_were_all_handled_take_nothing_from_the_others() -> None:
    parts = {f"gone{i:02}": QueueShare(at(0), at(9)) for i in range(40)} | {"x": QueueShare(at(0), at(9))}
    shares = FairShare(5, parts)
    asked: list[ReadRequest] = []

    def answer(request: ReadRequest) -> ReadResult:
        asked.append(request)
        return (
            ReadResult(at(5), request.budget, request.budget, False)
            if request.queue == "x"
            else ReadResult(request.upto, 0, 0, True)
        )

    drive(shares, answer)

    assert shares.shares["x"].rows == 5
    assert len(asked) == 42
    assert shares.next_queue == "x"


@given(
    sizes=st.dictionaries(
        st.sampled_from("abcdefghijklmnopqrstuvwxyz"), st.lists(st.integers(1, 40), min_size=1, max_size=30), min_size=1
    ),
    limit=st.integers(1, 120),
)
@example(sizes={"a": [40], "b": [1] * 30}, limit=30)
def test_no_batch_exceeds_the_limit_and_all_is_read_in_the_end(sizes: dict[str, list[int]], limit: int) -> None:
    queues = Queues(sizes)
    batches = 0
    unserved = dict.fromkeys(sizes, 0)
    while before := queues.left():
        taken = queues.batch(limit)
        batches += 1
        cost = queues.size(taken)
        assert queues.left() < before
        assert cost <= limit or sum(taken.values()) == 1
        for name, of in sizes.items():
            unserved[name] = 0 if taken.get(name) or queues.read[name] == len(of) else unserved[name] + 1
            assert unserved[name] < len(sizes)
        assert queues.left() == 0 or cost > limit - 40


@given(st.dictionaries(st.text("abc", min_size=1, max_size=3), st.integers(1, 50), min_size=1), st.integers(1, 200))
def test_messages_are_used_up_to_the_limit_and_shared_evenly(counts: dict[str, int], limit: int) -> None:
    queues = Queues({name: [1] * n for name, n in counts.items()})

    taken = queues.batch(limit)

    assert sum(taken.values()) == min(limit, sum(counts.values()))
    most = max(taken.values())
    assert all(n >= most - 2 or n == counts[name] for name, n in taken.items())
