"""Three nodes of a cluster for the tests of a process."""

from collections.abc import Callable, Iterator

import pytest

import rqttl
from tests.cluster_servers import ClusterServers
from tests.servers import Server


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
