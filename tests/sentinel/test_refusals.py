"""What a replica refuses goes out again, to the server that Sentinel names: for threads and for asyncio."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import rqttl
from rqttl.protocol.contract import pack_command
from tests.aio.conftest import Run
from tests.ports import free_port
from tests.sentinel.stub import StubSentinel
from tests.servers import Server

pytestmark = pytest.mark.once

REPLICA = ("REPLICAOF", "127.0.0.1", "1")  # of a primary that is away


class Primary:
    """A server that Sentinel names. It is the primary again as soon as Sentinel is asked."""

    def __init__(self, start_server: Callable[..., Server]) -> None:
        self.port = free_port()
        self.server = start_server(port=self.port, bind="127.0.0.1")
        self.sentinel = StubSentinel(self.promote)
        self.url = f"redis+sentinel://127.0.0.1:{self.sentinel.port}/main"

    @property
    def asked(self) -> int:
        return len(self.sentinel.asked)

    def demote(self) -> None:
        with self.server.client() as client:
            client.execute_command(*REPLICA)

    def promote(self, service: str) -> int:
        with self.server.client() as client:
            client.replicaof("NO", "ONE")
        return self.port

    def bodies(self) -> list[bytes]:
        with rqttl.connect(self.server.url) as broker:
            return [one.body for name in broker.queues() for one in broker.queue(name).peek(10_000)]


@pytest.fixture
def primary(start_server: Callable[..., Server]) -> Iterator[Primary]:
    primary = Primary(start_server)
    yield primary
    primary.sentinel.end()


MANY = [b"%d" % i for i in range(1000)]


@pytest.mark.parametrize("bodies", [[b"x"], MANY], ids=["one call", "a transaction"])
def test_messages_that_a_replica_refuses_are_stored_once_by_the_server_that_sentinel_names(
    primary: Primary, bodies: list[bytes]
) -> None:
    with rqttl.connect(primary.url) as broker:
        queue = broker.declare_queue("q")
        queue.enqueue_many(bodies)
        queue.purge()
        before = primary.asked
        primary.demote()

        queue.enqueue_many(bodies) if len(bodies) > 1 else queue.enqueue(bodies[0])

        assert primary.asked > before
    assert primary.bodies() == bodies


def test_calls_after_a_cut_are_made_again(run: Run, primary: Primary) -> None:
    async def work() -> None:
        async with rqttl.connect_async(primary.url) as broker:
            queue = await broker.declare_queue("q", duplicate_window="1h")
            client: Any = broker._driver.store.topology.nodes[0]._client
            for passes in range(5):  # the reader sees it in one of them
                for one in client.connection_pool.connection_kwargs["service"].connections.values():
                    one.cut()
                for _ in range(passes):
                    await asyncio.sleep(0)
                await queue.enqueue(b"x", id=f"{passes}")

    run(work())
    assert primary.bodies() == [b"x"] * 5


def test_of_calls_in_one_write_those_behind_the_refused_one_are_stored_once_too(run: Run, primary: Primary) -> None:
    async def work() -> None:
        async with rqttl.connect_async(primary.url) as broker:
            a, b = await broker.declare_queue("a"), await broker.declare_queue("b")
            await asyncio.gather(a.enqueue_many(MANY), b.enqueue(b"y"))
            await asyncio.gather(a.purge(), b.purge())
            before = primary.asked
            shared: Any = broker._driver.store.topology.nodes[0]._shared

            async def demote() -> None:
                await shared.call(pack_command(REPLICA))

            refused = [a.enqueue(b"2"), b.enqueue(b"3"), b.enqueue_many(MANY), a.enqueue(b"4")]
            await asyncio.gather(a.enqueue(b"1"), demote(), *refused)

            assert primary.asked == before + 1

    run(work())
    assert sorted(primary.bodies()) == sorted([b"1", b"2", b"3", b"4", *MANY])
