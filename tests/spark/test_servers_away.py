"""A stream over several servers, some of which go away and come back. Without Spark."""

from __future__ import annotations

import logging
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from spark_connectors.errors import Unreachable
from spark_connectors.stream.draft import BatchDraft
from spark_connectors.stream.offsets import Offset
from spark_connectors.stream.planner import StreamPlanner
from spark_connectors.stream.servers.absence import Absences
from tests.spark.fleets import Fleet, counted, query, send
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("queue_a", "no_pause")


def test_a_lost_server_fails_a_query_by_default(fleet: Fleet) -> None:
    stream = query(fleet)
    send(fleet, "eu", 3)
    stream.drain()
    fleet.servers["us"].kill()

    with pytest.raises(Unreachable, match=r"^\[RQTTL_UNREACHABLE\] server 'us': "):
        stream.plan()


def test_a_skipped_server_keeps_its_position_and_is_read_when_it_is_back(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "spark_connectors")
    stream = query(fleet, onServerLost="skip")
    send(fleet, "eu", 3)
    send(fleet, "us", 2)
    assert len(stream.drain()) == 5
    send(fleet, "us", 4)
    fleet.servers["us"].kill()
    send(fleet, "eu", 1)

    assert counted(stream.drain()) == {("eu", "a"): 1}
    assert stream.reader.reportLatestOffset()["away"] == ["us"]
    assert caplog.text.count("goes on without the server") == 1
    stream.restart()
    send(fleet, "eu", 1)
    assert counted(stream.drain()) == {("eu", "a"): 1}

    fleet.restart("us")
    assert counted(stream.drain()) == {("us", "a"): 4}
    assert "server 'us' is back" in caplog.text
    assert "away" not in stream.reader.reportLatestOffset()
    assert len({row for batch in stream.batches for row in batch}) == 11


def test_a_server_that_refuses_for_now_is_skipped(fleet: Fleet) -> None:
    stream = query(fleet, onServerLost="skip")
    send(fleet, "eu", 3)
    send(fleet, "us", 2)
    fleet.clients["us"].config_set("replica-serve-stale-data", "no")
    fleet.clients["us"].replicaof("127.0.0.1", 1)

    assert counted(stream.drain()) == {("eu", "a"): 3}
    fleet.clients["us"].replicaof("NO", "ONE")
    assert counted(stream.drain()) == {("us", "a"): 2}


def test_a_server_that_goes_away_after_the_plan_fails_the_batch_which_is_read_whole_when_it_is_back(
    fleet: Fleet,
) -> None:
    stream = query(fleet, onServerLost="skip")
    send(fleet, "eu", 3)
    send(fleet, "us", 2)
    end = stream.plan()
    assert end is not None
    partitions = stream.reader.partitions(stream.checkpoint or {}, end)
    fleet.servers["us"].kill()

    with pytest.raises(Unreachable, match="server 'us'"):
        [list(stream.reader.read(partition)) for partition in partitions]
    with pytest.raises(Unreachable, match="server 'us'"):
        stream.read(end)
    fleet.restart("us")
    assert counted(stream.read(end)) == {("eu", "a"): 3, ("us", "a"): 2}


def test_a_batch_without_messages_of_a_server_does_not_need_it(fleet: Fleet) -> None:
    stream = query(fleet, onServerLost="skip")
    send(fleet, "us", 2)
    stream.drain()
    send(fleet, "eu", 3)
    end = stream.plan()
    assert end is not None
    fleet.servers["us"].kill()

    assert counted(stream.read(end)) == {("eu", "a"): 3}


@pytest.mark.parametrize("start, joins", [("earliest", True), ("latest", False)])
def test_a_new_query_needs_one_server_and_with_latest_all_of_them(fleet: Fleet, start: str, joins: bool) -> None:
    send(fleet, "eu", 3)
    send(fleet, "us", 2)
    fleet.servers["us"].kill()
    stream = query(fleet, onServerLost="skip", startingOffsets=start)

    if not joins:
        with pytest.raises(Unreachable, match="with latest all of them"):
            stream.plan()
        return
    assert counted(stream.drain()) == {("eu", "a"): 3}
    fleet.restart("us")
    assert counted(stream.drain()) == {("us", "a"): 2}
    for server in fleet.servers.values():
        server.kill()
    assert stream.step() is None
    with pytest.raises(Unreachable, match="A new query needs one server at least"):
        query(fleet, onServerLost="skip").plan()


def test_available_now_reads_the_servers_that_are_there_at_its_start(fleet: Fleet) -> None:
    stream = query(fleet, onServerLost="skip")
    send(fleet, "eu", 3)
    send(fleet, "us", 2)
    fleet.servers["us"].kill()
    stream.reader.prepareForTriggerAvailableNow()
    fleet.restart("us")
    send(fleet, "eu", 1)

    assert counted(stream.drain()) == {("eu", "a"): 3}
    stream.restart()
    assert counted(stream.drain()) == {("eu", "a"): 1, ("us", "a"): 2}
    for server in fleet.servers.values():
        server.kill()
    with pytest.raises(Unreachable, match="all servers are away: eu, us"):
        stream.reader.prepareForTriggerAvailableNow()


def test_a_server_without_rights_is_an_error_and_is_not_skipped(fleet: Fleet) -> None:
    stream = query(fleet, onServerLost="skip", username="nobody", password="x")

    with pytest.raises(Exception, match=r"^\[RQTTL_AUTHENTICATION\] server 'eu': "):
        stream.plan()


def test_pauses_between_questions_to_a_server_that_is_away_rise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_connectors.stream.servers.absence._FIRST_PAUSE", 0.5)
    now, asked = 0.0, list[float]()
    absences = Absences(skips=True, clock=lambda: now)

    def lost() -> None:
        asked.append(now)
        raise Unreachable("url: away")

    with pytest.raises(Exception, match="away"), absences.guard("us"):
        lost()
    while now < 60:
        absences.is_present("us", lost)
        now += 0.25

    gaps = [later - sooner for sooner, later in pairwise(asked)]
    assert gaps == sorted(gaps)
    assert gaps[0] == 0.5
    assert max(gaps) == 10.0
    assert absences.is_present("eu", lost)
    assert absences.is_present("us", int) == (now >= asked[-1] + 10)


def test_a_look_that_took_long_is_repeated_because_its_first_state_is_old(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr("spark_connectors.stream.servers.planner.time", SimpleNamespace(monotonic=lambda: clock[0]))
    stream = query(fleet)
    send(fleet, "us", 1)
    drafted, original = list[str](), StreamPlanner.draft

    def draft(planner: StreamPlanner, start: Offset, *, required: bool) -> BatchDraft:
        server = planner._options.server
        drafted.append(server)
        if server == "us" and len(drafted) == 2:
            # its retries take eight seconds, in which a message arrives on the other server
            clock[0] += 8
            send(fleet, "eu", 1)
        return original(planner, start, required=required)

    monkeypatch.setattr(StreamPlanner, "draft", draft)

    assert counted(stream.step() or []) == {("eu", "a"): 1, ("us", "a"): 1}
    assert drafted == ["eu", "us"] * 2


def test_idle_servers_are_asked_as_rarely_as_one(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = query(fleet)
    send(fleet, "eu", 1)
    stream.drain()
    planned: dict[str, Any] = {}
    monkeypatch.setattr(stream.reader._pauses, "note", lambda **note: planned.update(note))

    assert stream.step() is None
    assert planned == {"idle": True, "queues": 2}
    until(lambda: stream.step() is None)
