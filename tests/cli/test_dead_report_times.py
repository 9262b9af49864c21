"""The hours of `rqttl dead report`: their zone, their number, and longer units for many hours."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timezone

import pytest

from rqttl.cli.dead.calendar import MOST, count_times
from rqttl.inspector.letter_counts import QUARTER
from tests.cli.conftest import Run
from tests.cli.deaths import Die, die
from tests.contract.clocked import START

__all__ = ["die"]

HOUR, DAY = 3_600_000, 86_400_000
Zone = Callable[[str], None]


@pytest.fixture
def zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[Zone]:
    """`zone("EST5")`: this process is there, until the end of the test."""

    def go(name: str) -> None:
        monkeypatch.setenv("TZ", name)
        time.tzset()

    yield go
    monkeypatch.undo()
    time.tzset()


def ms(text: str) -> int:
    """The milliseconds from the start of the tests' clock to a time."""
    return int(datetime.strptime(f"{text}+0000", "%Y-%m-%d %H:%M%z").timestamp() * 1000) - START


def table(printed: str, title: str) -> dict[str, int]:
    """The counts of the table that begins with this title."""
    [lines] = [part.splitlines() for part in printed.split("\n\n") if part.startswith(title)]
    cells = [line.split("   ") for line in lines[2:]]
    return {name.strip(): int(next(filter(str.strip, numbers)).replace(",", "")) for name, *numbers in cells}


def test_hours_without_deaths_have_their_lines(run_clocked: Run, die: Die) -> None:
    die(ms("2023-11-14 22:59"))
    die(ms("2023-11-15 02:00"), 2)

    printed = run_clocked("dead", "report", "dead", "--by", "hour", "--utc").stdout

    assert table(printed, "hour (UTC)") == {
        "2023-11-14 22:00": 1,
        "2023-11-14 23:00": 0,
        "2023-11-15 00:00": 0,
        "2023-11-15 01:00": 0,
        "2023-11-15 02:00": 2,
    }


@pytest.mark.parametrize(
    "apart, unit, lines",
    [
        (2 * DAY, "hour", 49),
        (2 * DAY + HOUR, "6 hours", 9),
        (11 * DAY, "6 hours", 45),
        (13 * DAY, "day", 14),
        (50 * DAY, "week", 8),
        (400 * DAY, "month", 14),
        (9 * 365 * DAY, "year", 2),
    ],
)
@pytest.mark.parametrize("words", [("--utc",), ()])
def test_over_a_longer_time_a_longer_unit_is_used_and_a_note_names_it(
    run_clocked: Run, die: Die, zone: Zone, apart: int, unit: str, lines: int, words: tuple[str, ...]
) -> None:
    zone("CET-1CEST,M3.5.0,M10.5.0/3")
    begin = ms("2023-11-15 12:00")
    die(begin, 3)
    die(begin + apart, 4)

    result = run_clocked("dead", "report", "dead", "--by", "hour", *words)

    counts = list(table(result.stdout, unit).values())
    assert (len(counts), counts[0], counts[-1], sum(counts)) == (lines, 3, 4, 7)
    expected = f"rqttl: too many hours for a table, so by {unit}: --newer-than 2d or --json shows hours\n"
    assert result.stderr == ("" if unit == "hour" else expected)
    hours = json.loads(run_clocked("dead", "report", "dead", "--by", "hour", "--json").stdout)["by"]["hour"]
    assert [one["count"] for one in hours] == [3, 4]


def test_no_table_is_longer_than_two_days_of_hours() -> None:
    first = datetime(2020, 2, 28, 23, 45, tzinfo=timezone.utc)
    for quarters in range(1, 4 * 24 * 365 * 4, 97):
        _, _, rows = count_times({first: 1, first + quarters * QUARTER: 1}, timezone.utc)
        assert len(rows) <= MOST
        assert sum(n for _, n in rows) == 2


def test_hours_are_those_of_the_machine_also_where_they_begin_at_another_minute(
    run_clocked: Run, die: Die, zone: Zone
) -> None:
    zone("NPT-5:45")
    die(ms("2023-11-14 22:10"))
    die(ms("2023-11-14 22:20"), 2)

    printed = run_clocked("dead", "report", "dead", "--by", "hour").stdout

    assert table(printed, "hour (UTC+05:45)") == {"2023-11-15 03:00": 1, "2023-11-15 04:00": 2}
    (hour,) = json.loads(run_clocked("dead", "report", "dead", "--json").stdout)["by"]["hour"]
    assert hour == {"hour": "2023-11-14T22:00:00+00:00", "count": 3}


def test_an_hour_that_comes_twice_has_two_lines(run_clocked: Run, die: Die, zone: Zone) -> None:
    zone("CET-1CEST,M3.5.0,M10.5.0/3")
    for n, at in enumerate(("2024-10-27 00:30", "2024-10-27 01:30", "2024-10-27 02:30"), 1):
        die(ms(at), n)

    printed = run_clocked("dead", "report", "dead", "--by", "hour").stdout

    assert table(printed, "hour (local time)") == {
        "2024-10-27 02:00+02:00": 1,
        "2024-10-27 02:00+01:00": 2,
        "2024-10-27 03:00+01:00": 3,
    }
