"""Calls that are made again, with and without idempotency: after refusals, lost replies, and for lack of memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
import redis

from rqttl import Broker
from rqttl.flows.steps import Flow, Write, existing
from rqttl.protocol import commands
from spark_connectors.errors import RefusedForNow, Unreachable
from spark_connectors.redis.broker import open_broker
from spark_connectors.write import sender
from spark_connectors.write import task as write_task
from spark_connectors.write.sender import Backpressure, WriteTask
from tests.process.proxy import Proxy
from tests.servers import Server
from tests.spark.test_refused_for_now import make_primary, make_replica, pausing
from tests.spark.writing import MESSAGES, Job, batch, ids, numbered
from tests.waiting import until

pytestmark = pytest.mark.once

IDEMPOTENCY = pytest.mark.parametrize("idempotency", ["required", "off"])


@pytest.fixture
def server(start_server: Callable[..., Server]) -> Server:
    return start_server(replica_serve_stale_data="no", lua_time_limit="1")


@pytest.fixture
def client(server: Server) -> Iterator[redis.Redis]:
    with server.client() as client:
        yield client


def two_batches(between: Callable[[], object]) -> Iterator[pa.RecordBatch]:
    """Rows of two batches. The options of the queue are known from the first, so the next call stores rows."""
    yield batch(MESSAGES, numbered(100))
    between()
    yield batch(MESSAGES, numbered(100, first=100))


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


def lack_replicas(_: Server, client: redis.Redis) -> None:
    client.config_set("min-replicas-to-write", 1)


def follow_nobody(_: Server, client: redis.Redis) -> None:
    make_replica(client)


def follow_with_old_data(_: Server, client: redis.Redis) -> None:
    client.config_set("replica-serve-stale-data", "yes")
    make_replica(client)


REFUSALS: dict[str, tuple[Callable[[Server, redis.Redis], None], Callable[[redis.Redis], object]]] = {
    "BUSY": (keep_busy, lambda client: client.script_kill()),
    "NOREPLICAS": (lack_replicas, lambda client: client.config_set("min-replicas-to-write", 0)),
    "MASTERDOWN": (follow_nobody, make_primary),
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

    report = job.run(two_batches(lambda: begin(server, client)))

    assert pauses.count == 1
    assert (report.counts["stored"], report.counts["duplicates"]) == (200, 0)
    assert ids(queue) == [f"m-{i}" for i in range(200)]


@IDEMPOTENCY
def test_rows_that_stay_refused_are_not_stored(
    idempotency: str, server: Server, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = Broker(client).declare_queue("q")
    job = Job(server.url, MESSAGES, {"queue": "q", "idempotency": idempotency, "connectRetries": "2"})
    pauses = pausing(monkeypatch)

    with pytest.raises(RefusedForNow, match="enqueue with queue 'q' for now, also after 2 retries"):
        job.run(two_batches(lambda: lack_replicas(server, client)))

    assert pauses.count == 2
    assert ids(queue) == [f"m-{i}" for i in range(100)]


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
        job.run(two_batches(lambda: proxy.spoil(*["cut"] * 5)))

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
