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


def main() -> None:
    role, mode, count = shared.arguments()
    if role == "produce":
        shared.produce(mode, count, work.send)
        return
    threads = "1" if mode == "single" else "8"
    if mode == "single":
        os.environ["dramatiq_queue_prefetch"] = "1"  # noqa: SIM112 - the name of Dramatiq
    shared.become(
        "dramatiq",
        "with_dramatiq",
        "--processes",
        "2" if mode == "workers" else "1",
        "--threads",
        threads,
        "--skip-logging",
    )


if __name__ == "__main__":
    main()
