from __future__ import annotations

import logging

import pytest
from redis.exceptions import ConnectionError, ReadOnlyError, ResponseError

from rqttl import SweepResult
from rqttl.reaper.report import PERIOD, Report, Totals
from rqttl.store.refusals import is_away


def swept(expired: int, *, now: int = 1_000, more: bool = False) -> SweepResult:
    return SweepResult(now, None, more, 0, 0, expired, 0, 0)


def test_a_sweep_that_did_nothing_is_not_worth_a_line(caplog: pytest.LogCaptureFixture) -> None:
    report = Report()
    with caplog.at_level(logging.INFO, "rqttl.reaper"):
        report.swept("a", swept(0), None, more=False)

    assert caplog.messages == []
    assert report.totals == Totals(sweeps=1)


def test_a_burst_is_one_line_when_the_queue_has_caught_up(caplog: pytest.LogCaptureFixture) -> None:
    report = Report(lambda: 0.0)
    with caplog.at_level(logging.INFO, "rqttl.reaper"):
        report.swept("a", swept(250, now=1_000, more=True), 990, more=True)
        report.swept("b", swept(1), None, more=False)
        report.swept("a", swept(5, now=1_003), 1_000, more=False)

    assert caplog.messages == ["queue b: expired 1", "queue a: expired 255, lag 10 ms"]
    assert report.totals == Totals(sweeps=3, expired=256)


def test_endless_work_is_told_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    clock = [0.0]
    report = Report(lambda: clock[0])
    with caplog.at_level(logging.INFO, "rqttl.reaper"):
        for _ in range(4):
            report.swept("a", swept(250, more=True), None, more=True)
            clock[0] += PERIOD / 2
        assert caplog.messages == ["queue a: expired 750, more to do"]

        report.close()

    assert caplog.messages[1:] == ["queue a: expired 250"]


def test_what_was_done_is_told_before_a_queue_fails(caplog: pytest.LogCaptureFixture) -> None:
    report = Report(lambda: 0.0)
    with caplog.at_level(logging.INFO, "rqttl.reaper"):
        report.swept("a", swept(250, more=True), None, more=True)
        report.failed("a", ValueError("no"))

    assert caplog.messages == ["queue a: expired 250", "queue a: not swept: no; all others go on"]
    assert report.totals.failed == 1


@pytest.mark.parametrize(
    "error, away",
    [
        (ConnectionError("gone"), True),
        (ReadOnlyError("You can't write against a read only replica."), True),
        (ResponseError("Error running script: READONLY You can't write against a read only replica."), True),
        (ResponseError("WRONGTYPE"), False),
        (ValueError("x"), False),
    ],
)
def test_an_outage_is_told_from_a_queue_that_is_broken(error: Exception, away: bool) -> None:
    assert is_away(error) is away
