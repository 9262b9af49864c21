"""Celery: late acknowledgement, no results, a prefetch of 128 for each process, no gossip, mingle and heartbeat."""

from __future__ import annotations

import shared
from celery import Celery

app = Celery("with_celery", broker=f"redis+socket://{shared.SOCKET}")
app.conf.update(
    task_acks_late=True,
    task_ignore_result=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1 if shared.SHAPE == "single" else 128,
    broker_connection_retry_on_startup=True,
)


@app.task(name="work")
def work(body: str) -> None:
    shared.handle(body)


def consume(mode: str) -> None:
    pool = ("--pool", "prefork", "--concurrency", "2") if mode == "workers" else ("--pool", "solo")
    quiet = ("--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel", "ERROR")
    shared.become("celery", "-A", "with_celery", "worker", *pool, *quiet)


if __name__ == "__main__":
    shared.run(lambda mode, count: shared.produce(mode, count, work.delay), consume)
