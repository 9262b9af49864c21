"""Refusals for now, lost replies, restarts and lack of memory: what reads and writes do again, and what ends them."""

import os
import threading
import types
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
import redis
from redis.exceptions import ClusterCrossSlotError, MovedError, ResponseError

from rqttl import Broker
from rqttl.flows.steps import Flow, Write, existing
from rqttl.protocol import commands
from spark_connectors.errors import InvalidOption, OutOfMemory, RefusedByRedis, RefusedForNow, Unreachable
from spark_connectors.options.options import Options
from spark_connectors.redis import connect
from spark_connectors.redis.broker import open_broker
from spark_connectors.redis.bulk_reader import BulkReader
from spark_connectors.redis.connect import as_source_error
from spark_connectors.stream.planner import StreamPlanner
from spark_connectors.write import plan, sender
from spark_connectors.write import task as write_task
from spark_connectors.write.sender import Backpressure, WriteTask
from tests.process.proxy import Proxy
from tests.servers import Server
from tests.spark.letters import bury
from tests.spark.reading import loader, numbers
from tests.spark.writing import MESSAGES, Job, batch, ids, in_two_batches, numbered
from tests.waiting import until


class Pauses:
    """Counts the pauses between attempts, and runs a function in the first one."""

    def __init__(self, in_first: Callable[[], object]) -> None:
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


def make_replica(client: redis.Redis) -> None:
    client.execute_command("REPLICAOF", "127.0.0.1", "1")


def make_primary(client: redis.Redis) -> None:
    client.execute_command("REPLICAOF", "NO", "ONE")


@pytest.fixture
def client(server: Server) -> Iterator[redis.Redis]:
    with server.client() as client:
        yield client


@pytest.fixture
def server(start_server: Callable[..., Server]) -> Server:
    return start_server(replica_serve_stale_data="no", lua_time_limit="1")


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


def test_a_lasting_refusal_ends_a_write_at_once_and_names_queue_and_key(
    server: Server, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = Broker(client).declare_queue("q")
    job = Job(server.url, MESSAGES, {"queue": "q"})
    pauses = pausing(monkeypatch)
    queue.enqueue(b"x")
    client.delete("rqttl:{q}:log")
    client.set("rqttl:{q}:log", "no stream")

    with pytest.raises(RefusedByRedis, match=r"RQTTL_REDIS_ERROR\] url: \S+: queue 'q' cannot be read: the key rqttl:"):
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
        # it waits for the end of a failover
        pausing(monkeypatch, lambda: make_primary(client))
        plan.check_target(options, "q")


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


def test_a_node_of_a_cluster_is_an_error_and_not_an_empty_table(node: Server) -> None:
    told = r"^\[RQTTL_INVALID_OPTION\] url: unix://\S+ is a node of a Redis Cluster: use redis\+cluster://"

    for queues in ({"queuePattern": "#"}, {"queues": "a"}):
        planner = StreamPlanner(Options.parse("stream", {"url": node.url, **queues}))
        for read in (partial(loader(node.url), **queues), planner.initial):
            with pytest.raises(InvalidOption, match=told):
                read()
    with pytest.raises(InvalidOption, match=told):
        plan.check_target(Options.parse("write", {"url": node.url, "queue": "a"}), "a")


@pytest.mark.parametrize("refusal", [MovedError("1 127.0.0.1:7001"), ClusterCrossSlotError("keys of several slots")])
def test_a_node_that_sends_clients_elsewhere_is_told_as_a_cluster(refusal: ResponseError) -> None:
    error = as_source_error(refusal, Options.parse("write", {"queue": "q"}), ("enqueue", "with queue 'q'"))

    assert isinstance(error, InvalidOption)


IDEMPOTENCY = pytest.mark.parametrize("idempotency", ["required", "off"])


# ------------------------------------------------------------------------------------------------ refusals for now


def keep_busy(server: Server, client: redis.Redis) -> None:
    """Run a script without an end, until `SCRIPT KILL`."""

    def run() -> None:
        with server.client() as other, pytest.raises(redis.ResponseError, match=r"killed|SCRIPT KILL"):
            other.eval("while true do end", 0)

    def is_busy() -> bool:
        try:
            client.get("key")
        except redis.ResponseError as error:
            return "BUSY" in str(error)
        return False

    threading.Thread(target=run).start()
    until(is_busy)


def follow_with_old_data(_: Server, client: redis.Redis) -> None:
    client.config_set("replica-serve-stale-data", "yes")
    make_replica(client)


REFUSALS: dict[str, tuple[Callable[[Server, redis.Redis], object], Callable[[redis.Redis], object]]] = {
    "BUSY": (keep_busy, lambda client: client.script_kill()),
    "NOREPLICAS": (
        lambda _, client: client.config_set("min-replicas-to-write", 1),
        lambda client: client.config_set("min-replicas-to-write", 0),
    ),
    "MASTERDOWN": (lambda _, client: make_replica(client), make_primary),
    "READONLY": (follow_with_old_data, make_primary),
}


@IDEMPOTENCY
@pytest.mark.parametrize("code", REFUSALS)
def test_rows_that_are_refused_for_now_are_stored_once(
    code: str, idempotency: str, server: Server, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = Broker(client).declare_queue("q")
    job = Job(server.url, MESSAGES, {"queue": "q", "idempotency": idempotency})
    begin, end = REFUSALS[code]
    pauses = pausing(monkeypatch, lambda: end(client))

    report = job.run(in_two_batches(lambda: begin(server, client), 100))

    assert pauses.count == 1
    assert (report.counts["stored"], report.counts["duplicates"]) == (200, 0)
    assert ids(queue) == [f"m-{i}" for i in range(200)]


# ------------------------------------------------------------------------------------------------ lost replies


@pytest.mark.parametrize("idempotency, retries", [("required", 1), ("off", 0)])
def test_a_lost_reply_is_asked_for_again_only_with_idempotency(
    idempotency: str, retries: int, server: Server, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, proxy = Broker(client).declare_queue("q"), Proxy(server.socket)
    texts = {"queue": "q", "idempotency": idempotency, "connectRetries": "1"}
    job = Job(f"redis://127.0.0.1:{proxy.port}", MESSAGES, texts)
    pauses = pausing(monkeypatch)

    def run() -> None:
        # the attempts of the core, too
        job.run(in_two_batches(lambda: proxy.spoil(*["cut"] * 5), 100))

    if retries:
        run()
    else:
        with pytest.raises(Unreachable, match="the connection was lost before the reply to enqueue arrived"):
            run()

    assert pauses.count == retries
    assert ids(queue) == [f"m-{i}" for i in range(200)]
    proxy.stop_listening()


# ------------------------------------------------------------------------------------------------ a part is stored


@IDEMPOTENCY
def test_for_lack_of_memory_only_the_calls_without_a_result_are_made_again(
    idempotency: str, start_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start_server(maxmemory="8mb")
    with server.client() as client:
        # calls on a queue with limits go one by one
        queue = Broker(client).declare_queue("q", max_length=100_000)
        waits: list[int] = []

        def free(_: float) -> None:
            waits.append(len(ids(queue)))
            client.config_set("maxmemory", 0)

        monkeypatch.setattr(write_task, "Backpressure", partial(Backpressure, sleep=free))
        # many small calls at once
        monkeypatch.setattr(sender, "_CALL_ROWS", 13)
        monkeypatch.setattr(sender, "_CALLS_AT_ONCE", 64)
        rows = [(f"m-{i}", b"x" * 10_000) for i in range(1_500)]
        texts = {"queue": "q", "idempotency": idempotency}

        report = Job(server.url, MESSAGES, texts).task(rows)

        (stored,) = waits
        assert 0 < stored < 13 * 64, "the refused call was not within the first round"
        assert ids(queue) == [f"m-{i}" for i in range(1_500)]
        assert (report.counts["stored"], report.counts["duplicates"]) == (1_500, 0)
        assert report.queues["q"]["stored"] == 1_500


def test_without_memory_and_patience_a_task_fails_and_the_next_goes_on_where_it_was(
    start_server: Callable[..., Server],
) -> None:
    server = start_server(maxmemory="8mb")
    with server.client() as client:
        queue = Broker(client).declare_queue("q")
        rows = [(f"m-{i}", b"x" * 10_000) for i in range(1_500)]
        with pytest.raises(OutOfMemory, match="no memory left for messages"):
            Job(server.url, MESSAGES, {"queue": "q", "fullTimeout": "0s"}).task(rows)
        stored = ids(queue)
        assert stored == [f"m-{i}" for i in range(len(stored))]
        assert 0 < len(stored) < 1_500

        client.config_set("maxmemory", 0)
        Job(server.url, MESSAGES, {"queue": "q"}).task(rows)

        assert ids(queue) == [f"m-{i}" for i in range(1_500)]


def test_a_server_that_is_restarted_meanwhile_gets_all_rows(start_server: Callable[..., Server]) -> None:
    server = start_server(appendonly="yes", appendfsync="always")
    with server.client() as client:
        Broker(client).declare_queue("q")
    job = Job(server.url, MESSAGES, {"queue": "q"})

    def restart() -> None:
        server.kill()
        server.start()

    report = job.run(in_two_batches(restart, 500))

    assert report.counts["stored"] + report.counts["duplicates"] == 1_000
    with server.client() as client:
        assert ids(Broker(client).queue("q")) == [f"m-{i}" for i in range(1_000)]


@pytest.mark.parametrize("old, new, stored", [(100, 99, [0, 1, 3]), (99, 100, [0, 1, 2, 3]), (100, 1, [0])])
@pytest.mark.parametrize("idempotency", ["required", "off"])
def test_a_changed_max_message_bytes_acts_on_the_next_batch_of_a_task(
    idempotency: str, old: int, new: int, stored: list[int], broker: Broker, redis_url: str
) -> None:
    queue = broker.declare_queue("q", max_message_bytes=old)

    def batches() -> Iterator[pa.RecordBatch]:
        yield batch(MESSAGES, [("m-0", b"x")])
        queue.update(max_message_bytes=new)
        yield batch(MESSAGES, [("m-1", b"xx"), ("m-2", b"x" * 100), ("m-3", b"xx")])

    report = Job(redis_url, MESSAGES, {"queue": "q", "idempotency": idempotency}).run(batches())

    assert ids(queue) == [f"m-{i}" for i in stored]
    refused = [f"'m-{i}'" for i in range(4) if i not in stored]
    assert report.named.get("message_too_large", []) == refused


def storing(task: WriteTask) -> Flow[None]:
    """Carry out a script, and meet a refusal for now after it."""
    yield from existing("q", commands.touch(task.driver.keyspace, "q"))
    yield Write([("EVAL", "return redis.error_reply('READONLY for now')", 0)])


@pytest.mark.parametrize("repeatable, attempts", [(True, 3), (False, 1)])
def test_a_flow_that_has_stored_something_begins_again_only_if_it_is_repeatable(
    repeatable: bool, attempts: int, server: Server, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    Broker(client).declare_queue("q")
    job = Job(server.url, MESSAGES, {"queue": "q", "connectRetries": "2"})
    pauses = pausing(monkeypatch)
    begun: list[Any] = []

    with open_broker(job.options) as broker:
        task = WriteTask(job.options, job.plan, broker, Backpressure(job.options))

        def flow() -> Flow[None]:
            begun.append(1)
            return storing(task)

        with pytest.raises(RefusedForNow) as caught:
            task.store(flow, ["q"], repeatable=repeatable)

    assert (len(begun), pauses.count) == (attempts, attempts - 1)
    assert str(caught.value).startswith("[RQTTL_REFUSED_FOR_NOW]")
    assert ("without idempotency it is not made again" in str(caught.value)) is not repeatable
