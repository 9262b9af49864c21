"""Cutting logs without reading them, on the ways in which messages arrive; and that nothing is lost or read twice."""

import random
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_connectors.ranges import FIRST, FIRST_SERIAL, LAST, SERIALS, Range, sequence_text
from spark_connectors.read import plan, split

BEGIN = 1_700_000_000_000
DAY = 86_400_000
COUNT = 60_000


def sequence_numbers(times: Sequence[float]) -> list[int]:
    """The sequence numbers that a queue gives to messages that arrive at these times."""
    given: list[int] = []
    ms, serial = 0, FIRST_SERIAL
    for time in sorted(map(int, times)):
        if time > ms:
            ms, serial = time, FIRST_SERIAL
        elif serial < SERIALS - 1:
            serial += 1
        else:
            ms, serial = ms + 1, FIRST_SERIAL
        given.append(ms * SERIALS + serial)
    return given


def burst(share: float) -> Callable[[random.Random], list[float]]:
    def times(random: random.Random) -> list[float]:
        inside = [DAY * (0.6 + random.random() * share) for _ in range(COUNT * 95 // 100)]
        return inside + [DAY * random.random() for _ in range(COUNT * 5 // 100)]

    return times


def sweeps(random: random.Random) -> list[float]:
    """As a reaper makes them: 250 letters in a millisecond, some milliseconds apart, then nothing for a while."""
    times: list[float] = []
    now = 0.0
    while len(times) < COUNT:
        now += random.expovariate(1 / 60_000)
        for _ in range(random.randrange(1, 20)):
            now += 1 + 2 * random.random()
            times += [now] * 250
    return times


#: Ways to arrive, and how many times as large as the mean the largest of several parts may be.
ARRIVALS: dict[str, tuple[Callable[[random.Random], Sequence[float]], float]] = {
    "at random": (lambda random: list(accumulate(random.expovariate(COUNT / DAY) for _ in range(COUNT))), 1.3),
    "95 % in 1 % of the time": (burst(0.01), 1.5),
    "95 % in 0.05 % of the time": (burst(0.0005), 2.0),
    "in one ms": (lambda _: [0] * COUNT, 1.1),
    "with lognormal gaps": (lambda r: list(accumulate(10 * r.lognormvariate(0, 3) for _ in range(COUNT))), 2.2),
    "as sweeps": (sweeps, 2.5),
}


class FakeLog:
    """Shows a log around points, and counts how often."""

    def __init__(self, there: list[int], seen: int = 14) -> None:
        self.there, self.seen, self.looks = there, seen, 0

    def look(self, at: Sequence[int]) -> list[split.View]:
        self.looks += len(at)
        views = []
        for number in at:
            i = bisect_left(self.there, number)
            views.append(split.View(number, self.there[max(0, i - self.seen) : i], self.there[i : i + self.seen]))
        return views


@pytest.mark.parametrize("arrival", ARRIVALS)
@pytest.mark.parametrize("parts", [4, 16])
def test_parts_are_about_equal_after_few_looks_and_the_size_of_one_is_estimated(arrival: str, parts: int) -> None:
    times, bound = ARRIVALS[arrival]
    there = sequence_numbers([BEGIN + time for time in times(random.Random(parts))])
    log = FakeLog(there)

    ends = split.by_density(log.look, there[0], there[-1], len(there), parts)

    assert ends[-1][0] == there[-1]
    upto = [bisect_right(there, end) for end, _ in ends]
    largest = max(b - a for a, b in zip([0, *upto], upto, strict=False))
    assert largest <= bound * len(there) / parts
    assert log.looks <= max(128, len(there) // 100) + 2 * 128
    low, high = there[COUNT // 5], there[COUNT * 4 // 5 - 1]
    seen = split.estimate_rows(log.look, there[0], there[-1], len(there), low - 1, high)
    assert seen == pytest.approx(bisect_right(there, high) - bisect_left(there, low), rel=0.35)


TIMES = st.lists(st.one_of(st.integers(0, 50), st.integers(0, 10_000_000)), min_size=1, max_size=300)


@given(TIMES, st.integers(1, 12), st.integers(1, 5), st.integers(0, 400))
def test_any_split_and_packing_reads_each_message_once(times: list[int], parts: int, seen: int, claimed: int) -> None:
    there = sequence_numbers([BEGIN + time for time in times])
    whole = Range("q", FIRST, sequence_text(there[-1]), claimed)

    ends = split.by_density(FakeLog(there, seen).look, there[0], there[-1], claimed, parts)
    packed = plan.pack_evenly([*whole.cut(ends), Range("other", FIRST, LAST, 3)], parts)

    pieces = [piece for some in packed for piece in some if piece.queue == "q"]
    assert sum(piece.queue == "other" for some in packed for piece in some) == 1
    assert [sum(piece.contains(sequence_text(number)) for piece in pieces) for number in there] == [1] * len(there)
    assert all(packed)
    assert len(packed) <= parts


@given(st.lists(st.integers(0, 5_000), min_size=1, max_size=400), st.integers(1, 40))
def test_packing_is_even_but_for_the_largest_piece(sizes: list[int], parts: int) -> None:
    packed = plan.pack_evenly([Range(f"q{i}", FIRST, LAST, size) for i, size in enumerate(sizes)], parts)

    loads = [sum(piece.rows + 1 for piece in some) for some in packed]
    assert sum(map(len, packed)) == len(sizes)
    assert max(loads) - min(loads) <= max(sizes) + 1
