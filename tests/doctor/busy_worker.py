"""A client that never rests: `python -m tests.doctor.busy_worker <url> <seed>`, until its input ends.

It sends, takes out and settles in all ways in the queue `busy`, which is never still; and queues of its own come and
go.
A line of output says that it has begun.
"""

from __future__ import annotations

import random
import select
import sys

import rqttl

QUEUE, DEAD = "busy", "busy/dead"


def work(broker: rqttl.Broker, chance: random.Random, name: str) -> None:
    """One turn."""
    queue = broker.queue(QUEUE)
    messages = [
        rqttl.Message(b"x" * chance.randint(0, 50), ttl=chance.choice((None, None, "1ms", "20ms", "1m")))
        for _ in range(20)
    ]
    queue.enqueue_many(messages)
    batch = queue.receive_many(25, lease=chance.choice(("1ms", "1m")))
    cut = len(batch) // 4
    for settle, part in (
        (queue.ack_many, batch[: 2 * cut]),
        (queue.nack_many, batch[2 * cut : 3 * cut]),
        (queue.reject_many, batch[3 * cut :]),
    ):
        try:
            settle(part)
        except rqttl.LeaseLost:
            continue
    queue.nack_many(queue.receive_many(3, lease="1m"), delay=chance.choice(("1ms", "1m")))
    broker.queue(DEAD).receive_many(20, auto_ack=True)
    mine = broker.declare_queue(name, dead_letter=f"{name}/dead")
    mine.enqueue_many([rqttl.Message(b"x", ttl=0), b"y"])
    mine.delete()
    broker.queue(f"{name}/dead").delete()


def main() -> None:
    url, seed = sys.argv[1:]
    broker = rqttl.connect(url)
    chance = random.Random(seed)
    print("begun", flush=True)  # noqa: T201  # the parent process waits for it
    turn = 0
    while not select.select([sys.stdin], [], [], 0)[0]:
        work(broker, chance, f"own-{seed}-{turn % 3}")
        turn += 1
    broker.close()


if __name__ == "__main__":
    main()
