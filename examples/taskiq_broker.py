"""taskiq on rqttl: a broker for its tasks. `taskiq worker examples.taskiq_broker:broker` runs its workers."""

import asyncio
from collections.abc import AsyncGenerator

from taskiq import AckableMessage, AsyncBroker, BrokerMessage

import rqttl


class RqttlBroker(AsyncBroker):
    """Keeps the messages of tasks in one queue of rqttl. The label `delay` of a task is a number of seconds."""

    def __init__(self, queue: str = "taskiq") -> None:
        super().__init__()
        self._name = queue

    async def startup(self) -> None:
        await super().startup()
        self._broker = rqttl.connect_async()
        self._queue = await self._broker.declare_queue(self._name, dead_letter="{queue}/dead", max_deliveries=3)

    async def shutdown(self) -> None:
        await super().shutdown()
        await self._broker.aclose()

    async def kick(self, message: BrokerMessage) -> None:
        delay, headers = message.labels.get("delay"), {"task": message.task_name}
        later = None if delay is None else f"{delay}s"
        await self._queue.enqueue(message.message, id=message.task_id, headers=headers, delay=later)

    async def listen(self) -> AsyncGenerator[AckableMessage, None]:
        async with self._queue.consume() as deliveries:  # it renews leases, so a task may take any time
            async for delivery in deliveries:
                yield AckableMessage(data=delivery.body, ack=delivery.ack)


broker = RqttlBroker()


@broker.task("ship")
async def ship(item: int) -> None:
    """Ship an item."""
    print("shipped item", item, flush=True)


async def main() -> None:
    """Send two tasks."""
    await broker.startup()
    await ship.kiq(7)
    await ship.kicker().with_labels(delay=1).kiq(8)
    await broker.shutdown()


if __name__ == "__main__":
    asyncio.run(main())
