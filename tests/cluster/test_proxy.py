"""What is done behind a proxy that refuses scripts with keys of several slots: a cluster of one node, as one server."""

import asyncio
import shlex
from collections.abc import Callable, Iterator

import pytest
from click.testing import CliRunner

import rqttl
from rqttl.cli.program import cli
from tests.cluster_servers import ClusterServers
from tests.servers import Server
from tests.spark.reading import loader
from tests.spark.writing import LETTERS, Job

pytestmark = pytest.mark.once


@pytest.fixture(scope="module")
def node(launch: Callable[..., Server]) -> Iterator[ClusterServers]:
    node = ClusterServers(launch, nodes=1)
    yield node
    node.remove()


def by_threads(url: str) -> None:
    with rqttl.connect(url) as broker:
        queue = broker.declare_queue("s", dead_letter="t")
        queue.enqueue(b"x", id="m")
        delivery = queue.receive()
        assert delivery is not None
        delivery.reject()
        assert broker.queue("t").redrive() == 1


def by_asyncio(url: str) -> None:
    async def work() -> None:
        async with rqttl.connect_async(url) as broker:
            queue = await broker.declare_queue("s", dead_letter="t")
            await queue.enqueue(b"x", id="m")
            delivery = await queue.receive()
            assert delivery is not None
            await delivery.reject()
            assert await broker.queue("t").redrive() == 1

    asyncio.run(work())


def by_commands(url: str) -> None:
    for command in (
        "queue declare s --dead-letter t",
        "send s x --id m",
        "worker s --exec \"sh -c 'exit 65'\" --burst",
        "dead redrive t --yes",
    ):
        result = CliRunner(env={"RQTTL_URL": url}).invoke(cli, shlex.split(command))
        assert result.exit_code == 0, result.output


def by_spark(url: str) -> None:
    with rqttl.connect(url) as broker:
        queue = broker.declare_queue("s", dead_letter="t")
        queue.enqueue(b"x", id="m", ttl=0)
        letters = loader(url)(("queue", "sequence", "source"), queues="t").rows()
        Job(url, LETTERS, {"operation": "redrive"}).task([tuple(letter.values()) for letter in letters])


@pytest.mark.parametrize("work", [by_threads, by_asyncio, by_commands, by_spark])
def test_a_letter_crosses_slots_and_comes_back(work: Callable[[str], None], node: ClusterServers) -> None:
    node.flush()

    work(f"{node.url('redis')}?slotted=true")

    with rqttl.connect(node.url()) as broker:
        assert [message.id for message in broker.queue("s").peek()] == ["m"]
        assert (broker.queue("t").stats().redriven, broker.queue("t").stats().depth) == (1, 0)
