"""Limits of a trigger over several servers, with the messages and the clocks of real ones. Without Spark."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rqttl import Message
from rqttl.protocol.keys import LOG, Keyspace
from tests.spark.fleets import THREE, Fleet, Query, Row, counted
from tests.spark.letters import bury

pytestmark = pytest.mark.once


@pytest.fixture
def fleet(fleet_of_three: Fleet) -> Fleet:
    return fleet_of_three


def arrive(fleet: Fleet, server: str, queue: str, times: list[int], size: int = 10) -> None:
    """Have a message arrive at each of these times, in ms."""
    broker = fleet.brokers[server]
    into = broker.declare_queue(queue)
    for ms in sorted(times):
        broker.go_to(ms)
        into.enqueue(Message(b"x" * size))


def times(rows: list[Row]) -> list[int]:
    return [int(sequence[:13]) for _, _, sequence in rows]


def assert_in_order(batches: list[list[Row]]) -> None:
    """No batch has a message older than one of a batch before it."""
    for before, after in pairwise(batches):
        if before and after:
            assert max(times(before)) <= min(times(after))


def test_a_limit_takes_the_oldest_messages_of_all_servers(fleet: Fleet) -> None:
    arrive(fleet, "eu", "dense", list(range(0, 3_000, 10)))
    arrive(fleet, "us", "sparse", list(range(0, 3_000, 1_000)))
    arrive(fleet, "us", "dense", list(range(1_500, 1_600)))
    stream = Query(fleet.url, queuePattern="#", maxEntriesPerTrigger=50)

    rows = stream.drain()

    assert len(rows) == len(set(rows)) == 403
    assert_in_order(stream.batches)
    assert [len(batch) for batch in stream.batches] == [50] * 8 + [3]
    # the first 0.49 s
    assert counted(stream.batches[0]) == {("eu", "dense"): 49, ("us", "sparse"): 1}


messages = st.dictionaries(
    st.tuples(st.sampled_from(THREE), st.sampled_from("ab")),
    st.lists(st.integers(0, 40) | st.integers(0, 10**6), min_size=1, max_size=25),
    min_size=1,
)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(queues=messages, limit=st.integers(1, 40), in_bytes=st.booleans(), later=messages, restarts=st.booleans())
def test_no_batch_has_a_message_older_than_one_of_a_batch_before_it_on_any_server(
    fleet: Fleet,
    queues: dict[tuple[str, str], list[int]],
    limit: int,
    in_bytes: bool,
    later: dict[tuple[str, str], list[int]],
    restarts: bool,
) -> None:
    fleet.empty()
    for (server, queue), of_queue in queues.items():
        arrive(fleet, server, queue, of_queue)
    # the rest arrives after all of these, while the query runs
    late = {key: [10**6 + 1 + ms for ms in of_queue] for key, of_queue in later.items()}
    name, amount = ("maxBytesPerTrigger", limit * 10) if in_bytes else ("maxEntriesPerTrigger", limit)
    stream = Query(fleet.url, queuePattern="#", **{name: amount}, fetchEntries=7)

    stream.step()
    for (server, queue), of_queue in late.items():
        arrive(fleet, server, queue, of_queue)
    while stream.step() is not None:
        if restarts:
            assert sorted(stream.repeat()) == sorted(stream.batches[-1])
            stream.restart()

    rows = [row for batch in stream.batches for row in batch]
    expected = sum(map(len, queues.values())) + sum(map(len, late.values()))
    assert len(rows) == len(set(rows)) == expected
    assert all(batch for batch in stream.batches)
    # a stored message has a header beside its body, so a limit in bytes admits fewer of them
    assert max(map(len, stream.batches)) <= limit
    assert_in_order(stream.batches)


def test_a_limit_takes_dead_letters_of_all_servers_by_their_marks_and_reads_few_of_them_on_the_driver(
    fleet: Fleet,
) -> None:
    for i, (server, count) in enumerate([("eu", 6_000), ("us", 4_000), ("zz", 3_000)]):
        broker = fleet.brokers[server]
        broker.go_to(7 * i)
        for first in range(0, count, 500):
            bury(broker, 500, first=first)
            broker.advance(20 + i)
    stream = Query(fleet.url, queuePattern="#/dead", maxEntriesPerTrigger=5_000)
    stream.checkpoint = stream.reader.initialOffset()
    for client in fleet.clients.values():
        client.config_resetstat()

    planned = stream.plan()

    sent = sum(client.info("stats")["total_net_output_bytes"] for client in fleet.clients.values())
    rows = stream.drain()
    assert planned is not None
    assert len(rows) == len(set(rows)) == 13_000
    assert [len(batch) for batch in stream.batches] == [5_000, 5_000, 3_000]
    assert_in_order(stream.batches)
    eu: Any = fleet.clients["eu"]
    [(_, letter)] = eu.xrange(Keyspace().key("orders/dead", LOG), count=1)
    size = sum(len(name) + len(value) for name, value in letter.items())
    assert sent < 4_000 * size  # of 13,000; each server looks through up to one step


def test_an_equal_share_is_one_of_all_queues_of_all_servers_and_starves_none(fleet: Fleet) -> None:
    arrive(fleet, "eu", "a", list(range(100)))
    arrive(fleet, "eu", "b", list(range(5)))
    arrive(fleet, "us", "a", list(range(100)))
    stream = Query(fleet.url, queuePattern="#", maxEntriesPerTrigger=30, shareLimit="equal")

    stream.step()

    assert counted(stream.batches[0]) == {("eu", "a"): 13, ("eu", "b"): 5, ("us", "a"): 12}
    rows = stream.batches[0] + stream.drain()
    assert counted(rows) == {("eu", "a"): 100, ("eu", "b"): 5, ("us", "a"): 100}
    assert len(set(rows)) == 205
    assert max(map(len, stream.batches)) == 30


def test_an_equal_share_serves_the_queues_of_all_servers_in_turn_also_after_a_restart(fleet: Fleet) -> None:
    for server in THREE:
        arrive(fleet, server, "a", list(range(4)))
    stream = Query(fleet.url, queuePattern="#", maxEntriesPerTrigger=1, shareLimit="equal")
    served = []

    for _ in range(6):
        rows = stream.step()
        assert rows is not None
        served += [server for server, _, _ in rows]
        stream.restart()

    assert served == [*THREE, *THREE]


def test_the_least_number_of_messages_is_one_of_all_servers(fleet: Fleet) -> None:
    arrive(fleet, "eu", "a", list(range(3)))
    arrive(fleet, "us", "a", list(range(3)))
    stream = Query(fleet.url, queues="a", minEntriesPerTrigger=8)

    assert stream.step() is None
    arrive(fleet, "zz", "a", list(range(2)))
    assert len(stream.step() or ()) == 8


def test_a_limited_query_reads_each_message_once_on_the_driver_and_once_in_a_task(fleet: Fleet) -> None:
    for i, server in enumerate(THREE):
        arrive(fleet, server, "a", list(range(i, 3_000, 3)))
    stream = Query(fleet.url, queues="a", maxEntriesPerTrigger=100, fetchEntries=200)
    read = []
    for client in fleet.clients.values():
        client.config_resetstat()

    while (end := stream.plan()) is not None:
        read.append(end)
        stream.checkpoint = end

    assert len(read) == 30
    sent = sum(client.info("stats")["total_net_output_bytes"] for client in fleet.clients.values())
    assert sent <= 3_000 * 60 * 2
