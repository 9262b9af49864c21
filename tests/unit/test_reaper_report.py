from __future__ import annotations

import ast
import logging
import re
from pathlib import Path

import pytest
from redis.exceptions import ConnectionError, ReadOnlyError, ResponseError

from rqttl import SweepResult
from rqttl.reaper import report as reaper_report
from rqttl.reaper.report import LOG_EVENTS, PERIOD, Report, Totals
from rqttl.store.refusals import is_away
from tests.repository import ROOT


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


def test_messages_that_expire_one_by_one_share_a_line(caplog: pytest.LogCaptureFixture) -> None:
    clock = [0.0]
    report = Report(lambda: clock[0])
    with caplog.at_level(logging.INFO, "rqttl.reaper"):
        for _ in range(90):
            report.swept("a", swept(1), None, more=False)
        clock[0] += PERIOD
        report.tell_late()
        report.tell_late()

    assert caplog.messages == ["queue a: expired 1", "queue a: expired 89"]


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


def test_finished_work_is_told_before_a_queue_fails(caplog: pytest.LogCaptureFixture) -> None:
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


def logged() -> dict[str, tuple[int, set[str]]]:
    """The level and the fields of each event that the reaper logs, from its source."""
    events = {}
    for path in Path(reaper_report.__file__).parent.glob("*.py"):
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "log_event":
                level = call.args[0].body if isinstance(call.args[0], ast.IfExp) else call.args[0]
                event = ast.literal_eval(call.args[1])
                fields = {keyword.arg for keyword in call.keywords if keyword.arg is not None}
                assert isinstance(level, ast.Attribute)
                events[event] = getattr(logging, level.attr), fields
    return events


def documented() -> dict[str, tuple[int, tuple[str, ...]]]:
    """The level and the fields of each event in the table of the guide."""
    text = (ROOT / "docs/guides/worker.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (info|warning|error) \|([^|]*)\| [^|]+ \|$", text, re.MULTILINE)
    return {
        event: (getattr(logging, level.upper()), tuple(re.findall(r"`(\w+)`", fields))) for event, level, fields in rows
    }


def test_the_table_of_log_events_names_each_event_with_its_level_and_fields() -> None:
    events, table = logged(), documented()

    assert {event: fields for event, (_, fields) in table.items()} == LOG_EVENTS
    assert {event: level for event, (level, _) in table.items()} == {
        event: level for event, (level, _) in events.items()
    }


def test_each_event_is_logged_with_the_fields_of_its_row() -> None:
    named = {event: set(fields) for event, fields in LOG_EVENTS.items() if event != "swept"}  # its fields vary

    assert {event: fields for event, (_, fields) in logged().items() if event != "swept"} == named
