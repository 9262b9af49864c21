"""rqttl with its defaults."""

from __future__ import annotations

import sys
from typing import Any

import shared

import rqttl

IDLE_QUEUES = 20


def handler(value: Any) -> None:
    """Handle a message: the handler of `rqttl worker`, and of the shape `value`."""
    shared.handle(value)


def consume(shape: str) -> Any:
    if shape == "async":
        return consume_async()
    if shape in ("workers", "worker0", "idle"):
        return work(0 if shape == "worker0" else 2, [f"q{i}" for i in range(IDLE_QUEUES)] if shape == "idle" else ["q"])
    with rqttl.connect(shared.URL) as broker:
        queue = broker.declare_queue("q")
        if shape == "by100":
            while True:
                queue.ack_many(queue.receive_many(100, wait="1h"))
        if shape == "receive":
            while True:
                if delivery := queue.receive(wait="1h"):
                    delivery.ack()
        with queue.consume(prefetch=1 if shape == "single" else 100) as deliveries:
            for delivery in deliveries:
                with delivery:
                    if shape == "value" or shared.STAMPS:
                        handler(delivery.decode())
    return None


async def consume_async() -> None:
    async with rqttl.connect_async(shared.URL) as broker:
        queue = await broker.declare_queue("q")
        async with queue.consume(prefetch=100) as deliveries:
            async for delivery in deliveries:
                async with delivery:
                    pass


async def produce_async(mode: str, count: int) -> None:
    async with rqttl.connect_async(shared.URL) as broker:
        queue = await broker.declare_queue("q")
        await shared.produce_async(mode, count, queue.enqueue, queue.enqueue_many)


def work(processes: int, queues: list[str]) -> None:
    """Become `rqttl worker`."""
    with rqttl.connect(shared.URL) as broker:
        for name in queues:
            broker.declare_queue(name)
    options = ("--call", "with_rqttl:handler", "--processes", str(processes), "--url", shared.URL)
    sys.argv = ["rqttl", "worker", *queues, *options]
    from rqttl.cli import main as program

    program()


def produce(mode: str, count: int) -> Any:
    if mode == "tasks":
        return produce_async(mode, count)
    with rqttl.connect(shared.URL) as broker:
        queue = broker.declare_queue("q")
        return shared.produce(mode, count, queue.enqueue, queue.enqueue_many)


if __name__ == "__main__":
    shared.run(produce, consume)
