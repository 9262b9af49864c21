"""Refusals that end by themselves: reads and writes repeat the call. Certain ones, as of a cluster, end it at once."""

from __future__ import annotations

import os
import types
from collections.abc import Callable

import pytest
import redis
from redis.exceptions import ClusterCrossSlotError, MovedError, ResponseError

from rqttl import Broker
from spark_connectors.errors import ClusterNotSupported, RefusedByRedis, RefusedForNow
from spark_connectors.options.options import Options
from spark_connectors.redis import connect
from spark_connectors.redis.bulk_reader import BulkReader
from spark_connectors.redis.connect import as_source_error
from spark_connectors.stream.planner import StreamPlanner
from spark_connectors.write import plan
from tests.servers import Server
from tests.spark.letters import bury
from tests.spark.reading import loader, numbers
from tests.spark.writing import MESSAGES, Job, numbered


class Pauses:
    """Counts the pauses between attempts, and runs a function in the first one."""

    def __init__(self, in_first: Callable[[], object] = lambda: None) -> None:
        self.count = 0
        self._in_first = in_first

    def __call__(self, _: float) -> None:
        self.count += 1
        if self.count == 1:
            self._in_first()


def pausing(monkeypatch: pytest.MonkeyPatch, in_first: Callable[[], object] = lambda: None) -> Pauses:
    pauses = Pauses(in_first)
    monkeypatch.setattr(connect, "time", types.SimpleNamespace(sleep=pauses))
    return pauses


@pytest.fixture
def server(start_server: Callable[..., Server]) -> Server:
    return start_server(replica_serve_stale_data="no", lua_time_limit="1")


@pytest.fixture
def client(server: Server) -> redis.Redis:
    return server.client()


def make_replica(client: redis.Redis) -> None:
    client.execute_command("REPLICAOF", "127.0.0.1", "1")


def make_primary(client: redis.Redis) -> None:
    client.execute_command("REPLICAOF", "NO", "ONE")


def test_a_read_goes_on_after_a_failover_has_ended(
    server: Server, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    bury(Broker(client), 100)
    job = loader(server.url)(queues="orders/dead")
    pauses = pausing(monkeypatch, lambda: make_primary(client))
    make_replica(client)

    assert job.ids() == numbers(100)
    assert pauses.count == 1


def test_a_read_that_stays_refused_names_the_refusal_and_the_command(
    server: Server, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses = pausing(monkeypatch)
    make_replica(client)
    options = Options.parse("batch", {"url": server.url, "queues": "a", "connectRetries": "3"})

    with BulkReader(options) as reader, pytest.raises(RefusedForNow) as caught:
        reader.execute("XLEN", "rqttl:{a}:log")

    assert str(caught.value).startswith("[RQTTL_REFUSED_FOR_NOW] connectRetries: unix://")
    assert "refuses XLEN rqttl:{a}:log for now, also after 3 retries: " in str(caught.value)
    assert pauses.count == 3


@pytest.mark.parametrize("code", ["BUSY", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "NOREPLICAS", "READONLY", "TRYAGAIN"])
def test_each_temporary_refusal_of_the_core_is_repeated(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses = pausing(monkeypatch)
    answers = [redis.ResponseError(f"{code} for now"), "answer"]

    def call() -> str:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return str(answer)

    assert connect.with_retries(Options.parse("batch", {"queues": "a"}), call) == "answer"
    assert pauses.count == 1


def test_a_write_goes_on_after_a_failover_has_ended(
    server: Server, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    Broker(client).declare_queue("q")
    client.config_set("min-replicas-to-write", 1)
    pauses = pausing(monkeypatch, lambda: client.config_set("min-replicas-to-write", 0))

    for idempotency in ("required", "off"):
        job = Job(server.url, MESSAGES, {"queue": "q", "idempotency": idempotency})
        report = job.task(numbered(50, first=50 * (idempotency == "off")))
        assert report.counts["stored"] == 50

    assert pauses.count == 1


def test_a_lasting_refusal_ends_a_write_at_once_and_names_operation_and_queue(
    server: Server, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = Broker(client).declare_queue("q")
    job = Job(server.url, MESSAGES, {"queue": "q"})
    pauses = pausing(monkeypatch)
    queue.enqueue(b"x")
    client.delete("rqttl:{q}:log")
    client.set("rqttl:{q}:log", "no stream")

    with pytest.raises(RefusedByRedis, match=r"refused enqueue with queue 'q': .*WRONGTYPE"):
        job.task(numbered(5))

    assert pauses.count == 0


def test_a_write_to_a_replica_names_its_role_after_one_retry(
    start_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start_server()
    with server.client() as client:
        Broker(client).declare_queue("q")
        make_replica(client)
    pauses = pausing(monkeypatch)
    options = Options.parse("write", {"url": server.url, "queue": "q"})

    with pytest.raises(RefusedForNow, match=r"is a replica.*takes no writes: give the address of its primary"):
        plan.check_target(options, "q")

    assert pauses.count == 1


def test_a_write_waits_for_the_end_of_a_failover_before_it_begins(
    server: Server, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    Broker(client).declare_queue("q")
    pausing(monkeypatch, lambda: make_primary(client))
    make_replica(client)

    plan.check_target(Options.parse("write", {"url": server.url, "queue": "q"}), "q")


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
