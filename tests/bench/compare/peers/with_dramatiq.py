"""Dramatiq: its broker for Redis, at least once by default."""

from __future__ import annotations

import os

import dramatiq
import shared
from dramatiq.brokers.redis import RedisBroker

dramatiq.set_broker(RedisBroker(url=shared.URL))


@dramatiq.actor(queue_name="q")
def work(body: str) -> None:
    shared.handle(body)


def consume(mode: str) -> None:
    if mode == "single":
        os.environ["dramatiq_queue_prefetch"] = "1"  # noqa: SIM112 - the name of Dramatiq
    sizes = ("--processes", "2" if mode == "workers" else "1", "--threads", "1" if mode == "single" else "8")
    shared.become("dramatiq", "with_dramatiq", *sizes, "--skip-logging")


if __name__ == "__main__":
    shared.run(lambda mode, count: shared.produce(mode, count, work.send), consume)
