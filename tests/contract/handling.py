"""Handlers: some take long and work until something has happened, not for a time; some fail, some do nothing."""

from __future__ import annotations

import threading

from rqttl import Broker, Delivery, RenewalEvent
from tests.contract.clocked import START, Clocked, at
from tests.waiting import PATIENCE


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


def fail(_: Delivery) -> None:
    raise RuntimeError("the handler failed")


def forget(_: Delivery) -> None:
    """Do nothing."""
