"""Dead letters of several kinds, for the tests of `rqttl dead`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rqttl import Message, Queue
from tests.contract.clocked import Clocked

#: What is in `orders/dead`: id -> where and why it died, in the order in which they came.
LETTERS = {
    "order-1": ("orders", "rejected"),
    "order-2": ("orders", "rejected"),
    "order-3": ("orders", "delivery_limit"),
    "mail-1": ("mails", "expired"),
    "mail-2": ("mails", "expired"),
    "mail-3": ("mails", "expired"),
    "order-4": ("orders", "maxlen"),
}


def bury(clocked: Clocked) -> Queue:
    """The queue `orders/dead` with `LETTERS`, ten minutes between each two groups of them."""
    everything: dict[str, Any] = {"dead_letter": "orders/dead", "dead_letter_rejected": "orders/dead"}
    orders = clocked.declare_queue("orders", max_deliveries=2, **everything)
    mails = clocked.declare_queue("mails", message_ttl="5m", **everything)
    orders.enqueue_many(
        [
            Message({"sku": "A-17", "count": 2}, id="order-1", headers={"region": "eu", "attempt": 3, "vip": True}),
            Message(b"two", id="order-2", headers={"region": "us"}),
            Message(b"three", id="order-3"),
        ]
    )
    clocked.advance(60_000)
    for delivery in orders.receive_many(2):
        delivery.reject("no such item")
    clocked.advance(600_000)
    for _ in range(2):
        orders.nack_many(orders.receive_many(1))
    mails.enqueue_many([Message(b"mail", id=f"mail-{i}", headers={"region": "eu"}) for i in (1, 2, 3)])
    clocked.advance(600_000)
    mails.sweep()
    orders.enqueue(Message(b"four" * 500, id="order-4", content_type="text/plain"))
    orders.update(max_length=0)
    return clocked.queue("orders/dead")


Die = Callable[..., None]


def ids(queue: Queue) -> list[str]:
    """The ids of the messages of a queue."""
    return [message.id for message in queue.peek(1_000)]
