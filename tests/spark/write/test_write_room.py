"""Back-pressure: queues are filled up to a depth and no further, and a task waits or fails."""

from __future__ import annotations

import threading
from functools import partial
from itertools import count

import pytest

from rqttl import Broker
from spark_connectors.errors import QueueIsFull
from spark_connectors.write import task as write_task
from spark_connectors.write.sender import Backpressure
from tests.spark.letters import bury
from tests.spark.writing import LETTERS, MESSAGES, Job, counts, ids, numbered


@pytest.mark.parametrize("depth", [1, 7, 1_000])
def test_a_queue_is_filled_up_to_the_depth_and_no_further(depth: int, broker: Broker, redis_url: str) -> None:
    queue = broker.declare_queue("q")
    job = Job(redis_url, MESSAGES, {"queue": "q", "maxQueueDepth": str(depth), "fullTimeout": "0s"})

    with pytest.raises(QueueIsFull, match=rf"\[RQTTL_QUEUE_FULL\] maxQueueDepth: q: no room below {depth} ready"):
        job.task(numbered(2_000))

    assert depth * 7 / 8 - 1 <= len(ids(queue)) <= depth
    assert ids(queue) == [f"m-{i}" for i in range(len(ids(queue)))]


def test_a_task_waits_for_consumers_and_writes_all_in_order(broker: Broker, redis_url: str) -> None:
    queue = broker.declare_queue("q")
    job = Job(redis_url, MESSAGES, {"queue": "q", "maxQueueDepth": "50"})
    taken: list[str] = []
    depths: list[int] = []

    def consume() -> None:
        while len(taken) < 1_000:
            depths.append(queue.stats().ready)
            some = queue.receive_many(40, wait="10s")
            taken.extend(one.id for one in some)
            queue.ack_many(some)

    consumer = threading.Thread(target=consume)
    consumer.start()
    report = job.task(numbered(1_000))
    consumer.join(60)

    assert counts(report) == {"stored": 1_000, "duplicates": 0}
    assert taken == [f"m-{i}" for i in range(1_000)]
    assert max(depths) <= 50


def test_patience_ends_where_nobody_consumes(broker: Broker, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    broker.declare_queue("q")
    waits: list[float] = []
    times = count(0.0, 3.0)
    never = partial(Backpressure, clock=lambda: next(times), sleep=waits.append)
    monkeypatch.setattr(write_task, "Backpressure", never)
    job = Job(redis_url, MESSAGES, {"queue": "q", "maxQueueDepth": "5", "fullTimeout": "10s"})

    with pytest.raises(QueueIsFull, match=r"\(fullTimeout=10s\)"):
        job.task(numbered(6))
    assert len(waits) > 1


def test_a_full_queue_does_not_hold_up_the_others(broker: Broker, redis_url: str) -> None:
    for name in ("a", "b", "c"):
        broker.declare_queue(name)
    broker.queue("a").enqueue_many([b"x"] * 100)
    job = Job(redis_url, f"queue string, {MESSAGES}", {"maxQueueDepth": "100", "fullTimeout": "0s"})

    with pytest.raises(QueueIsFull, match="maxQueueDepth: a: no room"):
        job.task([("abc"[i % 3], f"m-{i}", b"x") for i in range(300)])

    assert [len(ids(broker.queue(name))) for name in "abc"] == [100, 100, 100]


def test_letters_wait_too(broker: Broker, redis_url: str) -> None:
    letters = bury(broker, 100)
    chosen = [(one.queue, one.sequence, "orders") for one in letters.peek(100)]
    job = Job(redis_url, LETTERS, {"operation": "redrive", "maxQueueDepth": "40", "fullTimeout": "0s"})

    with pytest.raises(QueueIsFull, match="maxQueueDepth: orders: no room"):
        job.task(chosen)

    assert (len(ids(broker.queue("orders"))), len(ids(letters))) == (40, 60)
