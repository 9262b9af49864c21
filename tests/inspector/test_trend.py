"""Trends: rates, depths, aggregates and late work, from snapshots made up here."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from rqttl.inspector.queues import WAITS, Trend, aggregate
from tests.contract.clocked import at
from tests.inspector.snapshots import stats, trend_of


def rates_of(trend: Trend) -> dict[str, Any]:
    return {row.name: row.rates and dict(row.rates) for row in trend.rows()}


COUNTERS = ("in", "out", "acked", "expired", "dead", "refused", "copies", "unrouted")
NO_RATE = dict.fromkeys(COUNTERS, 0.0)


# Rates


def test_rates_are_differences_of_counters_over_the_time_of_redis() -> None:
    before = stats(5, enqueued=10, delivered=4, acked=3, refused=1, deaths={"expired": 2, "rejected": 1})
    after = stats(7, enqueued=20, delivered=4, acked=8, refused=3, deaths={"expired": 6, "rejected": 1, "maxlen": 1})

    trend = trend_of({"orders": before}, {"orders": after}, ms=2_500)

    growth = {**NO_RATE, "in": 4.0, "acked": 2.0, "expired": 1.6, "dead": 2.0, "refused": 0.8}
    assert rates_of(trend) == {"orders": pytest.approx(growth)}
    assert trend.elapsed == 2.5


def test_there_is_no_rate_before_the_second_snapshot_of_a_queue() -> None:
    trend = trend_of({"old": stats()}, {"old": stats(), "new": stats(3, enqueued=3)})

    assert rates_of(trend) == {"new": None, "old": NO_RATE}
    assert rates_of(trend_of({"old": stats()})) == {"old": None}


@pytest.mark.parametrize("counter", ["enqueued", "delivered", "acked", "refused"])
def test_counters_that_go_back_give_no_rate(counter: str) -> None:
    names = ("enqueued", "delivered", "acked", "refused")
    before: dict[str, Any] = dict.fromkeys(names, 9)
    after: dict[str, Any] = {**dict.fromkeys(names, 12), counter: 8}

    trend = trend_of({"a": stats(9, **before)}, {"a": stats(4, **after)})

    assert rates_of(trend) == {"a": None}
    assert trend.total("").rates is None
    assert trend.rows()[0].depths == (4,)  # another queue of the same name


@pytest.mark.parametrize("ms", [0, -500])
def test_a_clock_that_does_not_advance_gives_no_rate_and_forgets_nothing(ms: int) -> None:
    trend = trend_of({"a": stats(1, enqueued=1)}, {"a": stats(2, enqueued=2)}, ms=ms)

    assert rates_of(trend) == {"a": None}
    assert trend.rows()[0].depths == (1, 2)


def test_the_total_rates_are_the_sums_of_the_known_rates() -> None:
    trend = trend_of(
        {"a": stats(), "b": stats(), "gone": stats(enqueued=50)},
        {"a": stats(enqueued=4), "b": stats(enqueued=2, acked=2), "new": stats(enqueued=100)},
    )

    assert trend.total("all").rates == {**NO_RATE, "in": 3.0, "acked": 1.0}


def test_depths_are_those_of_all_states_and_of_the_last_snapshots() -> None:
    snapshots = [{"a": stats(i, leased=1, delayed=2), "b": stats(1)} for i in range(100)]

    trend = trend_of(*snapshots)

    assert trend.rows()[0].depths == tuple(i + 3 for i in range(40, 100))
    assert trend.total("").depths == tuple(i + 4 for i in range(40, 100))


def test_the_aggregate_of_queues_has_their_sums_and_the_longest_wait() -> None:
    first = stats(1, leased=2, deaths={"expired": 3}, overdue=10, oldest_ready_age=timedelta(seconds=1))
    second = replace(stats(10, enqueued=20, deaths={"expired": 30, "maxlen": 1}, overdue=5), next_lease_end=at(7))
    third = replace(stats(), next_lease_end=at(3))

    both = aggregate([first, second, third])

    assert both == replace(
        stats(11, leased=2, enqueued=20, deaths={"expired": 33, "maxlen": 1}, overdue=10),
        next_lease_end=at(3),
        oldest_ready_age=timedelta(seconds=1),
    )
    assert (aggregate([]).ready, aggregate([]).overdue, aggregate([]).oldest_ready_age) == (0, timedelta(0), None)


# Late work


@pytest.mark.parametrize(
    "waits,reapers,advice",
    [
        ([999], 0, None),
        ([1_000], 0, "no reaper runs: oldest due work waits 1.0s (`rqttl reaper` does it)"),
        ([0, 0, 70_000], 0, "no reaper runs: oldest due work waits 1m 10s"),
        ([70_000, 0], 0, None),
        ([70_000, 0, 5_000, 0, 0], 1, None),
        ([2_000, 0, 2_000, 0, 2_000], 1, "a reaper runs, but oldest due work waits 2.0s: look at its log"),
        ([2_000, 0, 2_000, 0, 2_000, 0], 1, None),
        ([2_000] * 9, 3, "3 reapers run, but oldest due work waits 2.0s: look at its log"),
        ([2_000, 2_000], None, None),
        ([2_000, 2_000, 1_500], None, "no reaper?: oldest due work waits 2.0s"),
    ],
)
def test_late_work_has_advice(waits: list[int], reapers: int | None, advice: str | None) -> None:
    trend = trend_of(*[{"a": stats(), "b": stats(overdue=ms)} for ms in waits], reapers=reapers)

    late = trend.late_work()

    assert WAITS == 5
    assert (late is None) == (advice is None)
    assert (advice or "") in (late.advice if late else "")
