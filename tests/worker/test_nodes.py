"""A worker on two nodes, one of which is away: it goes on with the queues of the other one."""

from collections.abc import Callable, Iterator

import pytest

from rqttl import Broker, RenewalEvent, Worker
from rqttl.store.driver import driver_of
from rqttl.worker.health import judgement
from tests.drivers import broker_on
from tests.servers import Server
from tests.two_nodes import TwoNodeDriver
from tests.waiting import Gate, until
from tests.worker.processes import running

pytestmark = pytest.mark.slow


@pytest.fixture
def servers(start_server: Callable[..., Server]) -> list[Server]:
    return [start_server(appendonly="yes", appendfsync="always") for _ in range(2)]


@pytest.fixture
def broker(servers: list[Server]) -> Iterator[Broker]:
    """A broker of both nodes, with the queue `a` on the first one and `b` on the second."""
    with broker_on(TwoNodeDriver(servers[0], servers[1])) as broker:
        for name in "ab":
            broker.declare_queue(name, lease="1h")
        yield broker


@pytest.mark.parametrize("victim", [0, 1], ids=["the node of the registry", "the other node"])
def test_while_a_node_is_away_the_worker_handles_the_messages_of_the_other_one(
    broker: Broker, servers: list[Server], victim: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    gone, there = broker.queue("ab"[victim]), broker.queue("ba"[victim])
    gate = Gate()
    gone.enqueue("early")
    worker = Worker(broker, [gone.name, there.name], call=gate, processes=0, threads=2)
    with running(worker):
        gate.reached()
        servers[victim].kill()
        gate.open()
        until(worker.away)  # the ack of the first message waits
        for number in range(1, 4):
            there.enqueue("x")
            until(lambda number=number: there.stats().acked == number)  # type: ignore[misc]  # the default binds
        address = driver_of(broker).store.topology.nodes[victim].address.place
        assert judgement(worker.obstacle(), worker.away())[:2] == (200, f"ok; away: {address}\n".encode())
        assert any(line.startswith(f"{address} does not answer: ") for line in caplog.messages)
        servers[victim].start()
        until(lambda: gone.stats().acked == 1)
        gone.enqueue("late")
        until(lambda: gone.stats().acked == 2)

    assert (gone.stats().redelivered, there.stats().redelivered) == (0, 0)
    assert worker.counters.reconnects == 1
    assert (worker.away(), f"{address} answers again" in caplog.messages) == ([], True)


def test_a_worker_that_ends_when_nothing_is_left_waits_for_the_messages_of_a_node_that_is_away(
    broker: Broker, servers: list[Server]
) -> None:
    gate = Gate()
    for name in "ab":
        broker.queue(name).enqueue("x")
    worker = Worker(broker, ["a", "b"], call=gate, processes=0, threads=1, burst=True)
    with running(worker):
        gate.reached()
        servers[1].kill()
        gate.open()
        until(lambda: broker.queue("a").stats().acked == 1 and worker.away())
        servers[1].start()
        until(lambda: broker.queue("b").stats().acked == 1)


def test_while_a_node_hangs_the_leases_at_the_other_one_are_renewed(broker: Broker, servers: list[Server]) -> None:
    """A call to the node that hangs ends when the test has failed."""
    first, second = broker.queue("a"), broker.queue("b")
    second.update(lease="3s")
    gate, renewals = Gate(), list[RenewalEvent]()
    broker.events.subscribe(renewals.append, RenewalEvent)
    for queue in (first, second):
        queue.enqueue("x")
    with running(Worker(broker, ["a", "b"], call=gate, processes=0, threads=2)):
        gate.reached(2)
        with servers[0].hanging():
            renewals.clear()
            until(lambda: len([renewal for renewal in renewals if renewal.queue == "b"]) == 4)
            gate.open()
            until(lambda: second.stats().acked == 1)
        until(lambda: first.stats().acked == 1)

    assert (first.stats().redelivered, second.stats().redelivered) == (0, 0)
