"""A node of Redis Cluster: reads and writes say that rqttl does not run there."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from redis.exceptions import ClusterCrossSlotError, MovedError, ResponseError

from spark_connectors.errors import ClusterNotSupported
from spark_connectors.options.options import Options
from spark_connectors.redis.connect import as_source_error
from spark_connectors.stream.planner import StreamPlanner
from spark_connectors.write import plan
from tests.servers import Server
from tests.spark.reading import loader


@pytest.fixture
def node(start_server: Callable[..., Server]) -> Server:
    """A node that owns all slots."""
    # Redis without a port for clients still has one for other nodes: always 10000, so each process has its own address.
    pid = os.getpid()
    address = f"127.{1 + (pid >> 16)}.{pid >> 8 & 255}.{pid & 255}"
    server = start_server(cluster_enabled="yes", cluster_require_full_coverage="no", bind=address)
    with server.client() as client:
        client.execute_command("CLUSTER", "ADDSLOTS", *range(16_384))
        while client.execute_command("CLUSTER INFO")["cluster_state"] != "ok":
            pass  # the node needs a moment to notice its slots
    return server


def test_a_pattern_on_a_node_of_a_cluster_is_an_error_and_not_an_empty_table(node: Server) -> None:
    with pytest.raises(ClusterNotSupported, match=r"^\[RQTTL_CLUSTER\] url: unix://\S+ is a node of Redis Cluster"):
        loader(node.url)(queuePattern="#/dead")


def test_a_stream_of_a_pattern_on_a_node_of_a_cluster_is_an_error(node: Server) -> None:
    planner = StreamPlanner(Options.parse("stream", {"url": node.url, "queuePattern": "#"}))

    with pytest.raises(ClusterNotSupported):
        planner.initial()


def test_a_named_queue_on_a_node_of_a_cluster_is_told_as_a_cluster(node: Server) -> None:
    planner = StreamPlanner(Options.parse("stream", {"url": node.url, "queues": "a"}))

    for read_or_write in (
        lambda: loader(node.url)(queues="a"),
        planner.initial,
        lambda: plan.check_target(Options.parse("write", {"url": node.url, "queue": "a"}), "a"),
    ):
        with pytest.raises(ClusterNotSupported):
            read_or_write()


def test_a_server_without_queues_is_an_empty_table(start_server: Callable[..., Server]) -> None:
    assert loader(start_server().url)(queuePattern="#/dead").rows() == []


@pytest.mark.parametrize("refusal", [MovedError("1 127.0.0.1:7001"), ClusterCrossSlotError("keys of several slots")])
def test_a_node_that_sends_clients_elsewhere_is_told_as_a_cluster(refusal: ResponseError) -> None:
    error = as_source_error(refusal, Options.parse("write", {"queue": "q"}), ("enqueue", "with queue 'q'"))

    assert isinstance(error, ClusterNotSupported)
