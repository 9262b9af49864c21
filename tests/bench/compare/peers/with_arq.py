"""arq: 100 jobs at a time, a look at the queue every 10 ms; no result is kept. Two processes are two workers."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import shared
from arq import create_pool, run_worker
from arq.connections import RedisSettings

SETTINGS = RedisSettings(unix_socket_path=shared.SOCKET)


async def work(_: Any, body: str) -> None:
    shared.handle(body)


class WorkerSettings:
    functions = (work,)
    redis_settings = SETTINGS
    keep_result = 0
    poll_delay = 0.01
    max_jobs = 1 if shared.SHAPE == "single" else 100
    handle_signals = False


async def produce(mode: str, count: int) -> None:
    pool = await create_pool(SETTINGS)
    await shared.produce_async(mode, count, lambda body: pool.enqueue_job("work", body))


def consume(mode: str) -> None:
    if mode == "workers":
        os.fork()
    asyncio.set_event_loop(asyncio.new_event_loop())
    run_worker(WorkerSettings)


if __name__ == "__main__":
    shared.run(produce, consume)
