"""Handlers: some take long and work until something has happened, not for a time; some fail, some do nothing."""

from __future__ import annotations

import threading

from rqttl import Broker, Delivery, RenewalEvent
from tests.waiting import PATIENCE


class Renewals:
    """Waits until leases have been renewed so many times: so long a handler works."""

    def __init__(self, broker: Broker) -> None:
        self._renewed = threading.Semaphore(0)
        broker.events.subscribe(lambda _: self._renewed.release(), RenewalEvent)

    def wait(self, count: int) -> None:
        for _ in range(count):
            assert self._renewed.acquire(timeout=PATIENCE)


def fail(_: Delivery) -> None:
    raise RuntimeError("the handler failed")


def forget(_: Delivery) -> None:
    """Do nothing."""
