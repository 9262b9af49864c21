"""redis-py alone: a stream with a consumer group; a list for the wake-up."""

from __future__ import annotations

import asyncio
from typing import Any

import redis
import redis.asyncio
import shared


def consume(client: redis.Redis, shape: str) -> None:
    if shape == "wake":
        while True:
            answer: Any = client.blpop(["list"], timeout=0)
            shared.handle(answer[1].decode())
    count = 1 if shape == "single" else 100
    while True:
        found: Any = client.xreadgroup("g", "c", {"raw": ">"}, count=count, block=0)
        ids = [id for id, _ in found[0][1]]
        pipeline = client.pipeline(transaction=False)
        pipeline.xack("raw", "g", *ids)
        pipeline.xdel("raw", *ids)
        pipeline.execute()


async def consume_async() -> None:
    client = redis.asyncio.Redis.from_url(shared.URL, socket_timeout=None)
    while True:
        found: Any = await client.xreadgroup("g", "c", {"raw": ">"}, count=100, block=0)
        ids = [id for id, _ in found[0][1]]
        pipeline = client.pipeline(transaction=False)
        pipeline.xack("raw", "g", *ids)
        pipeline.xdel("raw", *ids)
        await pipeline.execute()


async def produce_async(mode: str, count: int) -> None:
    client = redis.asyncio.Redis.from_url(shared.URL)
    await shared.produce_async(mode, count, lambda body: client.xadd("raw", {"b": body}))
    await client.aclose()


def batch(client: redis.Redis, bodies: Any) -> None:
    pipeline = client.pipeline(transaction=False)
    for body in bodies:
        pipeline.xadd("raw", {"b": body})
    pipeline.execute()


def main() -> None:
    role, mode, count = shared.arguments()
    client = redis.Redis.from_url(shared.URL, socket_timeout=None)
    if role == "consume":
        client.xgroup_create("raw", "g", id="0", mkstream=True)
        asyncio.run(consume_async()) if mode == "async" else consume(client, mode)
    elif mode == "tasks":
        asyncio.run(produce_async(mode, count))
    elif mode == "ping":
        shared.produce(mode, count, lambda body: client.rpush("list", body))
    else:
        shared.produce(mode, count, lambda body: client.xadd("raw", {"b": body}), lambda many: batch(client, many))


if __name__ == "__main__":
    main()
