"""redis-py alone: a stream with a consumer group; a list for the wake-up."""

from __future__ import annotations

from typing import Any

import redis
import redis.asyncio
import shared

client = redis.Redis.from_url(shared.URL, socket_timeout=None)


def consume(shape: str) -> Any:
    if shape == "async":
        return consume_async()
    if shape == "wake":
        while True:
            answer: Any = client.blpop(["list"], timeout=0)
            shared.handle(answer[1].decode())
    client.xgroup_create("raw", "g", id="0", mkstream=True)
    while True:
        found: Any = client.xreadgroup("g", "c", {"raw": ">"}, count=1 if shape == "single" else 100, block=0)
        ids = [id for id, _ in found[0][1]]
        pipeline = client.pipeline(transaction=False)
        pipeline.xack("raw", "g", *ids)
        pipeline.xdel("raw", *ids)
        pipeline.execute()


async def consume_async() -> None:
    own = redis.asyncio.Redis.from_url(shared.URL, socket_timeout=None)
    await own.xgroup_create("raw", "g", id="0", mkstream=True)
    while True:
        found: Any = await own.xreadgroup("g", "c", {"raw": ">"}, count=100, block=0)
        ids = [id for id, _ in found[0][1]]
        pipeline = own.pipeline(transaction=False)
        pipeline.xack("raw", "g", *ids)
        pipeline.xdel("raw", *ids)
        await pipeline.execute()


async def produce_async(mode: str, count: int) -> None:
    async with redis.asyncio.Redis.from_url(shared.URL) as own:
        await shared.produce_async(mode, count, lambda body: own.xadd("raw", {"b": body}))


def batch(bodies: Any) -> None:
    pipeline = client.pipeline(transaction=False)
    for body in bodies:
        pipeline.xadd("raw", {"b": body})
    pipeline.execute()


def produce(mode: str, count: int) -> Any:
    if mode == "tasks":
        return produce_async(mode, count)
    if mode == "ping":
        return shared.produce(mode, count, lambda body: client.rpush("list", body))
    return shared.produce(mode, count, lambda body: client.xadd("raw", {"b": body}), batch)


if __name__ == "__main__":
    shared.run(produce, consume)
