"""Writes to a server that restarts, has no memory left, or changes its rules meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

from rqttl import Broker
from spark_connectors.errors import OutOfMemory, SourceError, Unreachable
from tests.servers import Server
from tests.spark.writing import MESSAGES, Job, batch, counts, ids, numbered


def test_a_server_that_is_restarted_meanwhile_gets_all_rows(start_server: Callable[..., Server]) -> None:
    server = start_server(appendonly="yes", appendfsync="always")
    with server.client() as client:
        Broker(client).declare_queue("q")
    job = Job(server.url, MESSAGES, {"queue": "q"})

    def batches() -> Iterator[pa.RecordBatch]:
        yield batch(MESSAGES, numbered(500))
        server.kill()
        server.start()
        yield batch(MESSAGES, numbered(500, first=500))

    report = job.run(batches())

    assert report.counts["stored"] + report.counts["duplicates"] == 1_000
    with server.client() as client:
        assert ids(Broker(client).queue("q")) == [f"m-{i}" for i in range(1_000)]


def test_a_server_that_does_not_come_back_fails_the_task(start_server: Callable[..., Server]) -> None:
    server = start_server()
    with server.client() as client:
        Broker(client).declare_queue("q")
    job = Job(server.url, MESSAGES, {"queue": "q", "connectRetries": "1"})
    server.kill()

    with pytest.raises(Unreachable, match="url: unix://"):
        job.task(numbered(10))


def test_without_memory_a_task_waits_or_fails_and_goes_on_where_it_was(start_server: Callable[..., Server]) -> None:
    server = start_server(maxmemory="8mb")
    with server.client() as client:
        queue = Broker(client).declare_queue("q")
        rows = [(f"m-{i}", b"x" * 10_000) for i in range(1_500)]
        with pytest.raises(OutOfMemory, match="no memory left for messages"):
            Job(server.url, MESSAGES, {"queue": "q", "fullTimeout": "0s"}).task(rows)
        stored = ids(queue)
        assert stored == [f"m-{i}" for i in range(len(stored))]
        assert 0 < len(stored) < 1_500

        threading.Timer(0.5, lambda: client.config_set("maxmemory", 0)).start()
        Job(server.url, MESSAGES, {"queue": "q"}).task(rows)

        assert ids(queue) == [f"m-{i}" for i in range(1_500)]


def test_no_error_shows_the_password(start_server: Callable[..., Server]) -> None:
    server = start_server()
    job = Job(server.url, MESSAGES, {"queue": "q", "password": "canary7Qz4", "connectRetries": "0"})
    with server.client() as client:
        Broker(client).declare_queue("q")
        client.config_set("requirepass", "canary7Qz4")
        assert counts(job.task(numbered(3)))["stored"] == 3
        client.config_set("requirepass", "other")

    with pytest.raises(SourceError) as caught:
        job.task(numbered(3))

    assert str(caught.value).startswith("[RQTTL_AUTHENTICATION]")
    assert "canary7Qz4" not in f"{caught.value!r} {caught.value} {job.options} {job.plan}"


Write = Callable[..., Job]


@pytest.fixture
def write(broker: Broker, redis_url: str) -> Write:
    """Makes jobs that write into the queue `q`."""
    broker.declare_queue("q")
    return lambda **options: Job(redis_url, MESSAGES, {"queue": "q", **options})


@pytest.mark.parametrize("old, new, refused", [(100, 99, ["m-2"]), (99, 100, [])])
@pytest.mark.parametrize("options", [{}, {"idempotency": "off"}])
def test_a_changed_max_message_bytes_acts_on_the_next_batch_of_a_task(
    options: dict[str, str], old: int, new: int, refused: list[str], write: Write, broker: Broker
) -> None:
    queue = broker.queue("q")
    queue.update(max_message_bytes=old)
    large = [("m-1", b"x"), ("m-2", b"x" * 100), ("m-3", b"x")]

    def batches() -> Iterator[pa.RecordBatch]:
        yield batch(MESSAGES, [("m-0", b"x")])
        queue.update(max_message_bytes=new)
        yield batch(MESSAGES, large)

    report = write(**options).run(batches())

    assert ids(queue) == [name for name in ("m-0", "m-1", "m-2", "m-3") if name not in refused]
    assert report.named.get("message_too_large", []) == [repr(name) for name in refused]


def test_a_call_of_which_no_row_fits_any_more_stores_nothing(write: Write, broker: Broker) -> None:
    queue = broker.queue("q")

    def batches() -> Iterator[pa.RecordBatch]:
        yield batch(MESSAGES, [("m-0", b"x")])
        queue.update(max_message_bytes=1)
        yield batch(MESSAGES, [("m-1", b"xx"), ("m-2", b"xx")])

    report = write().run(batches())

    assert ids(queue) == ["m-0"]
    assert counts(report) == {"stored": 1, "duplicates": 0, "refused message_too_large": 2}
