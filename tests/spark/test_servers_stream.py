"""A stream over several servers: its offsets, and servers that join, leave, go away and come back. Without Spark."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest

from rqttl import Message
from spark_connectors.errors import DataLoss, InvalidOffset, InvalidOption, NoSuchQueue, Unreachable
from spark_connectors.stream.servers.absence import Absences
from tests.servers import Server
from tests.spark.fleets import DURABLE, Fleet, Query, counted, fleet_of
from tests.waiting import until


@pytest.fixture
def fleet(start_server: Callable[..., Server]) -> Iterator[Fleet]:
    with fleet_of(lambda: start_server(**DURABLE), "eu", "us") as fleet:
        for broker in fleet.brokers.values():
            broker.declare_queue("a")
        yield fleet


def send(fleet: Fleet, server: str, count: int, queue: str = "a") -> None:
    fleet.brokers[server].queue(queue).enqueue_many([Message(b"x")] * count)


def query(fleet: Fleet, *names: str, **options: object) -> Query:
    return Query(fleet.url_of(*(names or fleet.servers)), **{"queues": "a", **options})


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is away is asked again at once."""
    monkeypatch.setattr("spark_connectors.stream.servers.absence._FIRST_PAUSE", 0.0)


# Offsets


def test_the_offset_has_that_of_each_server_and_not_the_order_of_the_list(fleet: Fleet) -> None:
    stream = query(fleet)
    send(fleet, "eu", 3)
    send(fleet, "us", 2)

    assert counted(stream.drain()) == {("eu", "a"): 3, ("us", "a"): 2}
    assert stream.checkpoint is not None
    assert list(stream.checkpoint) == ["servers", "v"]
    assert list(stream.checkpoint["servers"]) == ["eu", "us"]
    stream.restart(url=fleet.url_of("us", "eu"))
    assert stream.step() is None
    send(fleet, "us", 1)
    assert counted(stream.drain()) == {("us", "a"): 1}


def test_a_single_url_keeps_its_offset(fleet: Fleet) -> None:
    stream = Query(fleet.servers["eu"].url, queues="a")
    send(fleet, "eu", 3)

    rows = stream.drain()

    assert stream.checkpoint is not None
    assert set(stream.checkpoint) == {"began", "birth", "queues", "v"}
    assert {server for server, _, _ in rows} == {f"{fleet.servers['eu'].socket}/0"}


def test_a_query_of_one_server_goes_on_with_several(fleet: Fleet) -> None:
    stream = Query(fleet.servers["us"].url, queues="a")
    send(fleet, "us", 3)
    assert len(stream.drain()) == 3
    send(fleet, "eu", 4)
    send(fleet, "us", 1)

    stream.restart(url=fleet.url_of("eu", "us"))

    assert sorted(counted(stream.repeat())) == [("us", "a")]
    assert counted(stream.drain()) == {("eu", "a"): 4, ("us", "a"): 1}
    stream.restart(url=fleet.servers["us"].url)
    with pytest.raises(InvalidOption, match=r"has the data that the checkpoint knows as server 'us': keep this name"):
        stream.step()
    stream.restart(url=fleet.url_of("us"))
    send(fleet, "us", 2)
    assert counted(stream.drain()) == {("us", "a"): 2}


def test_an_offset_of_another_single_server_is_refused(fleet: Fleet, start_server: Callable[..., Server]) -> None:
    stream = Query(fleet.servers["us"].url, queues="a")
    send(fleet, "us", 3)
    stream.drain()

    stream.restart(url=fleet.url_of("eu"))

    with pytest.raises(
        InvalidOffset, match=r"it is the one of a single server, with the data .* None of the servers eu"
    ):
        stream.step()


def test_a_server_that_joins_starts_like_a_new_one_and_one_that_leaves_keeps_its_position(fleet: Fleet) -> None:
    stream = query(fleet, "eu")
    send(fleet, "eu", 3)
    send(fleet, "us", 4)
    assert counted(stream.drain()) == {("eu", "a"): 3}

    stream.restart(url=fleet.url)
    assert counted(stream.drain()) == {("us", "a"): 4}

    stream.restart(url=fleet.url_of("us"))
    send(fleet, "eu", 2)
    send(fleet, "us", 1)
    assert counted(stream.drain()) == {("us", "a"): 1}

    stream.restart(url=fleet.url)
    assert counted(stream.drain()) == {("eu", "a"): 2}


def test_the_start_of_a_server_that_joins_with_latest_is_noted_before_its_first_message(fleet: Fleet) -> None:
    stream = query(fleet, "eu", startingOffsets="latest")
    send(fleet, "eu", 3)
    send(fleet, "us", 4)
    stream.drain()

    stream.restart(url=fleet.url)
    assert stream.step() == []
    send(fleet, "us", 2)
    stream.restart()

    assert counted(stream.drain()) == {("us", "a"): 2}


def test_a_server_under_another_name_is_refused_and_would_be_read_twice(fleet: Fleet) -> None:
    stream = query(fleet)
    send(fleet, "eu", 3)
    stream.drain()

    stream.restart(url=f"{fleet.url_of('us')},europe={fleet.servers['eu'].url}")

    with pytest.raises(InvalidOption, match="server 'europe' has the data that the checkpoint knows as server 'eu'"):
        stream.step()


def test_a_batch_of_a_server_that_is_no_longer_in_the_list_is_a_loss(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    stream = query(fleet)
    send(fleet, "eu", 3)
    send(fleet, "us", 2)
    stream.drain()

    stream.restart(url=fleet.url_of("us"))
    with pytest.raises(DataLoss, match="the batch has messages of server 'eu', which is not in the list: add it"):
        stream.repeat()
    stream.restart(failOnDataLoss="false")
    assert counted(stream.repeat()) == {("us", "a"): 2}
    assert "messages of server 'eu'" in caplog.text


def test_a_damaged_offset_is_refused(fleet: Fleet) -> None:
    for damaged in ({"servers": [], "v": 2}, {"servers": {"eu": {"v": 1}}, "v": 2}, {"servers": {}, "v": 9}):
        stream = query(fleet)
        stream.checkpoint = damaged
        with pytest.raises(InvalidOffset):
            stream.step()


def test_no_secret_is_in_an_offset_a_partition_or_an_error(fleet: Fleet) -> None:
    password = "canary7Qz4WvT9"
    for client in fleet.clients.values():
        client.execute_command("ACL", "SETUSER", "reader", "on", f">{password}", "~*", "&*", "+@all")
    send(fleet, "eu", 3)
    send(fleet, "us", 2)
    urls = [f"{server.url}?username=reader&password={password}" for server in fleet.servers.values()]
    stream = Query(",".join(urls), queues="a")

    end = stream.plan()
    assert end is not None
    partitions = stream.reader.partitions(stream.checkpoint or {}, end)
    assert len(stream.read(end)) == 5
    fleet.servers["us"].kill()
    with pytest.raises(Unreachable) as caught:
        stream.reader.partitions(stream.checkpoint or {}, end)

    shown = f"{json.dumps(end)} {partitions!r} {caught.value!r} {stream.reader._options!r}"
    assert password not in shown
    # a new password changes no name of a server
    assert all(f"{server.socket}/0" in end["servers"] for server in fleet.servers.values())


# Queues of several servers


def test_a_named_queue_has_to_be_on_one_server_at_least(fleet: Fleet) -> None:
    fleet.brokers["us"].declare_queue("only-us")
    send(fleet, "us", 2, "only-us")

    stream = query(fleet, queues="only-us")
    assert counted(stream.drain()) == {("us", "only-us"): 2}
    fleet.brokers["eu"].declare_queue("only-us")
    send(fleet, "eu", 1, "only-us")
    assert counted(stream.drain()) == {("eu", "only-us"): 1}
    with pytest.raises(NoSuchQueue, match="queues: there is no queue 'b'"):
        query(fleet, queues="a,b").plan()


def test_losses_and_forgotten_data_are_judged_by_server(fleet: Fleet, caplog: pytest.LogCaptureFixture) -> None:
    stream = query(fleet)
    send(fleet, "eu", 3)
    send(fleet, "us", 2)
    stream.drain()
    fleet.clients["us"].flushall()
    fleet.brokers["us"].declare_queue("a")
    send(fleet, "us", 7)
    send(fleet, "eu", 1)

    with pytest.raises(DataLoss, match=r"^\[RQTTL_DATA_LOSS\] server 'us': Redis has forgotten the data"):
        stream.plan()
    stream.restart(failOnDataLoss="false")

    assert counted(stream.drain()) == {("eu", "a"): 1, ("us", "a"): 7}
    assert "server 'us': Redis has forgotten" in caplog.text


def test_what_a_committed_batch_has_read_leaves_each_server(fleet: Fleet) -> None:
    stream = query(fleet, afterCommit="purge")
    send(fleet, "eu", 3)
    send(fleet, "us", 2)
    stream.drain()

    assert [broker.queue("a").stats().purged for broker in fleet.brokers.values()] == [3, 2]


# Servers that are away


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


def test_idle_servers_are_asked_as_rarely_as_one(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = query(fleet)
    send(fleet, "eu", 1)
    stream.drain()
    planned: dict[str, Any] = {}
    monkeypatch.setattr(stream.reader._pauses, "note", lambda **note: planned.update(note))

    assert stream.step() is None
    assert planned == {"idle": True, "queues": 2}
    until(lambda: stream.step() is None)
