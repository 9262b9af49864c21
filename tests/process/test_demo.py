"""The demo: its pure parts, and whole runs as a user starts them, ended well, by Ctrl-C and by a crash."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import redis

import rqttl
from rqttl.demo import NAMESPACE, flights
from rqttl.demo.accounts import Counts, disagreements
from rqttl.demo.day import (
    DAY,
    SHORTEST,
    boarding_call,
    by_minute,
    clock,
    plan,
)
from rqttl.demo.flights import DemoUnavailable, Departure, Flight, parse_departures, schedule
from rqttl.demo.names import boarding, dead_letters
from tests.process.demo_runs import ENDINGS, check_document, family, start
from tests.process.embedded_users import data_folder, running
from tests.waiting import until

pytestmark = pytest.mark.once

HEADER = "year,month,day,dep_time,sched_dep_time,carrier,flight,origin,dest,hour,minute,time_hour"


LONG_DAY = ("--limit", "50000")  # one that goes on for longer than a busy machine stops a test


def departure(at: int, carrier: str = "UA", origin: str = "EWR", number: int = 1) -> Departure:
    return Departure(at, at % DAY, carrier, number, origin, "SFO", False)


# The input


def test_rows_are_read_with_their_time_in_utc_and_their_minute_of_the_day_in_new_york() -> None:
    rows = [HEADER, "2013,1,1,517,515,UA,1545,EWR,IAH,5,15,2013-01-01T10:00:00Z"]

    assert list(parse_departures(rows)) == [Departure(22617255, 5 * 60 + 15, "UA", 1545, "EWR", "IAH", False)]


def test_a_flight_without_a_departure_was_cancelled() -> None:
    rows = [HEADER, "2013,1,1,NA,1630,EV,4308,EWR,RDU,16,30,2013-01-01T21:00:00Z"]

    assert [one.cancelled for one in parse_departures(rows)] == [True]


def test_the_gap_is_to_the_same_carriers_next_departure_from_the_same_airport() -> None:
    rows = [departure(100), departure(103, carrier="DL"), departure(105, origin="JFK"), departure(110)]

    assert [flight.gap for flight in schedule(rows, 4)] == [10, None, None, None]


def test_the_data_are_336776_departures_in_the_order_of_the_schedule() -> None:
    departures = flights.read_departures(flights.data_folder())

    assert len(departures) == 336_776
    assert departures == sorted(departures, key=lambda one: one.at)
    assert len(flights.read_airlines(flights.data_folder())) == 16


def test_without_the_data_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flights, "PACKAGE", "no_such_package")

    with pytest.raises(DemoUnavailable, match=r"`pip install '\.\[demo\]'` in a checkout of rqttl$"):
        flights.data_folder()


# The day


def test_all_dates_are_played_as_one_day_in_which_each_flight_keeps_its_minute() -> None:
    selected = [Flight(departure(at), 5) for at in (370, 400, DAY + 370, 2 * DAY + 1439)]

    day = plan(selected)

    assert (day.dates, day.first) == (3, 360)
    assert [minute for minute, _ in by_minute(selected)] == [370, 400, 1439]
    assert by_minute(selected)[0][1] == {"UA": [selected[0], selected[2]]}
    assert day.seconds(DAY) == pytest.approx(SHORTEST)
    assert day.minute(day.seconds(400) + 0.001) == 400
    assert clock(400) == "06:40"


def test_the_ttl_is_the_gap_at_the_same_pace_as_the_day() -> None:
    day = plan([Flight(departure(360), 5)])

    assert day.ttl(Flight(departure(360), 1000)) == timedelta(milliseconds=round(1000 * day.minute_ms))
    assert day.ttl(Flight(departure(360), None)) is None
    assert boarding_call(Flight(departure(DAY + 360), 1000), day).id == "UA 1 EWR 1970-01-02 06:00"


# The accounts


def test_accounts_agree_when_every_call_has_one_end() -> None:
    counts = Counts(sent=10, handled=6, expired=3, rejected=1, dead_lettered=4)

    assert disagreements("UA", counts, 10, [{"handled": 2, "rejected": 0}, {"handled": 4, "rejected": 1}]) == []


@pytest.mark.parametrize("name", ENDINGS)
def test_one_call_too_many_anywhere_is_noticed(name: str) -> None:
    counts = Counts(sent=10, handled=6, expired=3, rejected=1, dead_lettered=4) + Counts(**{name: 1})

    assert disagreements("UA", counts, 10, [{"handled": 6, "rejected": 1}]) != []


# Whole runs


@pytest.fixture
def folder() -> Iterator[Path]:
    yield from data_folder()


def lasting(client: redis.Redis) -> list[Any]:
    """Return the keys that Redis does not remove by itself. It removes the hints of deleted queues after a minute."""
    return [key for key in client.scan_iter() if client.ttl(key) == -1]


def until_calls_are_sent(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert any(" sent " in line and " waiting " in line for line in process.stdout), process.communicate()[1]


@pytest.mark.slow
def test_a_run_on_a_named_server_accounts_for_every_call_and_leaves_nothing(
    client: redis.Redis, redis_url: str, folder: Path
) -> None:
    with start(folder, "--url", redis_url, "--json") as process:
        out, printed = process.communicate()

    assert process.returncode == 0, printed
    check_document(json.loads(out))
    assert "It adds up" in printed
    assert "never delivered" in printed
    assert lasting(client) == []
    assert family(folder) == []
    assert not folder.exists()


@pytest.mark.slow
def test_a_run_on_the_embedded_server_accounts_for_every_call_and_leaves_nothing_running(folder: Path) -> None:
    with start(folder, "--json") as process:
        out, printed = process.communicate()

    assert process.returncode == 0, printed
    check_document(json.loads(out))
    assert family(folder) == running(folder) == []
    with rqttl.connect(f"embedded://{folder}", namespace=NAMESPACE) as broker:
        assert broker.queues() == []


@pytest.mark.slow
@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 128 + signal.SIGTERM)])
def test_a_signal_ends_everything_and_deletes_the_queues(
    client: redis.Redis, redis_url: str, folder: Path, number: int, code: int
) -> None:
    with start(folder, "--url", redis_url, *LONG_DAY) as process:
        until_calls_are_sent(process)
        process.send_signal(number)
        process.communicate()

    assert process.returncode == code
    until(lambda: family(folder) == [])  # a child of a worker ends by itself
    assert lasting(client) == []


@pytest.mark.slow
def test_the_death_of_a_child_ends_the_run_with_its_name(client: redis.Redis, redis_url: str, folder: Path) -> None:
    with start(folder, "--url", redis_url, *LONG_DAY) as process:
        until_calls_are_sent(process)
        children = [pid for pid in family(folder) if pid != process.pid]
        os.kill(children[0], signal.SIGKILL)
        _, errors = process.communicate()

    assert process.returncode == 1
    assert "the demo ended early: consumer 1 ended with exit code -9" in errors
    until(lambda: family(folder) == [])
    assert lasting(client) == []


@pytest.mark.slow
def test_children_end_when_the_demo_is_killed(redis_url: str, folder: Path) -> None:
    with start(folder, "--url", redis_url, *LONG_DAY) as process:
        until_calls_are_sent(process)
        process.kill()

    until(lambda: family(folder) == [])


@pytest.mark.slow
def test_a_second_demo_on_the_same_server_is_refused_and_harms_nothing(redis_url: str, folder: Path) -> None:
    with rqttl.connect(redis_url, namespace=NAMESPACE) as broker:
        queue = broker.declare_queue(boarding("UA"))
        queue.enqueue(b"call")
        with queue.consume(prefetch=1) as calls:
            next(calls)
            with start(folder, "--url", redis_url) as process:
                _, errors = process.communicate()

        assert process.returncode == 3
        assert errors.startswith("rqttl: another demo is running on this server")
        stats = queue.stats()
        assert stats.ready + stats.leased == 1
        assert dead_letters("UA") not in broker.queues()
