"""Short functions for the contents of a queue, and handlers: some fail, some work until something has happened."""

import threading
from typing import Any

from rqttl import Broker, CommandEvent, Delivery, Queue, QueueNotFound, RedriveResult, RenewalEvent
from tests.contract.clocked import START, Clocked, at
from tests.waiting import PATIENCE


def bodies(queue: Queue) -> list[bytes]:
    """The bodies of messages in any state, in order."""
    return [message.body for message in queue.peek(1000)]


def bodies_in(broker: Broker, queue: str) -> list[bytes]:
    """The same of a queue that need not be there."""
    try:
        return [message.body for message in broker.queue(queue).peek(5_000)]
    except QueueNotFound:
        return []


def ready(queue: Queue) -> list[bytes]:
    """The bodies that are ready, in order."""
    return [message.body for message in queue.peek(1000) if message.state == "ready"]


def taken(queue: Queue, count: int = 250) -> list[bytes]:
    """Receive and ack; the bodies in the order in which they came."""
    return [delivery.body for delivery in take(queue, count)]


def take(queue: Queue, count: int = 250) -> list[Delivery]:
    """Receive and ack."""
    deliveries = queue.receive_many(count)
    queue.ack_many(deliveries)
    return deliveries


def one(queue: Queue, **options: Any) -> Delivery:
    """The one delivery that must be there, or come within a `wait`."""
    delivery = queue.receive(**options)
    assert delivery is not None, f"{queue!r} has nothing to deliver"
    return delivery


def dead(queue: Queue) -> dict[str, int]:
    """The counts of deaths, by reason, of those that happened."""
    return {reason: count for reason, count in queue.stats().deaths.items() if count}


def dropped(queue: Queue) -> dict[str, int]:
    """The counts of deaths that went nowhere, by reason."""
    return {reason: count for reason, count in queue.stats().dropped.items() if count}


def letters(clocked: Clocked, *wanted: object, origin: str = "q", **options: Any) -> tuple[Queue, Queue]:
    """A queue whose messages have been rejected, and the queue where they are now."""
    queue = clocked.declare_queue(origin, dead_letter="d", **options)
    queue.enqueue_many(wanted)
    queue.reject_many(queue.receive_many(len(wanted)))
    return queue, clocked.queue("d")


def places(queue: Queue) -> list[str]:
    """The sequences of the messages in the queue."""
    return [message.sequence for message in queue.peek(1_000)]


def outcomes(found: list[RedriveResult]) -> list[str]:
    """Return the outcome of each message."""
    return [one.outcome for one in found]


def description(queue: Queue) -> str | None:
    """The last error of the one message of a queue."""
    (shown,) = queue.peek()
    return shown.description


class Renewals:
    """Waits until leases have been renewed so many times: so long a handler works."""

    def __init__(self, broker: Broker) -> None:
        self._renewed = threading.Semaphore(0)
        broker.events.subscribe(lambda _: self._renewed.release(), RenewalEvent)

    def wait(self, count: int) -> None:
        for _ in range(count):
            assert self._renewed.acquire(timeout=PATIENCE)

    def outlast(self, clocked: Clocked, delivery: Delivery, lease: int, times: int = 4) -> None:
        """Let half of a lease of so many ms pass, so many times. Each time the renewer renews it, in real time."""
        for _ in range(times):
            clocked.advance(lease // 2)
            while delivery.leased_until != at(clocked.now - START + lease):
                self.wait(1)


def scripts(broker: Broker) -> list[str]:
    """The scripts that the broker calls from now on."""
    called: list[str] = []
    broker.events.subscribe(lambda event: called.append(event.name), CommandEvent)
    return called


def fail(_: Delivery) -> None:
    raise RuntimeError("the handler failed")


def forget(_: Delivery) -> None:
    """Do nothing."""
