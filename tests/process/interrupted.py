"""A program whose signal handler raises again and again, in the middle of any work. Run as a process.

Arguments: the URL, and the number of interrupts. It prints, as JSON, what it was told and how many connections it has.
"""

from __future__ import annotations

import json
import random
import signal
import sys
import time
from contextlib import suppress
from types import FrameType

import rqttl
from rqttl.store.driver import driver_of
from tests.drivers import broker_of


class Interrupt(BaseException):
    """Raised by the signal handler."""


def interrupt(_: int, frame: FrameType | None) -> None:
    """The signal handler. It interrupts `work` and what that calls, so `main` can catch every interrupt."""
    while frame is not None:
        if frame.f_code is work.__code__:
            raise Interrupt
        frame = frame.f_back


def work(queue: rqttl.Queue, full: rqttl.Queue, number: int, stored: list[str], refused: list[str]) -> None:
    """Send messages until an interrupt comes, at most 20."""
    for i in range(number, number + 20):
        queue.enqueue(i, id=f"m{i}")
        stored.append(f"m{i}")
        broker_of(queue).server_time()
        with suppress(rqttl.QueueFull):
            full.enqueue(b"x", id=f"m{i}")
            refused.append(f"m{i}")  # told as stored, and there is no room
        broker_of(queue).queues()


def main(url: str, interrupts: int) -> None:
    """Work until so many interrupts have come."""
    chance = random.Random(1)
    facts = {"interrupts": 0, "strange": 0}
    stored: list[str] = []
    refused: list[str] = []
    with rqttl.connect(url) as broker:
        queue, full = broker.queue("orders"), broker.queue("full")
        queue.enqueue(0)  # links the script, which takes longer than most interrupts leave
        not_its_own_reply(broker)
        signal.signal(signal.SIGALRM, interrupt)
        number = 0
        while facts["interrupts"] < interrupts:
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.00001 + 0.03 * chance.random() ** 3)
                work(queue, full, number, stored, refused)
            except Interrupt:
                facts["interrupts"] += 1
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            number += 20
            facts["strange"] += not_its_own_reply(broker)
        pool = driver_of(broker).store.client.connection_pool
        in_use = len(pool._in_use_connections)
        connections = len([one for one in driver_of(broker).store.client.client_list() if one["name"] == "storm"])
        told = {**facts, "stored": len(stored), "refused": len(refused), "in_use": in_use, "connections": connections}
        sys.stdout.write(json.dumps(told))


def not_its_own_reply(broker: rqttl.Broker) -> bool:
    """Return True if a call is answered by something else."""
    try:
        return (
            abs(broker.server_time().timestamp() - time.time()) > 60
            or broker.queues() != ["full", "orders"]
            or broker.queue("full").options().max_length != 0
        )
    except (rqttl.RqttlError, TypeError, ValueError, AttributeError):
        return True


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
