"""`operation=enqueue` while another client changes the largest body that the queue takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

from rqttl import Broker
from tests.spark.writing import MESSAGES, Job, batch, counts, ids

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
