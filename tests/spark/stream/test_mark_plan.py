"""Plans of limits by the index of arrivals, over queues that are lists of messages here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from spark_connectors.read.arrivals import Marks, Tally
from spark_connectors.stream.mark_plan import MarkedRange, MarkPlan, plan_by_marks
from spark_connectors.stream.time_share import ReadAhead, TimeShare, UnreadRange

Taken = list[tuple[int, str]]


@dataclass
class Log:
    """The arrivals of a queue in order. Of the arrivals at the places `gone` there is no message any more.

    The arrivals at the places `marked` have a mark.
    """

    arrivals: Sequence[int]
    marked: Sequence[int] = ()
    gone: frozenset[int] = frozenset()
    after: int = 0
    received: int = 0
    read: int = field(default=0)

    @property
    def messages(self) -> list[int]:
        """The unread messages."""
        kept = [number for place, number in enumerate(self.arrivals) if place not in self.gone]
        return [number for number in kept if number > self.after]

    def part(self) -> MarkedRange:
        marked = [place for place in self.marked if self.arrivals[place] > self.after]
        marks = Marks.of((self.arrivals[place], Tally(place + 1)) for place in marked)
        return MarkedRange(self.after, self.received, len(self.arrivals), marks)


def batch(logs: dict[str, Log], limit: int) -> Taken:
    """Take a batch as the limiter does. Counts the messages that it reads."""
    unread = {name: log for name, log in logs.items() if log.messages}
    reached = plan_by_marks(limit, {name: log.part() for name, log in unread.items()})
    begins = {name: reached[name].sequence if name in reached else log.after for name, log in unread.items()}
    left = limit - sum(plan.cost for plan in reached.values())
    ends, rows = begins, dict.fromkeys(unread, 0)
    if left:
        ranges = {
            name: UnreadRange(begins[name], log.arrivals[-1], len(log.arrivals), ReadAhead(begins[name], begins[name]))
            for name, log in unread.items()
        }
        share = TimeShare(left, ranges, in_bytes=False)
        while requests := share.requests(500):
            for request in requests:
                page = [n for n in logs[request.queue].messages if request.after < n <= request.upto][: request.count]
                logs[request.queue].read += len(page)
                share.add(request, np.array(page, np.int64), np.ones(len(page), np.int64))
        ends, rows = ({name: of(name) for name in unread} for of in (share.end_of, share.rows_of))
    taken = []
    for name, log in unread.items():
        taken += [(number, name) for number in log.messages if number <= ends[name]]
        log.after = ends[name]
        log.received = (reached[name].count if name in reached else log.received) + rows[name]
    return sorted(taken)


def whole_log(count: int, step: int = 1_000, begin: int = 1, every: int = 1) -> Log:
    return Log([begin + every * i for i in range(count)], range(step - 1, count, step))


def test_a_batch_of_one_queue_goes_on_to_the_last_mark_that_the_limit_admits() -> None:
    log = whole_log(10_000)

    assert plan_by_marks(4_500, {"a": log.part()}) == {"a": MarkPlan(4_000, 4_000, 4_000)}
    assert plan_by_marks(4_000, {"a": log.part()}) == {"a": MarkPlan(4_000, 4_000, 4_000)}
    assert plan_by_marks(999, {"a": log.part()}) == {}


def test_queues_go_on_to_one_time_and_messages_up_to_the_next_mark_count() -> None:
    dense, sparse = whole_log(10_000), whole_log(1_000, 100, every=10)

    found = plan_by_marks(5_500, {"dense": dense.part(), "sparse": sparse.part()})

    assert found == {"dense": MarkPlan(4_000, 4_000, 4_000), "sparse": MarkPlan(4_991, 500, 500)}


def test_a_queue_without_marks_keeps_all_at_its_begin_unless_all_of_it_fits() -> None:
    marked, unmarked = whole_log(10_000), Log(range(1, 3_001))

    assert plan_by_marks(2_999, {"a": marked.part(), "b": unmarked.part()}) == {}
    assert plan_by_marks(5_000, {"a": marked.part(), "b": unmarked.part()}) == {"a": MarkPlan(2_000, 2_000, 2_000)}


def test_nothing_is_known_beyond_marks_that_were_cut_off() -> None:
    marks = Marks.of([(10, Tally(10)), (20, Tally(20))], complete=False)

    assert plan_by_marks(10**9, {"a": MarkedRange(0, 0, 1_000, marks)}) == {"a": MarkPlan(20, 20, 20)}


def test_without_losses_each_batch_is_full_and_few_messages_are_read_twice() -> None:
    logs = {f"q{i}": whole_log(20_000, begin=1 + 7 * i, every=3) for i in range(3)}

    sizes = []
    while taken := batch(logs, 15_000):
        sizes.append(len(taken))

    assert sizes == [15_000] * 4
    assert sum(log.read for log in logs.values()) < 60_000 * 0.25


@st.composite
def queues(draw: st.DrawFn) -> dict[str, Log]:
    logs = {}
    for name in draw(st.sampled_from(["a", "ab", "abc"])):
        gaps = draw(st.lists(st.integers(1, 40), min_size=1, max_size=60))
        places = st.sets(st.integers(0, len(gaps) - 1))
        logs[name] = Log(np.cumsum(gaps).tolist(), sorted(draw(places)), frozenset(draw(places)))
    return logs


@given(logs=queues(), limit=st.integers(1, 70))
def test_no_batch_exceeds_the_limit_or_has_older_messages_than_one_before_and_all_are_read_once(
    logs: dict[str, Log], limit: int
) -> None:
    total = sorted((number, name) for name, log in logs.items() for number in log.messages)
    holes = any(log.gone for log in logs.values())
    taken: Taken = []
    while any(log.messages for log in logs.values()):
        before = {name: log.after for name, log in logs.items()}
        part = batch(logs, limit)
        assert len(part) <= limit
        assert holes or len(part) == min(limit, len(total) - len(taken))
        assert any(log.after > before[name] for name, log in logs.items())
        assert not taken or not part or part[0][0] >= taken[-1][0]
        taken += part

    assert taken == total or sorted(taken) == total


@given(st.lists(st.one_of(st.binary(max_size=30), st.from_regex(rb"\d{13}-\d{6}( \d{1,9}){3}", fullmatch=True))))
def test_marks_rise_for_all_contents_of_an_index(members: list[bytes]) -> None:
    marks = Marks.parse(members)

    assert all(np.diff(marks.sequences) > 0)
    assert all(np.diff(marks.counts) > 0)


def test_members_that_are_no_marks_are_left_out() -> None:
    first, second, third = (b"170000000000%d-100000 %d %d %d" % (i, 1_024 * i, 1_000 * i, 9 * i) for i in (1, 2, 3))
    falling = (b"7 0 18", b"2048 2047 18", b"2048 2000 8", b"2048 2000", b"2048 2000 18 1")

    marks = Marks.parse([first, b"x", second[:-4], *(second[:21] + one for one in falling), third, second])

    assert marks.counts.tolist() == [1_024, 3_072]
    assert [marks.count_upto(int(n)) for n in (0, marks.sequences[0], marks.sequences[1] - 1)] == [0, 1_024, 1_024]
