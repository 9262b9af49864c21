from __future__ import annotations

import ast
import logging
import re
from pathlib import Path

import pytest
from redis.exceptions import ConnectionError, ReadOnlyError, ResponseError

from rqttl import SweepResult
from rqttl.reaper import report as reaper_report
from rqttl.reaper.report import DUTIES, PERIOD, Report, Totals
from rqttl.store.refusals import is_away
from tests.repository import ROOT


def swept(expired: int, *, now: int = 1_000) -> SweepResult:
    return SweepResult(now, None, False, 0, 0, expired, 0, 0)


def test_what_was_done_in_a_queue_is_one_line_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    clock = [0.0]
    report = Report(lambda: clock[0])
    with caplog.at_level(logging.INFO, "rqttl.reaper"):
        report.swept("a", swept(250, now=1_000), 990)
        report.swept("b", swept(1), None)
        report.swept("idle", swept(0), None)
        report.swept("a", swept(5, now=1_003), 1_000)
        assert report.seconds_left() == 0.0
        report.tell()
        assert caplog.messages == ["queue a: expired 255, lag 10 ms", "queue b: expired 1"]

        for _ in range(89):
            report.swept("a", swept(1), None)
            report.tell()
        assert (len(caplog.messages), report.seconds_left()) == (2, PERIOD)
        clock[0] += PERIOD
        report.tell()
        report.tell()

    assert caplog.messages[2:] == ["queue a: expired 89"]
    assert report.totals == Totals(sweeps=93, expired=345)


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
    table = documented()

    assert {event: level for event, (level, _) in table.items()} == {
        event: level for event, (level, _) in logged().items()
    }
    assert table.pop("swept")[1] == ("queue", *DUTIES, "sweeps", "lag_ms")  # some of them are not always there
    assert {event: set(fields) for event, (_, fields) in table.items()} == {
        event: fields for event, (_, fields) in logged().items() if event != "swept"
    }
