"""Limits of bytes over several servers, each with marks of arrivals of its own. Without Spark."""

from __future__ import annotations

from itertools import chain, pairwise
from typing import Any

import pytest

from rqttl.protocol.keys import LOG, Keyspace
from tests.spark.fleets import THREE, Fleet, Query, Row, counted
from tests.spark.letters import bury, numbered, uneven

pytestmark = pytest.mark.once

DEAD = "orders/dead"
#: About 6,000 letters: more than lie between two marks of all servers.
LIMIT = 5_800_000
SHARES = ("time", "equal")
#: The letters of each server, and the ms between its bursts of 500.
LETTERS = {"eu": (9_000, 20), "us": (6_000, 31), "zz": (4_500, 47)}


@pytest.fixture
def fleet(fleet_of_three: Fleet) -> Fleet:
    return fleet_of_three


def bury_on(fleet: Fleet, server: str, count: int, every: int, start: int = 0) -> None:
    """Have letters of different sizes die in bursts of 500, one each `every` ms from `start` on."""
    broker = fleet.brokers[server]
    for i, first in enumerate(range(0, count, 500)):
        broker.go_to(start + i * every)
        bury(broker, min(500, count - first), first=first, make=uneven)


def fill(fleet: Fleet) -> None:
    for i, (server, (count, every)) in enumerate(LETTERS.items()):
        bury_on(fleet, server, count, every, start=7 * i)


def marks(fleet: Fleet, server: str) -> int:
    """Return the number of marks on a server."""
    anything: Any = fleet.clients[server]
    return int(anything.zcard(Keyspace().key(DEAD, "arrivals")))


def drop_marks(fleet: Fleet) -> None:
    for client in fleet.clients.values():
        client.delete(Keyspace().key(DEAD, "arrivals"))


def sizes(fleet: Fleet, queue: str = DEAD) -> dict[Row, int]:
    """Return the size of each message in a queue of all servers."""
    found: dict[Row, int] = {}
    for server, client in fleet.clients.items():
        anything: Any = client
        for entry, pair in anything.xrange(Keyspace().key(queue, LOG)):
            found[server, queue, entry.decode()] = sum(len(name) + len(value) for name, value in pair.items())
    return found


def batches(fleet: Fleet, *, restarted: bool = False, limit: int = LIMIT, **options: object) -> list[list[Row]]:
    """Return the rows of each batch, sorted, as the tasks of a new query have them."""
    stream = Query(fleet.url, queuePattern="#/dead", maxBytesPerTrigger=limit, **options)
    while stream.step() is not None:
        if restarted:
            stream.restart()
    return [sorted(batch) for batch in stream.batches]


def assert_in_order(found: list[list[Row]]) -> None:
    """No batch has a message older than one of a batch before it, on any server."""
    for before, after in pairwise(batch for batch in found if batch):
        assert max(sequence for *_, sequence in before) <= min(sequence for *_, sequence in after)


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("share", SHARES)
def test_batches_are_those_that_a_read_of_everything_would_make(share: str, restarted: bool, fleet: Fleet) -> None:
    fill(fleet)
    assert all(marks(fleet, server) >= 2 for server in THREE)
    size = sizes(fleet)

    found = batches(fleet, restarted=restarted, shareLimit=share)

    drop_marks(fleet)
    assert found == batches(fleet, shareLimit=share)
    assert sorted(chain.from_iterable(found)) == sorted(size)
    costs = [sum(size[row] for row in batch) for batch in found]
    assert max(costs) <= LIMIT
    # no letter is larger than 2,000 bytes, so every batch but the last one is full
    assert min(costs[:-1]) > LIMIT - 3 * 2_000
    assert len(costs) == 3
    if share == "time":
        assert_in_order(found)


@pytest.mark.parametrize("share", SHARES)
def test_the_driver_leaps_over_the_marks_of_every_server(share: str, fleet: Fleet) -> None:
    for i, server in enumerate(THREE):
        bury_on(fleet, server, 8_000, 20, start=7 * i)
    size = sizes(fleet)
    limit = sum(size.values()) * 3 // 4
    stream = Query(fleet.url, queues=DEAD, maxBytesPerTrigger=limit, shareLimit=share)
    stream.checkpoint = stream.reader.initialOffset()
    for client in fleet.clients.values():
        client.config_resetstat()

    assert stream.plan() is not None

    sent = {server: client.info("stats")["total_net_output_bytes"] for server, client in fleet.clients.items()}
    mean = sum(size.values()) / len(size)
    # of 6,000 letters in the batch a server gives those before its first mark, and those after the last one it reaches
    assert max(sent.values()) <= 2 * 1_300 * mean
    rows = counted(stream.step() or [])
    assert rows.total() > 17_500
    assert min(rows.values()) > 5_500


@pytest.mark.parametrize("share", SHARES)
def test_letters_that_have_left_one_server_make_batches_smaller_and_never_larger(share: str, fleet: Fleet) -> None:
    fill(fleet)
    queue = fleet.brokers["us"].queue(DEAD)
    letters = [letter.sequence for letter in queue.peek(6_000)]
    queue.redrive_many([(sequence, "orders") for sequence in letters[1_500:1_700]])
    queue.purge_many(letters[3_000:3_100])
    size = sizes(fleet)

    found = batches(fleet, shareLimit=share)

    costs = [sum(size[row] for row in batch) for batch in found]
    assert max(costs) <= LIMIT
    assert sorted(chain.from_iterable(found)) == sorted(size)
    # the letters that have left still count, once
    assert len(found) <= sum(costs) // LIMIT + 2
    if share == "time":
        assert_in_order(found)


@pytest.mark.parametrize("share", SHARES)
def test_servers_without_marks_and_queues_of_senders_are_read_in_the_same_order_of_time(
    share: str, fleet: Fleet
) -> None:
    bury_on(fleet, "eu", 9_000, 20)
    bury_on(fleet, "us", 700, 90, start=3)
    fleet.clients["us"].delete(Keyspace().key(DEAD, "arrivals"))
    for at in range(11, 350, 60):
        fleet.brokers["zz"].go_to(at)
        fleet.brokers["zz"].declare_queue(DEAD).enqueue_many([numbered(i) for i in range(500)])
    assert [marks(fleet, server) > 0 for server in THREE] == [True, False, False]
    size = sizes(fleet)

    found = batches(fleet, shareLimit=share)

    drop_marks(fleet)
    assert found == batches(fleet, shareLimit=share)
    assert sorted(chain.from_iterable(found)) == sorted(size)
    assert max(sum(size[row] for row in batch) for batch in found) <= LIMIT
    if share == "time":
        assert_in_order(found)
