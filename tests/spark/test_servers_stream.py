"""A stream over several servers: its offsets, and servers that join and leave. Without Spark."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from spark_connectors.errors import DataLoss, InvalidOffset, InvalidOption, NoSuchQueue, Unreachable
from tests.servers import Server
from tests.spark.fleets import Fleet, Query, counted, query, send

pytestmark = pytest.mark.usefixtures("queue_a", "no_pause")


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


def test_messages_of_committed_batches_leave_each_server(fleet: Fleet) -> None:
    stream = query(fleet, afterCommit="purge")
    send(fleet, "eu", 3)
    send(fleet, "us", 2)
    stream.drain()

    assert [broker.queue("a").stats().purged for broker in fleet.brokers.values()] == [3, 2]
