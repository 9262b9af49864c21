"""One side of the test of two versions on one Redis, for the Python of either; it knows public names only.

`side.py produce|consume|serve URL`; `serve` is a consumer with asyncio. In the environment are `SIDE`, the name of the
version; `ROLE`; `NOTES`, the file with what was handled, and beside it one of each consumer that has begun; `MENDED`, a
file that is there once nothing is rejected any more.
"""

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import rqttl

SHARE = 5_000  # messages of each version
MAYFLIES = 100


def handle(order: dict[str, Any]) -> None:
    """Note the message, or reject it: each hundredth, until that is mended."""
    if order["n"] % 100 == 7 and not Path(os.environ["MENDED"]).exists():
        raise rqttl.Reject("not mended")
    with Path(os.environ["NOTES"]).open("a", encoding="utf-8") as notes:
        notes.write(f"{order['from']} {order['n']} {os.environ['SIDE']} {os.environ['ROLE']}\n")


def begin() -> None:
    """Tell that this consumer runs."""
    Path("{NOTES}-{SIDE}-{ROLE}".format_map(os.environ)).touch()


def produce(url: str) -> None:
    """Send one by one, in batches, with headers, with a TTL, for later; and by asyncio, to die."""
    with rqttl.connect(url) as broker:
        send(broker.queue("orders"))
    asyncio.run(send_mayflies(url))


def send(orders: rqttl.Queue) -> None:
    """Send the share of this version."""
    side = os.environ["SIDE"]
    for start in range(0, SHARE, 100):
        orders.enqueue({"from": side, "n": start}, ttl="1d")
        orders.enqueue({"from": side, "n": start + 1}, delay="100ms")
        rest = [{"from": side, "n": n} for n in range(start + 2, start + 100)]
        orders.enqueue_many([rqttl.Message(one, id=f"{side}-{one['n']}", headers={"from": side}) for one in rest])


async def send_mayflies(url: str) -> None:
    """Send messages that expire at once."""
    async with rqttl.connect_async(url) as broker:
        await broker.queue("mayflies").enqueue_many([rqttl.Message(b"", ttl="1ms") for _ in range(MAYFLIES)])


def consume(url: str) -> None:
    """Handle messages until SIGTERM."""
    with rqttl.connect(url) as broker, broker.queue("orders").consume(prefetch=16) as deliveries:
        signal.signal(signal.SIGTERM, lambda *_: deliveries.stop())
        begin()
        for delivery in deliveries:
            try:
                handle(delivery.decode())
            except rqttl.Reject as rejected:
                delivery.reject(str(rejected))
            else:
                delivery.ack()


def serve(url: str) -> None:
    """Handle messages with asyncio until SIGTERM."""

    async def handled(delivery: rqttl.AsyncDelivery) -> None:
        handle(delivery.decode())

    async def run() -> None:
        async with rqttl.connect_async(url) as broker:
            begin()
            await broker.queue("orders").run(handled, concurrency=16)

    asyncio.run(run())


if __name__ == "__main__":
    {"produce": produce, "consume": consume, "serve": serve}[sys.argv[1]](sys.argv[2])
