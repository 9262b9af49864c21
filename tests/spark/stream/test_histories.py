"""Replication histories: after a failover that lost messages, nothing unread is purged, and a proven loss is told."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import pytest

from rqttl import Broker
from spark_connectors.errors import DataLoss
from spark_connectors.stream.histories import History, doubted
from spark_connectors.stream.offsets import Offset
from spark_connectors.stream.planner import StreamPlanner
from tests.contract.clocked import Clocked
from tests.ports import free_port
from tests.servers import Server
from tests.spark.following import again, planners, rows
from tests.spark.letters import bury
from tests.waiting import until

LOG = "rqttl:{orders}/dead:log"
pytestmark = [pytest.mark.slow, pytest.mark.once]

A, B, NONE = "a" * 40, "b" * 40, "0" * 40


@pytest.mark.parametrize(
    "seen, present, expected",
    [
        ({A: 7}, {1: History(A, 7, NONE, -2)}, ""),
        ({A: 7}, {1: History(A, 6, NONE, -2)}, "1"),
        ({A: 7}, {1: History(B, 9, A, 7)}, ""),
        ({A: 7}, {1: History(B, 9, A, 6)}, "1"),
        ({A: 7}, {1: History(B, 9, NONE, -2)}, "1"),
        # another node has been added: its queues may come from anywhere
        ({A: 7}, {1: History(A, 8, NONE, -2), 2: History(B, 8, NONE, -2)}, "2"),
        # nobody continues one of them, and its slots may have moved
        ({A: 7, B: 1}, {1: History(A, 8, NONE, -2), 2: History("c", 8, B, 0)}, "12"),
        ({A: 7, B: 1}, {1: History("c", 8, A, 7), 2: History("d", 8, B, 1)}, ""),
    ],
)
def test_a_node_is_doubted_unless_it_continues_what_was_seen(
    seen: dict[str, int], present: dict[int, History], expected: str
) -> None:
    assert "".join(map(str, sorted(doubted(seen, present)))) == expected  # type: ignore[type-var,arg-type]  # numbers
    offset = Offset({}, histories=seen)
    assert again(offset) == offset


Fail = Callable[..., tuple[Server, Offset]]
Query = Callable[..., StreamPlanner]


@pytest.fixture
def query() -> Iterator[Query]:
    """Makes a query that purges, as a new process has it."""
    with ExitStack() as stack:

        def make(server: Server, **options: str) -> StreamPlanner:
            planner = planners(server.url)(**{"queues": "orders/dead", "afterCommit": "purge", **options})
            return stack.enter_context(closing(planner))

        yield make


@pytest.fixture
def fail(start_server: Callable[..., Server], query: Query) -> Fail:
    """A query reads five letters. The replica has two of them when its link is cut, and is promoted; a second later
    came the others. Returns the replica, and the offset of the query.
    """

    def fail(rights: str = "+@all") -> tuple[Server, Offset]:
        ports = [free_port(), free_port()]
        primary, replica = (start_server(port=port, bind="127.0.0.1", repl_diskless_sync_delay=0) for port in ports)
        with primary.client() as client, replica.client() as promoted, Clocked(client) as broker:
            promoted.replicaof("127.0.0.1", str(ports[0]))
            bury(broker, 2)
            until(lambda: promoted.xlen(LOG) == 2)
            promoted.replicaof("127.0.0.1", str(free_port()))
            broker.advance(1_000)
            bury(broker, 3, first=2)
            for one in (client, promoted):
                one.execute_command("ACL", "SETUSER", "default", rights)
            planner = query(primary)
            offset = again(planner.latest(planner.initial(), None))
            primary.kill()
            promoted.replicaof("NO", "ONE")
        return replica, offset

    return fail


def ids(server: Server) -> list[str]:
    with server.client() as client, Broker(client) as broker:
        return [letter.id for letter in broker.queue("orders/dead").peek(100)]


def come(server: Server, behind: int, beyond: int) -> None:
    """Bury letters at the new primary, whose clock is behind: some before the position of the query, and some after."""
    with server.client() as client, Clocked(client) as broker:
        broker.advance(500)
        bury(broker, behind, first=10)
        broker.advance(1_000)
        bury(broker, beyond, first=20)


def test_nothing_unread_is_purged_after_a_failover_that_lost_letters(
    fail: Fail, query: Query, caplog: pytest.LogCaptureFixture
) -> None:
    server, offset = fail()
    come(server, behind=3, beyond=1)
    present = ids(server)
    planner = query(server)

    end = again(planner.latest(offset, None))
    assert (rows_of(server, planner, offset, end), ids(server)) == ({"orders/dead": 1}, present)
    [told] = [record.getMessage() for record in caplog.records]
    assert "So 5 messages up to it stay, and some may be unread" in told
    command = told.partition("To remove them: ")[2].split()
    assert command[:4] == ["rqttl", "dead", "purge", "orders/dead"]
    planner.latest(end, None)
    # what the query has read since then is purged as ever
    assert ids(server) == present[:5] == ["m-0", "m-1", "m-10", "m-11", "m-12"]
    subprocess.run([sys.executable, "-m", *command, "--yes", "--url", server.url], check=True, capture_output=True)
    assert ids(server) == []


@pytest.mark.parametrize("beyond", [0, 2])
def test_after_a_restart_that_lost_nothing_the_purge_goes_on(
    beyond: int, start_server: Callable[..., Server], query: Query, caplog: pytest.LogCaptureFixture
) -> None:
    server = start_server(dbfilename="dump.rdb")
    with server.client() as client, Broker(client) as broker:
        bury(broker, 5)
        planner = query(server)
        offset = again(planner.latest(planner.initial(), None))
        client.save()
        server.kill()
        server.start()
        bury(broker, beyond, first=5)

        end = query(server).latest(offset, None)

        assert ids(server) == [f"m-{i}" for i in range(5, 5 + beyond)]
        query(server).latest(again(end), None)
        assert ids(server) == []
    assert caplog.text == ""


def test_a_loss_that_new_letters_hide_from_the_counters_is_told(fail: Fail, query: Query) -> None:
    server, offset = fail()
    come(server, behind=0, beyond=4)

    with pytest.raises(DataLoss, match=r"it has more messages after .* than have arrived since"):
        query(server).latest(offset, None)
    planner = query(server, failOnDataLoss="false")
    end = again(planner.latest(offset, None))
    assert rows_of(server, planner, offset, end) == {"orders/dead": 6}
    planner.latest(end, None)
    assert ids(server) == []


def test_without_the_right_to_info_only_counters_count(
    fail: Fail, query: Query, caplog: pytest.LogCaptureFixture
) -> None:
    server, offset = fail("-info")
    come(server, behind=3, beyond=1)
    planner = query(server)

    for _ in range(2):
        assert (offset.histories, planner.latest(offset, None).histories) == ({}, {})
    assert ids(server) == ["m-20"]  # three were purged unread
    assert caplog.text.count("so only counters show a failover that lost messages") == 2  # once for each query


def rows_of(server: Server, planner: StreamPlanner, start: Offset, end: Offset) -> dict[str, int]:
    with server.client() as client:
        return rows(client, planner, start, end)
