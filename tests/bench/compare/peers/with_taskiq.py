"""taskiq: the broker on a stream, which acknowledges a message after its handler; 100 messages are read at once."""

from __future__ import annotations

import shared
from taskiq_redis import RedisStreamBroker

broker = RedisStreamBroker(shared.URL, queue_name="q", xread_count=1 if shared.SHAPE == "single" else 100)


@broker.task(task_name="work")
async def work(body: str) -> None:
    shared.handle(body)


async def produce(mode: str, count: int) -> None:
    await broker.startup()
    await shared.produce_async(mode, count, work.kiq)
    await broker.shutdown()


def consume(mode: str) -> None:
    sizes = ("--workers", "2" if mode == "workers" else "1", "--max-async-tasks", "1" if mode == "single" else "100")
    shared.become(
        "taskiq", "worker", "with_taskiq:broker", *sizes, "--ack-type", "when_executed", "--log-level", "ERROR"
    )


if __name__ == "__main__":
    shared.run(produce, consume)
