"""Three nodes of a cluster for the tests of a process."""

from collections.abc import Callable, Iterator

import pytest

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
