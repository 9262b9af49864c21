"""The demo: its pure parts, and whole runs as a user starts them, ended well, by Ctrl-C and by a crash."""

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import redis
from rich.console import Console

from rqttl.demo import flights, show
from rqttl.demo.flights import DAY, DemoUnavailable, Flight, boarding_call, plan, schedule
from rqttl.demo.stage import Counts, disagreements
from spark_connectors import demo_report
from tests.process.demo_runs import check_document, family, start
from tests.waiting import until

pytestmark = pytest.mark.once

DATE = 734_869  # 2013-01-01
LONG_DAY = ("--limit", "50000")  # one that goes on for longer than a busy machine stops a test
SOUND = {"sent": 10, "handled": 6, "expired": 3, "rejected": 1, "dead_lettered": 4}


def departure(at: int, carrier: str = "UA", origin: str = "EWR", gap: int | None = None) -> Flight:
    return Flight(DATE * DAY + at, carrier, 1, origin, "SFO", False, gap)


def test_the_gap_is_to_the_same_carriers_next_departure_from_the_same_airport() -> None:
    rows = [departure(at, *where) for at, *where in ((100,), (100,), (103, "DL"), (105, "UA", "JFK"), (110,))]  # type: ignore[arg-type]  # texts

    assert [flight.gap for flight in schedule(rows, 4)] == [10, 10, None, None]


def test_the_data_are_336776_departures_in_the_order_of_the_schedule() -> None:
    departures = flights.read_flights(flights.data_folder(), 1_000_000)

    assert len(departures) == 336_776
    assert departures == sorted(departures, key=lambda one: one.at)
    assert departures[0] == Flight(DATE * DAY + 5 * 60 + 15, "UA", 1545, "EWR", "IAH", False, 43)
    assert sum(one.cancelled for one in departures) == 8_255


def test_without_the_data_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flights, "PACKAGE", "no_such_package")

    with pytest.raises(DemoUnavailable, match=r"`pip install '\.\[demo\]'` in a checkout of rqttl$"):
        flights.data_folder()


def test_all_dates_are_played_as_one_day_at_whose_pace_the_gap_is_the_ttl() -> None:
    selected = [departure(at, gap=1000) for at in (370, 400, DAY + 370)] + [departure(2 * DAY + 1439)]

    day = plan(selected)

    assert day.first == 360
    assert day.seconds(DAY) == pytest.approx(flights.SHORTEST)
    calls = [boarding_call(flight, day) for flight in selected]
    assert [call.ttl for call in calls] == [timedelta(milliseconds=round(1000 * day.minute_ms))] * 3 + [None]
    assert calls[2].id == "UA 1 EWR 2013-01-02 06:10"


@pytest.mark.parametrize("name", ["", *Counts._fields[:-1]])
def test_one_call_too_many_anywhere_is_noticed(name: str) -> None:
    counts = Counts(**{**SOUND, **({name: SOUND[name] + 1} if name else {})})

    assert (disagreements("UA", counts, 10) == []) == (not name)


def printed(show: Callable[..., Any], *arguments: Any) -> tuple[Any, str]:
    """The result of a function that prints on a console, and what it printed."""
    written = io.StringIO()
    return show(Console(file=written, width=80), *arguments), written.getvalue()


@pytest.mark.parametrize("carriers", [3, 9])
def test_hours_and_carriers_are_a_table(carriers: int) -> None:
    _, text = printed(show.print_hours, {f"C{n}": {7: 10 + n, 12: 1_000} for n in range(carriers)})

    lines = [line.split() for line in text.splitlines()]
    assert ["hour", *(f"C{n}" for n in range(min(carriers, 7))), "all"] in lines
    assert lines[-1][0] == "all"
    assert lines[-1][-1] == f"{sum(1_010 + n for n in range(carriers)):,}"


def test_the_report_of_spark_is_compared_and_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = {"counts": {"DL": {"7": 1}, "UA": {"5": 1_200, "23": 2}}}
    counts = {"UA": Counts(dead_lettered=1_202), "DL": Counts(dead_lettered=2)}
    (hours, problems), _ = printed(show.print_report, counts, answer)
    assert problems == ["DL: dead letters, by the queue and by Spark: 2 is not 1"]
    assert hours == {"UA": {5: 1_200, 23: 2}, "DL": {7: 1}}

    path = tmp_path / "build" / "[red]picture.png"
    _, text = printed(show.print_picture, path, hours)
    assert f"The same as a picture: {path}\n" in text
    assert path.read_bytes().startswith(b"\x89PNG\r\n")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert "There is no picture: " in printed(show.print_picture, path, hours)[1]


def test_a_missing_package_of_spark_is_named() -> None:
    assert demo_report.missing_requirements(["click", "no_such_one"]) == (
        "no no_such_one is installed; `pip install '.[spark]'` in a checkout of rqttl"
    )


def lasting(client: redis.Redis) -> list[Any]:
    """The keys that Redis does not remove by itself."""
    return [key for key in client.scan_iter() if client.ttl(key) == -1]


def until_calls_are_sent(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert any(line.startswith("  06 ") for line in process.stdout), process.communicate()[1]


@pytest.mark.slow
def test_a_run_without_java_accounts_for_every_call_and_leaves_nothing(
    client: redis.Redis, redis_url: str, folder: Path, tmp_path: Path
) -> None:
    with start(folder, "--url", redis_url, "--json", spark=True, JAVA_HOME=str(tmp_path)) as process:
        out, printed = process.communicate()

    assert process.returncode == 0, printed
    document = json.loads(out)
    check_document(document)
    assert "It adds up" in printed
    assert "died" in printed.partition("$ rqttl dead show boarding.UA/dead --reason expired")[2]
    [line] = [line for line in printed.splitlines() if "Spark" in line]
    assert line == f"The report of Spark is left out: {document['spark']['missing']}"
    assert "apt-get install openjdk-17-jre-headless" in line
    assert lasting(client) == []
    assert family(folder) == []
    assert not folder.exists()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_signal_ends_everything(client: redis.Redis, redis_url: str, folder: Path, number: signal.Signals) -> None:
    with start(folder, "--url", redis_url, *LONG_DAY) as process:
        until_calls_are_sent(process)
        process.send_signal(number)
        process.communicate()

    assert process.returncode == {signal.SIGINT: 130}.get(number, -number)
    until(lambda: family(folder) == [])  # programs of a killed demo, and children of a worker, end by themselves
    assert number == signal.SIGKILL or lasting(client) == []


@pytest.mark.slow
def test_the_death_of_a_worker_ends_the_run(client: redis.Redis, redis_url: str, folder: Path) -> None:
    with start(folder, "--url", redis_url, *LONG_DAY) as process:
        until_calls_are_sent(process)
        programs = [pid for pid in family(folder) if pid != process.pid]
        os.kill(programs[0], signal.SIGKILL)
        _, errors = process.communicate()

    assert process.returncode == 1
    assert "the demo ended early: a program ended with code -9" in errors
    until(lambda: family(folder) == [])
    assert lasting(client) == []
