"""RQ: `SimpleWorker`, which runs jobs without a fork; no result is kept."""

from __future__ import annotations

from collections.abc import Sequence

import redis
import shared
from rq import Queue, SimpleWorker

connection = redis.Redis.from_url(shared.URL, socket_timeout=None)
queue = Queue("q", connection=connection)


def batch(bodies: Sequence[str]) -> None:
    queue.enqueue_many([Queue.prepare_data(shared.handle, (body,), result_ttl=0) for body in bodies])


def consume(mode: str) -> None:
    if mode == "workers":
        shared.become("rq.cli", "worker-pool", "q", "-n", "2", "-w", "rq.SimpleWorker", "-u", shared.URL, "-q")
    SimpleWorker([queue], connection=connection).work(logging_level="WARNING")


def produce(mode: str, count: int) -> None:
    shared.produce(mode, count, lambda body: queue.enqueue(shared.handle, body, result_ttl=0), batch)


if __name__ == "__main__":
    shared.run(produce, consume)
