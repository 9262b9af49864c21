"""The dead letters that the recipes of `spark_connectors/README.md` are about: one bad evening, always the same.

It begins at 22:13:20 UTC. Orders expire, some long after their deadline; a new version of the shop sends orders that
nobody can handle; between 23 and 24 o'clock the mail server is away.
"""

from __future__ import annotations

from rqttl import Message, Queue
from tests.contract.clocked import Clocked

#: How long after its deadline a message was found to be over, in ms, and how many were found so late.
LATE = {2: 31, 7: 4, 40: 12, 700: 6, 15_000: 2}
#: The orders that were rejected, by the version of the shop that sent them.
REJECTED = {"1.4.0": 9, "1.3.7": 1}
MAILS = 5
_MINUTE = 60_000


def bad_evening(broker: Clocked) -> None:
    """Let it happen; the queues `orders` and `mails` are empty in the end."""
    orders = broker.declare_queue("orders", dead_letter="orders/dead")
    mails = broker.declare_queue("mails", dead_letter="mails/dead", max_deliveries=3)
    _expire(broker, orders)
    for version, count in REJECTED.items():
        orders.enqueue_many(
            [
                Message({"item": i}, id=f"order-{version}-{i}", headers={"version": version, "region": "eu"})
                for i in range(count)
            ]
        )
        orders.reject_many(orders.receive_many(count), "no such item")
    _fail(mails, 2, "welcome")
    broker.go_to(50 * _MINUTE)
    _fail(mails, MAILS, "invoice")
    broker.go_to(130 * _MINUTE)
    _fail(mails, 1, "welcome")


def _expire(broker: Clocked, queue: Queue) -> None:
    for late, count in LATE.items():
        queue.enqueue_many(
            [
                Message({"item": i}, id=f"order-{late}-{i}", ttl="1m", headers={"version": "1.3.7", "region": "us"})
                for i in range(count)
            ]
        )
        broker.advance(_MINUTE + late)
        queue.sweep()


def _fail(queue: Queue, count: int, template: str) -> None:
    sent = [Message(f"{template} {i}", id=f"{template}-{i}", headers={"template": template}) for i in range(count)]
    queue.enqueue_many(sent)
    for _ in range(3):
        queue.nack_many(queue.receive_many(count))
