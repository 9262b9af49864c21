"""1,000 waiting consumers of asyncio in one loop, and the end of 1,000 waits: a part of `make bench-asyncio`.

    python -m tests.bench.waiting

Times are on the wall, so a busy machine shows in them.
"""

from __future__ import annotations

import asyncio
import sys
import time

import redis

import rqttl
from rqttl.runtime.memory import resident_bytes
from tests.servers import Server, find_binary

WAITS = 1_000
PATIENCE = 60.0


async def _until_blocked(client: redis.Redis, number: int) -> None:
    """Wait until Redis has so many clients that wait."""
    deadline = time.monotonic() + PATIENCE
    while client.info("clients")["blocked_clients"] != number:
        if time.monotonic() > deadline:
            raise TimeoutError(f"no {number} clients wait")
        await asyncio.sleep(0.01)


async def _measure(url: str, client: redis.Redis) -> list[tuple[str, float, float]]:
    async with rqttl.connect_async(url) as broker:
        queue = await broker.declare_queue("q")
        before = resident_bytes()

        async def consume() -> None:
            async with queue.consume(prefetch=1) as deliveries, await deliveries.__anext__():
                pass

        consumers = [asyncio.ensure_future(consume()) for _ in range(WAITS)]
        await _until_blocked(client, WAITS)
        connections = len(client.client_list()) - 1
        memory = (resident_bytes() - before) / 1e6
        began = time.perf_counter()
        await queue.enqueue_many([b"x"] * WAITS)
        await asyncio.gather(*consumers)
        woken = time.perf_counter() - began

        waits = [asyncio.ensure_future(queue.receive(wait="1h")) for _ in range(WAITS)]
        await _until_blocked(client, WAITS)
        began = time.perf_counter()
        await broker.aclose()
        ended = time.perf_counter() - began
        await asyncio.gather(*waits, return_exceptions=True)
    return [
        ("1,000 waiting consumers: connections", connections, WAITS + 1),
        ("1,000 waiting consumers: MB above the baseline", memory, 60),
        ("1,000 waiting consumers: s until all have handled a message", woken, 0),
        ("aclose during 1,000 waits: s", ended, 1),
    ]


def main() -> int:
    """Print the rows. Returns 1 if a goal is missed."""
    binary = find_binary("7.0")
    if binary is None:
        raise SystemExit("no redis-server 7 or later")
    server = Server(binary)
    try:
        with server.client() as client:
            rows = asyncio.run(_measure(server.url, client))
    finally:
        server.remove()
    for name, figure, goal in rows:
        print(f"{name:<60} {figure:>10.2f} {f'<= {goal}' if goal else '':>10} {'!' * (0 < goal < figure)}")
    return int(any(0 < goal < figure for _, figure, goal in rows))


if __name__ == "__main__":
    sys.exit(main())
