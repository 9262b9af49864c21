"""BullMQ for Python: 100 jobs at a time; finished jobs are removed. Two processes are two workers."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import Any

import shared
from bullmq import Queue, Worker

OPTIONS = {"removeOnComplete": True}


async def work(job: Any, _: str) -> None:
    shared.handle(job.data["body"])


async def produce(mode: str, count: int) -> None:
    queue = Queue("q", {"connection": shared.URL})

    async def batch(bodies: Sequence[str]) -> None:
        await queue.addBulk([{"name": "work", "data": {"body": body}, "opts": OPTIONS} for body in bodies])

    await shared.produce_async(mode, count, lambda body: queue.add("work", {"body": body}, OPTIONS), batch)
    await queue.close()


async def consume(mode: str) -> None:
    if mode == "workers":
        os.fork()
    Worker("q", work, {"connection": shared.URL, "concurrency": 1 if mode == "single" else 100})
    await asyncio.Event().wait()


if __name__ == "__main__":
    shared.run(produce, consume)
