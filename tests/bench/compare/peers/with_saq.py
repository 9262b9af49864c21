"""SAQ: 100 jobs at a time in each process; no result is kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import redis.asyncio
import shared
from saq import Job
from saq.queue.redis import RedisQueue

queue = RedisQueue(
    redis.asyncio.Redis.from_url(shared.URL, max_connections=1000), name="q"
)  # its own URLs know no unix socket


async def work(_: Mapping[str, Any], *, body: str) -> None:
    shared.handle(body)


settings = {"queue": queue, "functions": [work], "concurrency": 1 if shared.SHAPE == "single" else 100}


async def produce(mode: str, count: int) -> None:
    await queue.connect()

    async def single(body: str) -> None:
        await queue.enqueue(Job("work", kwargs={"body": body}, ttl=-1))

    await shared.produce_async(mode, count, single)


def consume(mode: str) -> None:
    shared.become("saq", "with_saq.settings", "--quiet", *(("--workers", "2") if mode == "workers" else ()))


if __name__ == "__main__":
    shared.run(produce, consume)
