"""One of the processes that race for a queue: `python -m tests.process.race_worker <url> <role> <seed> <seconds>`.

It begins at a line of input, and at its end tells as JSON what became of each message as far as it knows.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable

import rqttl

QUEUE = "race"
#: Calls that each process makes at least, however busy the machine is.
FEWEST = 200


class Worker:
    def __init__(self, queue: rqttl.Queue, seed: int) -> None:
        self.queue = queue
        self.name = f"p{seed}"
        self.random = random.Random(seed)
        self.sent: list[str] = []
        self.refused: list[str] = []
        self.acked: list[str] = []
        self.rejected: list[str] = []

    def message(self) -> rqttl.Message:
        id = f"{self.name}-{len(self.sent) + len(self.refused)}"
        self.sent.append(id)
        ttl = self.random.choice((None, None, None, "0", "5ms", "50ms", "400ms"))
        return rqttl.Message(id.encode().ljust(self.random.choice((20, 50, 120)), b"."), ttl=ttl, id=id)

    def produce(self) -> None:
        """Send one, or a batch."""
        messages = [self.message() for _ in range(self.random.choice((1, 1, 2, 5, 12)))]
        for message, outcome in zip(messages, self.queue.enqueue_many(messages), strict=True):
            if isinstance(outcome, rqttl.QueueFull):
                assert message.id is not None
                self.sent.remove(message.id)
                self.refused.append(message.id)
            else:
                assert outcome.id == message.id

    def consume(self) -> None:
        """Take some, also by waiting for them, and settle them in one way or another, or not at all."""
        if self.random.random() < 0.2:
            found = self.queue.receive(auto_ack=True)
            self.acked += [found.id] if found else []
            return
        batch = self.queue.receive_many(
            self.random.randint(1, 8), wait=self.random.choice((None, "10ms")), lease="60ms"
        )
        if batch and self.random.random() < 0.3:
            self.settle(lambda: self.queue.ack_many(batch))
        else:
            for one in batch:
                self.settle_one(one)
        self.acked += [one.id for one in batch if one.settled == "ack"]
        self.rejected += [one.id for one in batch if one.settled == "reject"]

    def settle_one(self, one: rqttl.Delivery) -> None:
        how = self.random.choice(("ack", "ack", "ack", "nack", "nack", "later", "reject", "renew", "lapse"))
        if how == "ack":
            self.settle(one.ack)
        elif how == "nack":
            self.settle(one.nack)
        elif how == "later":
            self.settle(lambda: one.nack(delay="30ms"))
        elif how == "reject":
            self.settle(lambda: one.reject("no"))
        elif how == "renew":
            self.settle(lambda: one.renew("90ms"))
            if one.settled is None:
                self.settle(one.ack)

    @staticmethod
    def settle(call: Callable[[], None]) -> None:
        try:
            call()
        except rqttl.LeaseLost:
            return  # another consumer has it, or it is dead

    def both(self) -> None:
        self.random.choice((self.produce, self.consume))()

    def sweep(self) -> None:
        self.queue.sweep()


def main(url: str, role: str, seed: str, seconds: str) -> None:
    broker = rqttl.connect(url)
    worker = Worker(broker.queue(QUEUE), int(seed))
    act: Callable[[], None] = getattr(worker, role)
    sys.stdin.readline()
    ends, acts = time.monotonic() + float(seconds), 0
    while time.monotonic() < ends or acts < FEWEST:
        act()
        acts += 1
    broker.close()
    known = {name: getattr(worker, name) for name in ("sent", "refused", "acked", "rejected")}
    sys.stdout.write(json.dumps(known))


if __name__ == "__main__":
    main(*sys.argv[1:])
