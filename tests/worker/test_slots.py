"""A worker, and consumers of threads and of asyncio, that wait for queues in several slots of a Redis Cluster."""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from itertools import product

import pytest

import rqttl
from rqttl import Broker, Worker
from rqttl.store.driver import driver_of
from rqttl.worker import fetcher
from tests.cluster_servers import ClusterServers
from tests.servers import Server
from tests.waiting import PATIENCE, Gate, until
from tests.worker.processes import running

pytestmark = pytest.mark.slow

QUEUES = [f"q{number}" for number in range(12)]
MOVING = "rqttl:{q0}:meta"
COMMANDS = "cmdstat_evalsha", "cmdstat_blpop", "cmdstat_llen"
#: Waits for messages of these queues of a broker, and calls a function with each body.
Waiting = Callable[[Broker, Callable[[bytes], object]], AbstractContextManager[None]]


@pytest.fixture(scope="module")
def nodes(launch: Callable[..., Server]) -> Iterator[ClusterServers]:
    servers = ClusterServers(launch, appendonly="yes", appendfsync="always")
    yield servers
    servers.remove()


@pytest.fixture
def broker(nodes: ClusterServers, monkeypatch: pytest.MonkeyPatch) -> Iterator[Broker]:
    """A broker with the empty queues `QUEUES`. A hint that is lost is not made up for within the patience of a test."""
    monkeypatch.setattr("rqttl.store.slot_waits.LOOK", 0.05)
    monkeypatch.setattr("rqttl.aio.store.LOOK", 0.05)
    monkeypatch.setattr(fetcher, "PROOF", 1_000_000)
    nodes.flush()
    with rqttl.connect(nodes.url()) as broker:
        for name in QUEUES:
            broker.declare_queue(name)
        yield broker


def worker(broker: Broker, handle: Callable[[bytes], object]) -> AbstractContextManager[object]:
    return running(Worker(broker, QUEUES, call=handle, processes=0, threads=1))


def consumer(broker: Broker, handle: Callable[[bytes], object]) -> AbstractContextManager[None]:
    deliveries = broker.consume(QUEUES)

    def run() -> None:
        with deliveries:
            for delivery in deliveries:
                with delivery:
                    handle(delivery.body)

    return in_thread(run, deliveries.stop)


def async_consumer(broker: Broker, handle: Callable[[bytes], object]) -> AbstractContextManager[None]:
    own = rqttl.connect_async(str(driver_of(broker).store.address))
    deliveries = own.consume(QUEUES)

    async def run() -> None:
        async with own, deliveries:
            async for delivery in deliveries:
                async with delivery:
                    handle(delivery.body)

    return in_thread(lambda: asyncio.run(run()), deliveries.stop)


@contextmanager
def in_thread(run: Callable[[], object], stop: Callable[[], object]) -> Iterator[None]:
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(run)
        try:
            yield
        finally:
            stop()
            done.result(PATIENCE)


ALL = pytest.mark.parametrize("waiting", [worker, consumer, async_consumer])


def blocked(nodes: ClusterServers) -> int:
    """The number of pending calls."""
    with nodes.client() as client:
        return int(client.info("clients")["blocked_clients"])


def counts(nodes: ClusterServers) -> list[object]:
    """How often Redis has run the commands of a wait."""
    with nodes.client() as client:
        stats = client.info("commandstats")
    return [stats[name]["calls"] for name in COMMANDS if name in stats]


@ALL
@pytest.mark.parametrize("most", [64, 4], ids=["a call for each slot", "a call for some slots"])
def test_each_message_wakes_who_waits(
    nodes: ClusterServers, broker: Broker, waiting: Waiting, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr("rqttl.store.slot_waits.MOST", most)
    monkeypatch.setattr("rqttl.aio.store.MOST", most)
    handled: list[bytes] = []

    with waiting(broker, handled.append), nodes.client() as client:
        until(lambda: blocked(nodes) == min(most, len(QUEUES)))
        for number in range(36):
            # a message without a lifetime reaches a consumer that waits, or nobody
            until(lambda: all(client.zcard(f"rqttl:{{{name}}}:waiters") for name in QUEUES))
            broker.queue(QUEUES[number % 12]).enqueue(str(number).encode(), ttl=0 if number % 3 == 0 else None)
            until(lambda number=number: str(number).encode() in handled)  # type: ignore[misc]  # the default binds

    assert handled == [str(number).encode() for number in range(36)]


def test_workers_are_seen_whatever_nodes_their_queues_and_urls_name(nodes: ClusterServers, broker: Broker) -> None:
    queues = {nodes.owner(f"{{{name}}}"): name for name in QUEUES}
    with ExitStack() as stack:
        for port, name in product(nodes.ports, queues.values()):
            other = stack.enter_context(rqttl.connect(f"redis+cluster://127.0.0.1:{port}"))
            stack.enter_context(running(Worker(other, [name], call=print, processes=0)))
        until(lambda: [worker.role for worker in broker.workers()] == ["worker"] * 9)
        assert [len(broker.queue(name).consumers()) for name in queues.values()] == [3, 3, 3]
    assert broker.workers() == []


def test_a_worker_that_waits_costs_the_servers_nothing(
    nodes: ClusterServers, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetcher, "TURN", 20)
    turns: list[object] = []
    broker.events.subscribe(turns.append, rqttl.WaitEvent)

    with worker(broker, print):
        until(lambda: blocked(nodes) == len(QUEUES))
        before = counts(nodes)
        turns.clear()
        until(lambda: len(turns) > 20 * len(QUEUES))

        assert counts(nodes) == before
        assert blocked(nodes) == len(QUEUES)


@pytest.mark.parametrize("patient", [0, 1_000_000], ids=["which withdraws", "which passes hints on"])
def test_an_idle_worker_gets_the_hints_of_a_full_one(
    nodes: ClusterServers, broker: Broker, monkeypatch: pytest.MonkeyPatch, patient: int
) -> None:
    monkeypatch.setattr(fetcher, "PATIENT_WHILE_FULL", patient)
    gate, handled = Gate(), list[bytes]()

    with worker(broker, gate), rqttl.connect(nodes.url()) as other:
        until(lambda: blocked(nodes) == len(QUEUES))
        broker.queue("q0").enqueue(b"held")
        gate.reached()
        with worker(other, handled.append):
            until(lambda: blocked(nodes) == len(QUEUES) + (11 if patient else 0))
            for name in QUEUES:
                broker.queue(name).enqueue(name.encode())
            until(lambda: len(handled) == len(QUEUES))
            gate.open()

    assert sorted(handled) == sorted(name.encode() for name in QUEUES)


@ALL
def test_a_queue_whose_slot_moves_goes_on(nodes: ClusterServers, broker: Broker, waiting: Waiting) -> None:
    handled: list[bytes] = []
    homes = nodes.elsewhere(MOVING), nodes.owner(MOVING)

    with waiting(broker, handled.append), rqttl.connect(nodes.url()) as sender:
        until(lambda: blocked(nodes) == len(QUEUES))
        for number, there in enumerate(homes):
            nodes.move(MOVING, there)
            until(lambda: blocked(nodes) == len(QUEUES))
            for name in QUEUES:
                sender.queue(name).enqueue(f"{name} {number}".encode())
            until(lambda number=number: len(handled) == (number + 1) * len(QUEUES))  # type: ignore[misc]  # as above


def test_a_queue_does_not_need_the_node_that_its_slot_has_left(
    nodes: ClusterServers, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rqttl.consuming.prefetch.RenewalSchedule.is_renewal_due", lambda *_: True)
    queue, source, target = broker.queue("q0"), nodes.owner(MOVING), nodes.elsewhere(MOVING)
    gate, renewals = Gate(), list[rqttl.RenewalEvent]()
    broker.events.subscribe(renewals.append, rqttl.RenewalEvent)

    def renews(times: int) -> None:
        renewals.clear()
        until(lambda: len(renewals) >= times)

    with worker(broker, gate):
        until(lambda: blocked(nodes) == len(QUEUES))
        queue.enqueue(b"held")
        gate.reached()
        nodes.move(MOVING, target)
        renews(2)  # the second one has begun after the move, so the worker knows of it
        try:
            with source.hanging():
                renews(2)
                gate.open()
                until(lambda: queue.stats().acked == 1)
        finally:
            gate.open()
            until(nodes.agrees)
            nodes.move(MOVING, source)

    assert queue.stats().redelivered == 0


@pytest.mark.parametrize("how", [Server.down, Server.hanging])
def test_while_a_node_is_away_the_queues_of_the_others_wake_the_worker(
    nodes: ClusterServers, broker: Broker, how: Callable[[Server], AbstractContextManager[None]]
) -> None:
    handled: list[bytes] = []
    victim = nodes.owner("rqttl:{q0}:meta")
    there = [name for name in QUEUES if nodes.owner(f"rqttl:{{{name}}}:meta") is not victim]

    with worker(broker, handled.append):
        until(lambda: blocked(nodes) == len(QUEUES))
        with how(victim):
            for number in range(3):
                for name in there:
                    broker.queue(name).enqueue(f"{name} {number}".encode())
                    until(lambda last=f"{name} {number}": last.encode() in handled)  # type: ignore[misc]  # as above
        until(nodes.agrees)
        broker.queue("q0").enqueue(b"back")
        until(lambda: b"back" in handled)

    assert len(handled) == 3 * len(there) + 1
