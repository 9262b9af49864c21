"""One side of the test of two versions on one Redis, for the Python of either; it knows public names only.

`side.py produce|consume URL`. In the environment are `SIDE`, the name of the version; `ROLE`; `NOTES`, the file with
what was handled; and `MENDED`, a file that is there once nothing is rejected any more.
"""

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


def produce(broker: rqttl.Broker) -> None:
    """Send one by one, in batches, with headers, with a TTL, for later, and to die."""
    side = os.environ["SIDE"]
    orders = broker.queue("orders")
    for start in range(0, SHARE, 100):
        orders.enqueue({"from": side, "n": start}, ttl="1d")
        orders.enqueue({"from": side, "n": start + 1}, delay="100ms")
        rest = [{"from": side, "n": n} for n in range(start + 2, start + 100)]
        orders.enqueue_many([rqttl.Message(one, id=f"{side}-{one['n']}", headers={"from": side}) for one in rest])
    broker.queue("mayflies").enqueue_many([rqttl.Message(b"", ttl="1ms") for _ in range(MAYFLIES)])


def consume(broker: rqttl.Broker) -> None:
    """Handle messages until SIGTERM."""
    with broker.queue("orders").consume(prefetch=16) as deliveries:
        signal.signal(signal.SIGTERM, lambda *_: deliveries.stop())
        for delivery in deliveries:
            try:
                handle(delivery.decode())
            except rqttl.Reject as rejected:
                delivery.reject(str(rejected))
            else:
                delivery.ack()


if __name__ == "__main__":
    with rqttl.connect(sys.argv[2]) as connected:
        {"produce": produce, "consume": consume}[sys.argv[1]](connected)
