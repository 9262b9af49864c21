"""Dramatiq on rqttl: a broker for its actors. `dramatiq examples.dramatiq_broker` runs its workers."""

from collections.abc import Iterable
from typing import Any

import dramatiq
from dramatiq.broker import Consumer, MessageProxy

import rqttl


class RqttlBroker(dramatiq.Broker):
    """Keeps the messages of actors in queues of rqttl, declared with these options. It needs no queues for delays."""

    def __init__(
        self, broker: rqttl.Broker, middleware: list[dramatiq.Middleware] | None = None, **options: Any
    ) -> None:
        super().__init__(middleware)
        self._broker, self._options, self.queues = broker, options, {}

    def declare_queue(self, queue_name: str) -> None:
        if queue_name not in self.queues:
            self.emit_before("declare_queue", queue_name)
            self.queues[queue_name] = self._broker.declare_queue(queue_name, **self._options)
            self.emit_after("declare_queue", queue_name)

    def enqueue(self, message: dramatiq.Message[Any], *, delay: int | None = None) -> dramatiq.Message[Any]:
        self.emit_before("enqueue", message, delay)
        headers = {"actor": message.actor_name}
        self.queues[message.queue_name].enqueue(
            message.encode(), id=message.message_id, headers=headers, delay=None if delay is None else f"{delay}ms"
        )
        self.emit_after("enqueue", message, delay)
        return message

    def consume(self, queue_name: str, prefetch: int = 1, timeout: int = 5000) -> Consumer:
        return _Consumer(self.queues[queue_name].consume(prefetch, wait=f"{timeout}ms"))

    def close(self) -> None:
        self._broker.close()


class _Message(MessageProxy):
    def __init__(self, delivery: rqttl.Delivery) -> None:
        super().__init__(dramatiq.Message.decode(delivery.body))
        self.delivery = delivery


class _Consumer(Consumer):
    """Renews leases while actors work, so they may take any time."""

    def __init__(self, deliveries: rqttl.Consumer) -> None:
        self._deliveries = deliveries.__enter__()

    def __next__(self) -> MessageProxy | None:
        delivery = next(self._deliveries, None)
        return None if delivery is None else _Message(delivery)

    def ack(self, message: Any) -> None:
        message.delivery.ack()

    def nack(self, message: Any) -> None:
        message.delivery.reject(repr(message._exception))  # noqa: SLF001  # there is no other way to it

    def requeue(self, messages: Iterable[Any]) -> None:
        for message in messages:
            self._deliveries.release(message.delivery)

    def close(self) -> None:
        self._deliveries.close()


broker = RqttlBroker(rqttl.connect(), dead_letter="{queue}/dead")
dramatiq.set_broker(broker)


@dramatiq.actor(max_retries=2, min_backoff=100)
def ship(item: int) -> None:
    """Ship an item."""
    if item == 0:
        raise ValueError("no such item")
    print("shipped item", item, flush=True)


if __name__ == "__main__":
    for item in (7, 0):
        ship.send(item)
