"""Three nodes of a cluster for the tests of a process."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import rqttl
from rqttl.aio import sentinel as aio
from rqttl.store.addresses import read_url
from rqttl.store.cluster import open_client
from rqttl.store.driver import RedisDriver
from tests.cluster_servers import ClusterServers
from tests.contract.portal import PortalBroker, _loop
from tests.servers import Server

INTERFACES = ["threads", "asyncio"]


def connect_by(interface: str, url: str) -> Any:
    """A broker of threads, or the sync face of one of asyncio."""
    if interface == "threads":
        return rqttl.connect(url)
    seeds: Any = aio.open_client(read_url(url))
    inner = _loop().call(lambda: rqttl.AsyncBroker(seeds))
    return PortalBroker(seeds, inner=inner, driver=RedisDriver(open_client(read_url(url)), "rqttl"))


@pytest.fixture(scope="session")
def nodes(launch: Callable[..., Server]) -> Iterator[ClusterServers]:
    """Three nodes without replicas."""
    nodes = ClusterServers(launch)
    yield nodes
    nodes.remove()


@pytest.fixture
def cluster(nodes: ClusterServers) -> ClusterServers:
    """Three nodes without replicas, empty."""
    nodes.flush()
    return nodes


@pytest.fixture
def broker(cluster: ClusterServers) -> Iterator[rqttl.Broker]:
    """A broker on this cluster."""
    with rqttl.connect(cluster.url()) as broker:
        yield broker
